"""Every command and wire with heads on lower layers: the classifier's own answers, or a reason why not.

`calibrate --queries`: biases from queries without labels, and the answers of the next run.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cases import written
from commands import printed, refused, tiny_rows, write_rows
from evaluations import evaluated
from labelled_tables import rows_of
from oracle_prompts import random_head

from qcls_gguf import Classifier, Config, ConfigError, load_config
from qcls_gguf.config.fitted import heads_content
from qcls_gguf.learning.calibrate import BatchPriorRecord, fit_batch_prior
from qcls_gguf.opening import ClassifierOpener

QUERIES = [row["query"] for row in tiny_rows("heldout")[:8]]
FORM = (
    "<|im_start|>system\nAnalyze the {what} intent. Output exactly one label from [none, {labels}]. "
    "Use 'none' if no {what} intent.<|im_end|>\n<|im_start|>user\nquery: {{query}}<|im_end|>\n"
    "<|im_start|>assistant\nlabel:"
)
LABELS = {"category": "dress, jeans, shirt, skirt", "audience": "boy, girl, man, woman"}
PROMPTS = [
    {"name": name, "prompt_template": FORM.format(what=name, labels=labels), "labels": [*labels.split(", "), "none"]}
    for name, labels in LABELS.items()
]
DEPTHS = {"category": 3, "audience": 2}
COMMON = "Text: {query}"
N_ROWS, ACCURACY = 120, 0.75
Answers = list[dict[str, tuple[str, float]]]
"""of each query by prompt: the label and its probability"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headed:
    """The embedded model of 8 layers with two heads."""

    folder: Path
    config: Path
    answers: Answers
    """of the queries, one by one"""


def heads_file(config: Config) -> bytes:
    """One head of the prompt's own text, and one of another."""
    rng = np.random.default_rng(0)
    with Classifier.from_config(config) as classifier:
        facts, sha256 = classifier.engine.model.facts, classifier.model.sha256
    heads = {}
    for prompt in config.prompts:
        text = COMMON if prompt.name == "audience" else None
        head = random_head(rng, facts.n_embd, len(prompt.labels), DEPTHS[prompt.name], text=text)
        heads[prompt.name] = prompt, replace(head, n_rows=N_ROWS, accuracy=ACCURACY)
    return heads_content(sha256, facts.n_layer, facts.n_embd, heads)


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Headed:
    folder = tmp_path_factory.mktemp("headed")
    (folder / "texts.yaml").write_text(yaml.safe_dump({"prompts": PROMPTS}))
    (folder / "heads.npz").write_bytes(heads_file(load_config(folder / "texts.yaml")))
    config = written(folder / "headed.yaml", yaml.safe_dump({"prompts": PROMPTS, "heads": "heads.npz"}))
    (folder / "queries.txt").write_text("\n".join(QUERIES))
    with Classifier.from_config(config) as classifier:
        assert classifier.engine.layout.last_layer == 3
        return Headed(
            folder=folder, config=config, answers=answers_of(classifier.classify(query).to_dict() for query in QUERIES)
        )


def answers_of(results: Iterable[Any]) -> Answers:
    """Of results as plain values, each of which says what answered."""
    found = [*results]
    for result in found:
        assert {answer["scored_by"] for answer in result["results"]} == {"head"}
        assert {answer["prompt"]: answer["depth"] for answer in result["results"]} == DEPTHS
    return [{each["prompt"]: (each["label"], each["probability"]) for each in result["results"]} for result in found]


def by_run(headed: Headed) -> Answers:
    lines = printed("run", "-c", headed.config, "--queries", headed.folder / "queries.txt", "--format", "jsonl")
    return answers_of(map(json.loads, lines.splitlines()))


def by_label(headed: Headed) -> Answers:
    out = headed.folder / "labelled.csv"
    printed("label", headed.folder / "queries.txt", "-c", headed.config, "--out", out, "--quiet")
    return [{name: (row[name], float(row[f"{name}_probability"])) for name in DEPTHS} for row in rows_of(out)]


def labels_of(answers: Answers) -> list[dict[str, str]]:
    return [{name: label for name, (label, _) in each.items()} for each in answers]


@pytest.mark.parametrize("way", [by_run, by_label])
def test_answers_are_the_classifiers(way: Callable[[Headed], Answers], headed: Headed) -> None:
    found = way(headed)
    assert labels_of(found) == labels_of(headed.answers)
    for given, wanted in zip(found, headed.answers, strict=True):
        for name, (_, probability) in wanted.items():
            assert given[name][1] == pytest.approx(probability, abs=0.005)


def test_eval_compares_the_heads_with_the_texts(headed: Headed) -> None:
    rows = [{"query": query, "labels": row} for query, row in zip(QUERIES, labels_of(headed.answers), strict=True)]
    path = write_rows(headed.folder / "rows.jsonl", rows)
    assert evaluated(headed.config, path)["together"]["accuracy"] == 1
    assert evaluated(headed.folder / "texts.yaml", path)["together"]["accuracy"] < 1


