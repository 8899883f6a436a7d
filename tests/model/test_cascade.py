"""Cascades: which stage answers what, what goes on and what that feeds, and what is refused."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from cascades import PROMPTS, QUERIES, joint, tree, write
from commands import ROOT, write_rows
from evaluations import evaluated

from qcls_gguf import Classifier, ConfigError, DeadlineError, PlanError, load_config
from qcls_gguf.labelling import label_table
from qcls_gguf.labelling.run import label_files
from qcls_gguf.labelling.worker import LabelSettings
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.report.answers import result_table

SMALL = ROOT / "models" / "fashion-tiny-Q4_K_M.gguf"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cascade")


@pytest.fixture(scope="module")
def apart(folder: Path) -> Iterator[tuple[Classifier, Classifier]]:
    """The first stage and the last, each by itself."""
    for name, part in (("first", joint()), ("last", tree())):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(part))
    with Classifier.from_config(folder / "first.yaml") as first, Classifier.from_config(folder / "last.yaml") as last:
        yield first, last


def test_each_prompt_is_answered_by_the_first_stage_that_is_sure(
    folder: Path, apart: tuple[Classifier, Classifier]
) -> None:
    first, last = apart
    with Classifier.from_config(write(folder, joint(), {"category": 0.7, "audience": 0.6})) as both:
        found = both.classify_batch(QUERIES)
        for query, result in zip(QUERIES, found, strict=True):
            sure, other = first.classify(query), last.classify(query)
            for answer, here, there in zip(result.results, sure.results, other.results, strict=True):
                is_sure = here.probability >= {"category": 0.7, "audience": 0.6}[answer.prompt]
                assert answer.stage == ("cheap" if is_sure else "both")
                wanted = here if is_sure else there
                assert (answer.prompt, answer.label) == (wanted.prompt, wanted.label)
                assert answer.probability == pytest.approx(wanted.probability, abs=0.01)
        stages = {answer.stage for result in found for answer in result.results}
        assert stages == {"cheap", "both"}  # else this shows nothing
        one_by_one = [both.classify(query) for query in QUERIES]
        assert [each.labels for each in one_by_one] == [each.labels for each in found]
        awaited = asyncio.run(both.aclassify(QUERIES[0]))
        assert awaited.labels == found[0].labels
        assert [each.stage for each in awaited.results] == [each.stage for each in found[0].results]
        for result, query in zip(one_by_one, QUERIES, strict=True):
            n_on = sum(answer.stage == "both" for answer in result.results)
            alone = last.classify(query).counts.n_tokens_new
            tokens = first.classify(query).counts.n_tokens_new
            assert result.counts.n_decodes == (2 if n_on else 1)
            assert result.counts.n_tokens_new == tokens + {0: 0, 1: alone // 2, 2: alone}[n_on]
        assert found[0].to_dict()["results"][0]["stage"] in ("cheap", "both")
        assert "answer" in str(list(result_table(one_by_one[0], 1).renderables)[-2])
        assert "stage cheap" in both.startup_ms


def test_a_prompt_without_a_threshold_goes_to_the_last_stage(
    folder: Path, apart: tuple[Classifier, Classifier]
) -> None:
    just = apart[0].classify(QUERIES[0])["audience"].probability  # which is as sure as its threshold asks for
    with Classifier.from_config(write(folder, joint(), {"audience": just})) as both:
        result = both.classify(QUERIES[0])
        assert [answer.stage for answer in result.results] == ["both", "cheap"]
        assert result.labels["category"] == apart[1].classify(QUERIES[0]).labels["category"]


def test_a_stage_may_have_another_model(folder: Path) -> None:
    with Classifier.from_config(write(folder, tree(SMALL), {"category": 0.0, "audience": 1.0})) as both:
        result = both.classify(QUERIES[0])
        assert [answer.stage for answer in result.results] == ["cheap", "both"]
        assert result.model.quantization == "Q8_0"
        both.close()
        both.close()


def test_errors_and_limits_are_those_of_one_classifier(folder: Path) -> None:
    with Classifier.from_config(write(folder, joint(), {"category": 0.5, "audience": 0.5})) as both:
        with pytest.raises(PlanError, match="max_query_tokens"):
            both.classify("word " * 300)
        with pytest.raises(PlanError, match=r"queries\[1\]: .*max_query_tokens"):
            both.classify_batch(["red dress", "word " * 300])
        with pytest.raises(DeadlineError):
            both.classify("red dress", deadline_s=-1.0)
        assert both.classify_batch([]) == []
        assert both.configured.classify("red dress").results[0].stage is None  # the last stage alone
        with both.prompt_set(both.config.prompts[:1]) as other:  # of no stage, in a turn with the last one
            staged, mixed = both.classify_pairs([(both.configured, "red dress"), (other, "red dress")])
        assert [answer.stage for answer in mixed.results] == [None]
        assert {answer.stage for answer in staged.results} <= {"cheap", "both"}
        assert mixed.labels["category"] == both.configured.classify("red dress").labels["category"]


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("both", "cascade.model_sha256", "0" * 64, "fitted with the model of sha256 000000000000…, this one"),
        ("both", "cascade.stages.0.model_sha256", "0" * 64, r"stages\[0\]: its thresholds were fitted"),
        ("both", "prompts.0.temperature", 2.0, "threshold of prompt category was fitted to the prompt of"),
        ("both", "cascade.stages.0.config", "none.yaml", r"stages\[0\].config: .*none.yaml"),
        (
            "both",
            "cascade.stages.0.prompts.colour",
            {"threshold": 0.5, "prompt_hash": "x"},
            "colour is no prompt of the",
        ),
        (
            "cheap",
            "prompt_template",
            "{query}\n{name}:",
            r"cascade.stages\[0\]: the threshold of prompt \w+ was fitted",
        ),
        ("cheap", "prompts.1.labels", ["girl", "boy"], "cheap.yaml: prompts.audience has other labels than the"),
    ],
)
def test_what_the_thresholds_were_not_fitted_to_is_refused(
    name: str, key: str, value: object, words: str, folder: Path
) -> None:
    path = write(folder, joint(), {"category": 0.5, "audience": 0.5})
    part = values = yaml.safe_load((folder / f"{name}.yaml").read_text())
    *keys, last = [int(each) if each.isdigit() else each for each in key.split(".")]
    for each in keys:
        part = part[each]
    part[last] = value
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=words):
        Classifier.from_config(path)


def test_tables_and_files_are_labelled_by_all_stages(folder: Path) -> None:
    path, queries = write(folder, joint(), {"category": 0.7, "audience": 0.6}), folder / "queries.txt"
    queries.write_text("\n".join(QUERIES))
    with ClassifierOpener() as opener:
        settings = LabelSettings(config=load_config(path), inputs=(str(queries),), out=folder / "out.parquet", batch=4)
        label_files(settings, opener)
    with Classifier.from_config(path) as both:
        labelled = label_table(pa.table({"query": QUERIES}), both).to_pylist()
        for row in [*labelled, *pq.read_table(folder / "out.parquet").to_pylist()]:
            for answer in both.classify(row["query"]).results:
                assert row[answer.prompt] == answer.label
                assert row[f"{answer.prompt}_probability"] == pytest.approx(answer.probability, abs=0.01)


def test_an_evaluation_has_the_whole_cascade_and_who_answers(
    folder: Path, apart: tuple[Classifier, Classifier]
) -> None:
    path = write(folder, joint(), {"category": 0.7, "audience": 0.6})
    labels = [apart[1].classify(query).labels for query in QUERIES]  # as the last stage answers
    rows = [{"query": query, "labels": of_query} for query, of_query in zip(QUERIES, labels, strict=True)]
    found = evaluated(path, write_rows(folder / "rows.jsonl", rows), modes=("tree",))
    assert list(found["modes"]) == ["tree", "cascade"]
    assert found["modes"]["tree"]["accuracy"] == 1
    with Classifier.from_config(path) as both:
        results = [both.classify(query).results for query in QUERIES]
    for name in PROMPTS:
        answers = [answer for each in results for answer in each if answer.prompt == name]
        same = sum(answer.label == of_query[name] for answer, of_query in zip(answers, labels, strict=True))
        shares = found["cascade"]["prompts"][name]
        assert shares["n"] == len(QUERIES)
        assert shares["agreement"] == found["modes"]["cascade"]["prompts"][name]["accuracy"] == same / len(QUERIES)
        first = sum(answer.stage == "cheap" for answer in answers)
        assert shares["stages"] == {"cheap": first / len(QUERIES), "both": 1 - first / len(QUERIES)}
