"""`qcls-gguf calibrate`: from labelled data to the answers of the next run: priors, fits, abstention, statements."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from cases import cases, written
from commands import ROOT, invoked, printed, refused, tiny_rows, write_rows
from conftest import WriteConfig
from evaluations import LABELS, evaluated
from evaluations import specs as specs_of
from oracle import PromptSpec, softmax
from records_page import RunRecord
from served import Server

from qcls_gguf import Classifier, ConfigError, Result, load_config
from qcls_gguf.config.fitted import PromptCalibration, calibration_text, prompt_hash
from qcls_gguf.config.scoring import SCORINGS, Scoring
from qcls_gguf.config.yaml_values import load_yaml
from qcls_gguf.learning.calibrate import CalibrationRecord, StatementRecord, calibrate, state
from qcls_gguf.opening import ClassifierOpener

FASHION = ("audience", "colour")
QUERY = "red dress"


def specs(*scorings: Scoring) -> list[PromptSpec]:
    """The prompts, each in its scoring."""
    return [replace(spec, scoring=scoring) for spec, scoring in zip(specs_of(), scorings, strict=True)]


def changed(path: Path, *, prompt: str | None = None, **keys: Any) -> Path:
    """A copy of a configuration with more keys: of a prompt, or of the top level."""
    tree = load_yaml(path.read_text(encoding="utf-8")).values
    place = tree if prompt is None else next(entry for entry in tree["prompts"] if entry["name"] == prompt)
    place.update(keys)
    copy = path.with_name(f"{path.stem}-{len(list(path.parent.iterdir()))}.yaml")
    copy.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    return copy


def probabilities(path: Path, query: str = QUERY) -> dict[str, list[float]]:
    """The probabilities of each prompt's labels."""
    with Classifier.from_config(path) as classifier:
        results = classifier.classify(query).results
    return {answer.prompt: [score.probability for score in answer.scores] for answer in results}


@pytest.fixture
def config(write_config: WriteConfig) -> Path:
    """A random model with two prompts."""
    return write_config("qwen3", specs("tree", "first_token"), flash_attn=False, kv_type="f32")


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    """The embedded model with these two prompts, as a file to change."""
    tree = load_yaml((ROOT / "configs" / "fashion-8.yaml").read_text(encoding="utf-8")).values
    tree["model"] = {"path": str(ROOT / "models" / "fashion-tiny-Q8_0.gguf")}
    tree["prompts"] = [prompt for prompt in tree["prompts"] if prompt["name"] in FASHION]
    return written(tmp_path / "fashion.yaml", yaml.safe_dump(tree, allow_unicode=True))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", tiny_rows("dev", *FASHION)[:60])


def test_from_labelled_queries_to_calibrated_answers(data: Path, fashion: Path, tmp_path: Path) -> None:
    """Fit, write, use, and evaluate.

    The prior takes `none` for the answer without content, which here it is right to be: there is much to correct.
    """
    fashion = changed(fashion, prompt="audience", prior="content_free", content_free_queries=["N/A"])
    out = tmp_path / "fits.yaml"
    arguments: list[object] = ["calibrate", "--data", data, "--config", fashion, "--out", out, "--prompt", "audience"]
    done = invoked(*arguments, "--format", "json")
    assert done.exit_code == 0, done.stderr
    assert f"written: {out}" in done.stderr
    record = json.loads(done.stdout)
    assert (list(record["prompts"]), record["data"]["n_rows"]) == (["audience"], 60)
    assert CalibrationRecord.model_validate(record).to_dict() == record
    fit = record["prompts"]["audience"]
    assert fit["accepted"] is True
    assert fit["log_loss_before"] - fit["log_loss_after"] > fit["standard_error"] > 0

    text = out.read_text(encoding="utf-8")
    assert text.startswith("# Written by `qcls-gguf calibrate`")
    tree = yaml.safe_load(text)
    assert tree["model_sha256"] == record["model"]["sha256"]
    entry = tree["prompts"]["audience"]
    assert (entry["temperature"], entry["scoring"]) == (fit["temperature"], "tree")
    assert entry["fit"]["n_rows"] == 60

    calibrated = changed(fashion, calibration="fits.yaml")
    other = ROOT / "models" / "fashion-tiny-Q4_K_M.gguf"
    assert "made with the model of sha256" in refused("run", "-c", calibrated, "-q", "x", "--model", other)
    raw, found = probabilities(fashion), probabilities(calibrated)
    expected = softmax(np.log(raw["audience"]) / entry["temperature"])
    assert found.pop("audience") == pytest.approx(expected, abs=1e-4)
    assert found == {name: raw[name] for name in found}

    after, before = (evaluated(config, data)["prompts"] for config in (calibrated, fashion))
    assert after["audience"]["log_loss"] < fit["log_loss_before"]
    assert after["colour"]["log_loss"] == before["colour"]["log_loss"]

    assert f"--out {out}: is there already: name another file, or overwrite it with --force" in refused(*arguments)
    assert out.read_text(encoding="utf-8") == text
    assert "kept: +" in printed(*arguments, "--force", "--config", calibrated)
    assert out.read_text(encoding="utf-8") == text  # whatever the calibration was that it replaces