def test_bench_counts_the_layers_that_are_read(headed: Headed) -> None:
    """Of the heads' configuration 3 layers, of the texts' 8."""
    texts = headed.folder / "texts.yaml"
    record = json.loads(printed("bench", "-c", headed.config, "-c", texts, "-n", 2, "--repeat", 1, "--format", "json"))
    heads, whole = (each["weight_bytes"] for each in record["classifiers"])
    assert heads < whole / 2


def test_compare_says_whose_answers_the_heads_are(headed: Headed) -> None:
    words = ["--method", "batched", "--rounds", 1, "--query", QUERIES[0], "--format", "json"]
    ours, _ = json.loads(printed("compare", "-c", headed.config, *words))["methods"]
    assert ours["as_scoring"] == 1
    assert "heads answer category after 3 of 8 layers, audience after 2 of 8 layers" in ours["note"]


def test_inspect_shows_heads(headed: Headed) -> None:
    record = json.loads(printed("inspect", "-c", headed.config, "-f", "json"))
    found = {each["name"]: each for each in record["prompts"]}
    assert found["audience"]["head"] == {
        "depth": 2, "n_layer": 8, "text": COMMON, "reads_labels": False, "n_rows": N_ROWS, "accuracy": ACCURACY,
    }  # fmt: skip
    assert found["category"]["head"]["text"] is None
    shown = " ".join(printed("inspect", "-c", headed.config).split())
    assert "head after 2 of 8 layers, of the text 'Text: {query}', learnt from 120 rows, 75.0% right" in shown
    assert "nearly at random" not in shown  # which holds for the labels' texts
    record = json.loads(printed("inspect", "-c", headed.config, "--prompt", "audience", "-q", "a", "-f", "json"))
    (prompt,) = record["prompts"]
    assert prompt["text"] == "Text: a"


def test_a_head_is_not_calibrated_again(headed: Headed) -> None:
    rows = write_rows(headed.folder / "few.jsonl", [{"query": "a", "labels": {"category": "none"}}])
    for words in (["--data", rows], ["--queries", headed.folder / "queries.txt"]):
        assert "has a head, which learn has calibrated" in refused("calibrate", "-c", headed.config, *words)


UNLABELLED = [f"{word} {i}" for i in range(15) for word in ("red dress", "blue jeans", "coat", "girls shirt")]


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """Sixty queries, one that is too long, and a blank line."""
    return written(tmp_path / "queries.txt", "\n".join([*UNLABELLED, "", "long " * 500]))


def test_biases_take_away_what_a_prompt_prefers(queries: Path, tmp_path: Path) -> None:
    out = tmp_path / "prior.yaml"
    words = ["--config", "mission", "--queries", queries, "--strength", 0.8, "--format", "json"]
    record = json.loads(printed("calibrate", *words, "--out", out))
    assert BatchPriorRecord.model_validate(record).to_dict() == record
    assert (record["n_queries"], record["n_left_out"]) == (60, 1)
    config = load_config("mission")
    with Classifier.from_config(config) as classifier:
        before = classifier.classify_batch(UNLABELLED)
    with Classifier.from_config(config.changed(calibration=out)) as classifier:
        after = classifier.classify_batch(UNLABELLED)
    for number, prompt in enumerate(config.prompts):
        p, q = (np.array([[s.probability for s in r.results[number].scores] for r in each]) for each in (before, after))
        fit = record["prompts"][prompt.name]
        bias = np.array([fit["bias"][label] for label in prompt.labels])
        np.testing.assert_allclose(bias, 0.8 * (np.log(p.mean(0)).mean() - np.log(p.mean(0))), atol=2e-3)
        expected = p * np.exp(bias)
        np.testing.assert_allclose(q, expected / expected.sum(axis=1, keepdims=True), atol=1e-4)
        assert q.mean(axis=0).std() < p.mean(axis=0).std(), "labels are more alike on the whole"
        for shares, results in ((fit["before"], before), (fit["after"], after)):
            answered = [result.results[number].label for result in results]
            assert shares == {label: answered.count(label) / 60 for label in prompt.labels}


def test_queries_with_one_answer_get_a_warning(tmp_path: Path) -> None:
    queries = written(tmp_path / "queries.txt", "\n".join(f"red dress size {i}" for i in range(60)))
    said = printed("calibrate", "--config", "mission", "--queries", queries, "--out", tmp_path / "prior.yaml")
    assert "category: 100% of the answers stay 'dress': if that is right, leave the prior out" in " ".join(said.split())


def test_strength_zero_changes_nothing_and_few_queries_are_refused(queries: Path) -> None:
    config = load_config("mission")
    with ClassifierOpener() as opener:
        record, text = fit_batch_prior(config, str(queries), opener, names=("audience",), strength=0)
        queries.write_text("\n".join(UNLABELLED[:49]))
        with pytest.raises(ConfigError, match="has 49 queries, a prior needs 50"):
            fit_batch_prior(config, str(queries), opener)
    assert set(record.prompts["audience"].bias.values()) == {0}
    assert list(yaml.safe_load(text)["prompts"]) == ["audience"]
