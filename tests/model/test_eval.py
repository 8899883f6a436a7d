"""`qcls-gguf eval` on random models and on the embedded one: statistics, reports, refusals."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import invoked, printed, refused, tiny_rows, write_rows
from conftest import MakeModel, WriteConfig
from evaluations import LABELS, evaluated, specs
from gguf_parts import with_nan_embedding

from qcls_gguf import Classifier, ConfigError
from qcls_gguf.evaluation.evaluate import EvaluationRecord

RANDOM_ROWS: list[dict[str, Any]] = [
    {"query": "red dress", "labels": {"item": ["jump", "none"], "user": "girl"}},
    {"query": "coat", "labels": {"user": "boy"}},
    {"query": "红色 & <i>", "labels": {"item": "tank top", "user": ["boy", "girl"]}},
]
STATISTICS = {
    "n_rows", "accuracy", "accuracy_ci", "balanced_accuracy", "majority", "macro_f1", "log_loss", "ece",
    "reliability",
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Forty rows of the held-out data."""
    return write_rows(tmp_path / "rows.jsonl", tiny_rows("heldout")[:40])


@pytest.fixture
def random_config(write_config: WriteConfig) -> Path:
    """A random model with F32 weights and two prompts."""
    return write_config("qwen3", specs(), flash_attn=False, kv_type="f32")


@pytest.mark.parametrize("scoring", ["tree", "joint"])
def test_the_record_of_the_embedded_model(data: Path, scoring: str) -> None:
    record = json.loads(printed("eval", "--data", data, "--scoring", scoring, "--format", "json"))
    assert list(record) == [
        "data", "config", "model", "warnings", "environment", "together", "prompts", "words",
        "n_known", "non_finite",
    ]  # fmt: skip
    assert {prompt["scoring"] for prompt in record["config"]["prompts"]} == {scoring}
    assert EvaluationRecord.model_validate(record).to_dict() == record
    assert (record["data"]["n_rows"], record["data"]["n_bad"], record["non_finite"]) == (40, 0, [])
    assert record["model"]["quantization"] == "Q8_0"
    found = record["together"]
    assert found.keys() == STATISTICS
    assert found["accuracy_ci"][0] < found["accuracy"] < found["accuracy_ci"][1]
    assert found["accuracy"] > 0.8 > found["majority"]
    for prompt in record["prompts"].values():
        assert prompt.keys() >= STATISTICS | {"labels", "confusion_matrix", "n_abstained"}


def test_what_is_likely_wrong_is_told(write_config: WriteConfig, tmp_path: Path) -> None:
    """One label answers all rows: no better than it, and the others are never answered."""
    config = write_config("qwen3", specs()[1:])
    with Classifier.from_config(config) as classifier:
        answers = [(f"query {n}", classifier.classify(f"query {n}").labels["user"]) for n in range(80)]
    top = max(LABELS["user"], key=[label for _, label in answers].count)
    alike = [query for query, label in answers if label == top][:20]
    other = next(label for label in LABELS["user"] if label != top)
    rows = [{"query": query, "labels": {"user": other if n < 8 else top}} for n, query in enumerate(alike)]
    said = " ".join(printed("eval", "--data", write_rows(tmp_path / "r.jsonl", rows), "--config", config).split())
    assert "user: is no better than one label for all rows (60.0% are right)" in said
    assert f"user: never answers '{other}'" in said
    assert f"{top} 12 20 100.0% 60.0%" in said
    assert f"{other} 8 0 0.0%" in said


def test_a_file_of_heads_that_is_missing_is_told_before_any_work(random_config: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", RANDOM_ROWS)
    random_config.write_text(f"{random_config.read_text()}\nheads: missing.npz\n")
    for command in (["eval"], ["calibrate", "--target-error", 0.1], ["calibrate"]):
        said = refused(*command, "--data", rows, "--config", random_config)
        assert "missing.npz" in said
        assert "load model" not in said


def test_the_page_is_one_file_and_the_terminal_shows_tables(random_config: Path, tmp_path: Path) -> None:
    rows, html = write_rows(tmp_path / "rows.jsonl", RANDOM_ROWS), tmp_path / "report.html"
    done = invoked("eval", "--data", rows, "--config", random_config, "--html", html)
    assert done.exit_code == 0, done.stderr
    for word in ("accuracy (95 %)", "macro-F1", "ECE", "balanced", "majority", "recall", "item"):
        assert word in done.stdout
    assert "load model" in done.stderr
    text = html.read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href|url)\s*[=(]", text)
    assert "<script" not in text
    assert "&lt;b&gt;$x$&lt;/b&gt;" in text
    assert (text.count(">Reliability<"), text.count(">Confusion matrix of")) == (1, len(LABELS))


def test_bad_rows_are_refused_together_and_before_anything_is_loaded(data: Path) -> None:
    data.write_bytes(data.read_bytes() + b'{"query": "x", "labels": {"colour": "redd"}}\n\xff\n{\n')
    said = refused("eval", "--data", data)
    assert "3 of 43 rows cannot be used" in said
    assert "line 41: labels.colour: 'redd' is no label of this prompt, did you mean red?" in said
    assert "line 42: is not valid UTF-8" in said
    assert "and 1 more" in said
    assert "load model" not in said


def test_too_long_queries_are_refused_before_any_is_computed(random_config: Path, tmp_path: Path) -> None:
    rows = [*RANDOM_ROWS, {"query": "long " * 2000, "labels": {"item": "jump"}}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigError, match=r"1 of 4 rows cannot be used(.|\n)*line 4: the query has \d+ characters"):
        evaluated(random_config, path)
    found = evaluated(random_config, path, skip_bad=True)
    clean = evaluated(random_config, write_rows(path, RANDOM_ROWS))
    assert (found["data"]["n_rows"], found["data"]["n_bad"], found["data"]["bad"][0]["line"]) == (3, 1, 4)
    assert found["prompts"] == clean["prompts"]


def test_scores_not_finite_are_counted(make_model: MakeModel, write_config: WriteConfig, tmp_path: Path) -> None:
    """The embedding of `~` is not a number."""
    config = write_config(with_nan_embedding(make_model(), "~", tmp_path / "nan.gguf"), specs())
    path = write_rows(tmp_path / "rows.jsonl", [*RANDOM_ROWS, {"query": "~", "labels": {"item": "jump"}}])
    done = invoked("eval", "--data", path, "--config", config, "--format", "json")
    assert done.exit_code == 1, done.stderr
    found = json.loads(done.stdout)
    (lost,) = found["non_finite"]
    assert (lost["line"], "not finite" in lost["reason"]) == (4, True)
    write_rows(path, RANDOM_ROWS)
    clean = json.loads(printed("eval", "--data", path, "--config", config, "--format", "json"))
    for name in ("accuracy", "log_loss"):
        assert found["together"][name] == clean["together"][name]