def test_what_is_evaluated_is_what_the_classifier_answers(write_config: WriteConfig, tmp_path: Path) -> None:
    """In the configured scorings, with prior, temperature and fallback."""
    path = write_config("qwen3", specs("joint", "first_token"), flash_attn=False, kv_type="f32")
    path = changed(changed(path, prior="content_free"), prompt="item", temperature=0.3, min_confidence=1, fallback="?")
    given: list[dict[str, Any]] = [
        {"query": "red dress", "labels": {"item": "jump", "user": ["boy", LABELS["user"][2]]}},
        {"query": "", "labels": {"user": LABELS["user"][2]}},
    ]
    record = evaluated(path, write_rows(tmp_path / "rows.jsonl", given))
    losses = []
    with Classifier.from_config(path) as classifier:
        for row in given:
            for answer in classifier.classify(row["query"]).results:
                if accepted := row["labels"].get(answer.prompt):
                    losses.append(-np.log(sum(s.probability for s in answer.scores if s.label in accepted)))
    assert record["together"]["log_loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    assert record["prompts"]["item"]["n_abstained"] == 1


def test_fits_to_what_cannot_be_told_are_refused(write_config: WriteConfig, tmp_path: Path) -> None:
    """The labels are drawn from the model's own probabilities: no temperature is better than 1."""
    path = write_config("qwen3", specs("tree", "tree"))
    random, rows = Random(1), []
    with Classifier.from_config(path) as classifier:
        for i in range(60):
            answers = classifier.classify(query := f"query {i}").results
            drawn = {a.prompt: random.choices(LABELS[a.prompt], [s.probability for s in a.scores])[0] for a in answers}
            rows.append({"query": query, "labels": drawn})
    data = write_rows(tmp_path / "rows.jsonl", rows)
    done = invoked("calibrate", "--data", data, "--config", path, "--out", tmp_path / "fits.yaml")
    assert done.exit_code == 1, done.stderr
    assert done.stdout.count("refused: ") == 2
    assert "nothing written: no fit lowers the held-out log-loss" in done.stderr
    assert not (tmp_path / "fits.yaml").exists()


@cases(
    ({"names": ("colours",)}, "`prompt` colours: is no prompt of the configuration, did you mean colour?"),
    ({"few": 40}, "rows.jsonl: prompt audience: has 40 labelled rows, 50 are needed: label more, or name"),
    ({"few": 1, "times": 60}, "rows.jsonl: prompt audience: has 60 labelled rows, all of them '"),
    ({"temperature": 2}, "prompts.colour.temperature: 2 is given, and calibrate fits one: remove it"),
)
def test_refusals_come_before_the_model(change: dict[str, Any], words: str, data: Path, fashion: Path) -> None:
    steps: list[str] = []
    path = changed(fashion, prompt="colour", **change) if "temperature" in change else fashion
    options = {key: value for key, value in change.items() if key == "names"}
    data.write_text("".join(data.read_text().splitlines(keepends=True)[: change.get("few")]) * change.get("times", 1))
    with (
        pytest.raises(ConfigError, match=re.escape(words)),
        ClassifierOpener(on_step=lambda *step: steps.append(step[0])) as opener,
    ):
        calibrate(load_config(path), data, opener, **options)
    assert steps == []


@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_content_free_query_is_uniform_under_its_own_prior(scoring: Scoring, write_config: WriteConfig) -> None:
    other: Scoring = "tree" if scoring == "first_token" else scoring
    path = write_config("qwen3", specs(other, scoring), flash_attn=False, kv_type="f32")
    path = changed(path, prior="content_free", content_free_queries=["N/A"])
    with Classifier.from_config(path) as classifier:
        assert list(classifier.startup_ms)[-1] == "priors"
        uniform, dress = classifier.classify("N/A"), classifier.classify(QUERY)
    for answer, of_dress in zip(uniform.results, dress.results, strict=True):
        n = len(answer.scores)
        assert [score.probability for score in answer.scores] == pytest.approx([1 / n] * n, abs=1e-5)
        assert len({score.score for score in answer.scores}) > 1
        assert max(score.probability for score in of_dress.scores) > 1 / n + 1e-4


def test_a_prior_is_of_all_its_queries_and_a_temperature_comes_on_top(config: Path) -> None:
    queries = ["", "N/A", "[MASK]"]
    with Classifier.from_config(config) as classifier:
        assert "priors" not in classifier.startup_ms
        raw = {text: {each.prompt: each for each in classifier.classify(text).results} for text in [*queries, QUERY]}
    path = changed(changed(config, prior="content_free"), prompt="user", temperature=0.5)
    found = probabilities(path)
    for name, temperature in (("item", 1.0), ("user", 0.5)):
        mean = np.mean([softmax([s.score for s in raw[query][name].scores]) for query in queries], axis=0)
        score = np.array([s.score for s in raw[QUERY][name].scores])
        expected = softmax((score - np.log(mean)) / temperature)
        assert found[name] == pytest.approx(expected, abs=1e-4)


def test_a_content_free_query_that_cannot_be_labelled_is_named(config: Path) -> None:
    path = changed(config, prompt="user", prior="content_free", content_free_queries=["", "long " * 80])
    with pytest.raises(ConfigError, match=r"^prompts\.user\.content_free_queries: 'long long .*max_query_tokens: 64"):
        Classifier.from_config(path)


def assert_is_record(result: Result) -> None:
    """Assert that what `run` prints of it is what its record describes."""
    plain = result.to_dict()
    assert RunRecord.model_validate(plain).to_dict() == json.loads(json.dumps(plain))


def test_below_its_confidence_a_prompt_abstains(config: Path) -> None:
    """By its calibrated probability, and for each query of a batch on its own."""
    with Classifier.from_config(config) as classifier:
        raw = classifier.classify(QUERY)
    best = raw.results[1]
    path = changed(config, prompt="user", min_confidence=best.probability, fallback="ask a person")
    with Classifier.from_config(path) as classifier:
        assert classifier.classify(QUERY).labels == raw.labels
    path = changed(path, prompt="user", temperature=3.0)
    assert_is_record(raw)
    with Classifier.from_config(path, audit=True) as classifier:
        for result in classifier.classify_batch([QUERY, QUERY]):
            assert_is_record(result)
            kept, answer = result.results
            assert (kept.label, kept.abstained) == (raw.results[0].label, False)
            assert (answer.label, answer.abstained, answer.most_probable) == ("ask a person", True, best.label)
            assert answer.probability == max(score.probability for score in answer.scores) < best.probability
            assert result.labels["user"] == "ask a person"
            first, second = result.to_dict()["results"]
            assert (second["abstained"], second["most_probable"], "audit" in second) == (True, best.label, True)
            assert first["abstained"] is False
            assert "most_probable" not in first


N_STATED = 240
BLUE = "something blue for boys"


def stated(config: Path, data: list[dict[str, Any]], out: Path, **asked: Any) -> dict[str, Any]:
    """The record, as JSON has it."""
    path = write_rows(out.with_suffix(".jsonl"), data)
    with ClassifierOpener() as opener:
        record, text = state(load_config(config), path, opener, **asked)
    if text is not None:
        out.write_text(text, encoding="utf-8")
    return record.to_dict()


def test_statements_hold_for_answers_everywhere_until_the_answers_change(fashion: Path, tmp_path: Path) -> None:
    """Stated once, used by Python, `label` and `serve`, checked on new rows; refused for other answers."""
    config = changed(fashion, calibration="c.yaml")
    data = tiny_rows("dev", *FASHION)[:N_STATED]
    out = tmp_path / "c.yaml"
    record = stated(config, [*data, data[0]], out, target_error=0.1, fallback="ask")
    assert (StatementRecord.model_validate(record).to_dict(), record["n_duplicates"]) == (record, 1)
    colour = record["prompts"]["colour"]
    assert colour["bound"] < 0.1
    assert 0.5 < colour["answered"] < 1
    wrong = list(colour["wrong"].values())
    assert (sum(wrong), wrong) == (colour["error"]["n_wrong"], sorted(wrong, reverse=True))
    assert yaml.safe_load(out.read_text(encoding="utf-8"))["stated"]["n_rows"] == N_STATED + 1

    n_abstained = 0
    with Classifier.from_config(config) as classifier:
        results = [classifier.classify(row["query"]) for row in data[:60]]
        answer = classifier.classify(BLUE)
    for result in results:
        for each in result.results:
            threshold = record["prompts"][each.prompt]["error"]["threshold"]
            assert each.abstained == (each.probability < threshold) == (each.label == "ask")
            n_abstained += each.abstained
    assert n_abstained

    (tmp_path / "rows.csv").write_text(f"query\n{BLUE}\n", encoding="utf-8")
    printed("label", tmp_path / "rows.csv", "--config", config, "--out", tmp_path / "out.parquet", "--quiet")
    (row,) = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert {name: row[name] for name in FASHION} == answer.labels
    assert row["error"] is None

    with Server(config=config) as server:
        own = server.classify(query=BLUE).json()["results"]
        assert {each["prompt"]: each["label"] for each in own} == answer.labels

    new = tiny_rows("heldout", *FASHION)[:N_STATED]
    both = write_rows(tmp_path / "new.jsonl", [*new, *data[:5]])
    check = evaluated(config, both)
    assert check["n_known"] == 5
    for name, found in check["prompts"].items():
        error = record["prompts"][name]["error"]
        assert (found["n_abstained"] > 0) == (error["threshold"] > 0)
        assert 0 < found["n_wrong"] < error["target"] * (found["n_rows"] - found["n_abstained"])

    changes: dict[str, dict[str, Any]] = {
        r"prompts\.colour: was stated of other answers": {"temperature": 2.0},
        "and the configuration min_confidence": {"min_confidence": 0.3, "fallback": "x"},
    }
    for words, change in changes.items():
        with pytest.raises(ConfigError, match=words):
            Classifier.from_config(changed(config, prompt="colour", **change))


def test_what_cannot_be_stated_is_refused_with_the_rows_that_are_needed(fashion: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "few.jsonl", tiny_rows("dev", *FASHION)[:40])
    few = invoked("calibrate", "-c", fashion, "--target-error", 0.04, "--out", tmp_path / "c.yaml", "--data", data)
    assert few.exit_code == 1, few.stderr
    assert " ".join(few.stdout.split()).count("40 labelled rows are too few, 91 are needed") == 2
    assert not (tmp_path / "c.yaml").exists()

    one_label = [{**row, "labels": {"colour": "none"}} for row in tiny_rows("dev", *FASHION)[:60]]
    with pytest.raises(ConfigError, match="no row is labelled for prompt audience"):
        stated(fashion, one_label, tmp_path / "c.yaml", target_error=0.2)


def test_what_can_be_stated_is_written_and_the_rest_named(fashion: Path, tmp_path: Path) -> None:
    """One prompt's labels are wrong: the other's threshold is written all the same, and holds for it alone."""
    rows = tiny_rows("dev", *FASHION)[:N_STATED]
    for row in rows:
        row["labels"]["audience"] = "pregnant"
    out, data = tmp_path / "c.yaml", write_rows(tmp_path / "rows.jsonl", rows)
    done = invoked("calibrate", "--config", fashion, "--target-error", 0.1, "--out", out, "--data", data)
    assert done.exit_code == 1, done.stderr
    assert "colour: answers that are wrong most: " in done.stdout
    assert f"written: {out}; left out: audience" in done.stderr
    assert "audience: no threshold keeps the error at 0.1" in " ".join(done.stdout.split())
    assert list(yaml.safe_load(out.read_text(encoding="utf-8"))["prompts"]) == ["colour"]
    with Classifier.from_config(changed(fashion, calibration="c.yaml")) as classifier:
        answers = [classifier.classify(row["query"]) for row in rows[:60]]
    assert any(answer["colour"].abstained for answer in answers)
    assert not any(answer["audience"].abstained for answer in answers)


def test_statements_keep_the_fits_that_they_stand_on(fashion: Path, tmp_path: Path) -> None:
    """The probabilities are those of the configured temperature, whose entry stays."""
    config = changed(fashion, calibration="c.yaml")
    colour = load_config(fashion).prompts[1]
    model = hashlib.sha256((ROOT / "models" / "fashion-tiny-Q8_0.gguf").read_bytes()).hexdigest()
    entry = PromptCalibration(prompt_hash=prompt_hash(colour), scoring="tree", temperature=2.0, fit={"n_rows": 9})
    (tmp_path / "c.yaml").write_text(calibration_text(model, {"colour": entry}), encoding="utf-8")
    rows = tiny_rows("dev", *FASHION)[:N_STATED]
    record = stated(config, rows, tmp_path / "c.yaml", target_error=0.1)
    again = stated(config, rows, tmp_path / "again.yaml", target_error=0.1, names=("colour",))
    after = yaml.safe_load((tmp_path / "c.yaml").read_text(encoding="utf-8"))["prompts"]
    assert (after["colour"]["temperature"], after["colour"]["fit"]) == (2.0, {"n_rows": 9})
    assert after["colour"]["prompt_hash"] == prompt_hash(colour)
    assert "temperature" not in after["audience"]
    assert again["prompts"]["colour"] == record["prompts"]["colour"]  # whatever the file stated before
    with Classifier.from_config(config) as classifier:
        answers = [classifier.classify(row["query"])["colour"] for row in rows]
    assert sum(not each.abstained for each in answers) == record["prompts"]["colour"]["error"]["n_answered"]
