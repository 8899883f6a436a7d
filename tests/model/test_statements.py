"""Statements from labelled rows to answers, tables, requests and the check of new rows."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from calibrations import FASHION, changed, fashion
from evaluations import ROOT, evaluated, run, write_rows
from served import Server

from qcls_gguf import Classifier, ConfigError, load_config
from qcls_gguf.config.calibration_file import calibration_text, prompt_hash
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.tuning.calibrate import FitSettings
from qcls_gguf.tuning.statements import Asked, StatementRecord, state

__all__ = ["fashion"]  # a fixture
N = 240
QUERY = "something blue for boys"


def rows(name: str, begin: int, end: int) -> list[dict[str, Any]]:
    """Labelled queries of the embedded model's own prompts."""
    lines = (ROOT / "models" / "tiny" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[begin:end]
    found = [json.loads(line) for line in lines]
    return [{**row, "labels": {name: row["labels"][name] for name in FASHION}} for row in found]


def stated(config: Path, data: list[dict[str, Any]], out: Path, **asked: Any) -> tuple[StatementRecord, str | None]:
    path = write_rows(out.with_suffix(".jsonl"), data)
    with ClassifierOpener() as opener:
        record, text = state(FitSettings(config=load_config(config), data=path, out=out), Asked(**asked), opener)
    if text is not None:
        out.write_text(text, encoding="utf-8")
    return record, text


def test_statements_hold_for_answers_everywhere_until_the_answers_change(fashion: Path, tmp_path: Path) -> None:
    """Stated once, used by Python, `run`, `label` and `serve`, checked on new rows; refused for other answers."""
    sets: dict[str, Any] = {"coverage": 0.9, "method": "aps", "randomised": True}
    config = changed(changed(fashion, calibration="c.yaml", sets=sets), prompt="audience", sets={"coverage": 0.95})
    data = rows("dev", 0, N)
    out = tmp_path / "c.yaml"
    record, _ = stated(config, [*data, data[0]], out, target_error=0.1, fallback="ask")
    assert StatementRecord.model_validate(record.to_dict()) == record
    assert record.n_duplicates == 1
    colour = record.prompts["colour"]
    assert colour.error
    assert colour.sets
    assert colour.answered is not None
    assert colour.bound is not None
    assert colour.bound < 0.1
    assert 0.5 < colour.answered < 1
    assert yaml.safe_load(out.read_text(encoding="utf-8"))["stated"]["n_rows"] == N + 1

    n_abstained = 0
    with Classifier.from_config(config) as classifier:
        results = [classifier.classify(row["query"]) for row in data[:60]]
        answer = classifier.classify(QUERY)
        asked_again = classifier.classify_batch([QUERY, "red", QUERY])
    for result in results:
        for each in result.results:
            error = record.prompts[each.prompt].error
            assert error
            assert each.abstained == (each.probability < error.threshold) == (each.label == "ask")
            n_abstained += each.abstained
            found, p = record.prompts[each.prompt].sets, {score.label: score.probability for score in each.scores}
            assert found
            assert each.label_set is not None
            assert set(each.label_set) <= set(p)
            if found.asked.method == "lac":
                assert each.label_set == tuple(label for label in p if 1 - p[label] <= found.thresholds[0])
            assert each.to_dict()["label_set"] == list(each.label_set)
    assert n_abstained
    assert asked_again[0]["colour"].label_set == asked_again[2]["colour"].label_set
    assert {len(each["colour"].label_set or ()) for each in results} >= {0, 1}

    (tmp_path / "rows.csv").write_text(f"query\n{QUERY}\n", encoding="utf-8")
    labelled = run("label", tmp_path / "rows.csv", "--config", config, "--out", tmp_path / "out.parquet", "--quiet")
    assert labelled.returncode == 0, labelled.stderr
    (row,) = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert {name: tuple(row[f"{name}_set"]) for name in FASHION} == {
        each.prompt: each.label_set for each in answer.results
    }
    assert row["error"] is None

    with Server(config=config) as server:
        body = {"model": "default/colour", "input": QUERY}
        found = server.http.post("/classify", json=body).json()["data"][0]
        assert tuple(found["x_label_set"]) == answer["colour"].label_set
        own = server.classify(query=QUERY).json()["results"]
        assert [tuple(each["label_set"]) for each in own] == [each.label_set for each in answer.results]
        choices = [{"value": score.label} for score in answer["colour"].scores]
        question = {"type": "choice", "instructions": "@colour", "choices": choices}
        body = {"model": "default", "input": QUERY, "questions": [question]}
        (decided,) = server.http.post("/v1/decisions", json=body).json()["answers"]
        assert tuple(decided["x_label_set"]) == answer["colour"].label_set

    new = rows("heldout", 0, N)
    both = write_rows(tmp_path / "new.jsonl", [*new, *data[:5]])
    check = evaluated(config, both, modes=("tree",), check_error=True)
    assert check["check"]["n_known"] == 5
    assert [(each["statement"], each["n_rows"], each["holds"]) for each in check["check"]["checks"]] == [
        *[("error", N, True), ("coverage", N, True)] * 2,
    ]
    for row in new:
        row["labels"]["colour"] = "red"
    eval_ = ("eval", "--config", config, "--scoring", "tree", "--check-error", "--quiet", "--data")
    wrong = run(*eval_, write_rows(tmp_path / "wrong.jsonl", new))
    assert wrong.returncode == 1, wrong.stderr
    assert wrong.stdout.count("FAILS") == 2
    same = run(*eval_, tmp_path / "c.jsonl")
    assert same.returncode == 2
    assert "was made with all of these queries: give other rows" in same.stderr

    for change, words in (
        ({"prompt": "colour", "temperature": 2.0}, "prompts.colour: was stated of other answers"),
        ({"prompt": "colour", "sets": {"coverage": 0.8}}, "prompts.colour: has no such label sets"),
        ({"prompt": "colour", "min_confidence": 0.3, "fallback": "x"}, "and the configuration min_confidence"),
    ):
        with pytest.raises(ConfigError, match=re.escape(words)):
            Classifier.from_config(changed(config, **change))


def test_what_cannot_be_stated_is_refused_with_the_rows_that_are_needed(fashion: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "few.jsonl", rows("dev", 0, 40))
    few = run(*("calibrate", "--config", fashion, "--target-error", 0.04), "--out", tmp_path / "c.yaml", "--data", data)
    assert few.returncode == 1, few.stderr
    assert " ".join(few.stdout.split()).count("40 labelled rows are too few, 91 are needed") == 2
    assert not (tmp_path / "c.yaml").exists()

    config = changed(fashion, calibration="c.yaml", sets={"coverage": 0.9, "by_label": True})
    one_label = [{**row, "labels": {"colour": "none"}} for row in rows("dev", 0, 60)]
    with pytest.raises(ConfigError, match="no row is labelled for prompt audience"):
        stated(config, one_label, tmp_path / "c.yaml")
    with ClassifierOpener() as opener:
        settings = FitSettings(
            config=load_config(config), data=tmp_path / "c.jsonl", out=tmp_path / "c.yaml", names=("colour",)
        )
        record, text = state(settings, Asked(target_error=0.2), opener)
    assert text is None
    assert record.prompts["colour"].n_rows == 60
    assert any("sets with coverage 0.9 need 9 rows of each label, and there are: 'red' 0" in each or "0" in each
               for each in record.prompts["colour"].refused)  # fmt: skip


def test_statements_keep_the_fits_that_they_stand_on(fashion: Path, tmp_path: Path) -> None:
    """The probabilities are those of the configured temperature, whose entry stays."""
    config = changed(fashion, calibration="c.yaml")
    colour = load_config(fashion).prompts[1]
    model = hashlib.sha256((ROOT / "models" / "fashion-tiny-Q8_0.gguf").read_bytes()).hexdigest()
    entry = {"prompt_hash": prompt_hash(colour), "scoring": "tree", "temperature": 2.0, "fit": {"n_rows": 9}}
    (tmp_path / "c.yaml").write_text(calibration_text(model, {"colour": entry}), encoding="utf-8")
    with ClassifierOpener() as opener:
        data = write_rows(tmp_path / "rows.jsonl", rows("dev", 0, N))
        settings = FitSettings(config=load_config(config), data=data, out=tmp_path / "c.yaml", force=True)
        record, text = state(settings, Asked(target_error=0.1), opener)
        assert text is not None
        (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
        again = state(replace(settings, names=("colour",)), Asked(target_error=0.1), opener)[0]
    after = yaml.safe_load(text)["prompts"]
    assert {key: after["colour"][key] for key in entry} == entry
    assert "temperature" not in after["audience"]
    assert again.prompts["colour"] == record.prompts["colour"]  # whatever the file stated before
    with Classifier.from_config(config) as classifier:
        answers = [classifier.classify(row["query"])["colour"] for row in rows("dev", 0, N)]
    error = record.prompts["colour"].error
    assert error
    assert sum(not each.abstained for each in answers) == error.n_answered
