"""`qcls-gguf eval` on random models and on the embedded one: one pass for all modes, statistics, reports."""

import json
import re
from pathlib import Path

import numpy as np
from conftest import MakeModel, OpenClassifier, WriteConfig
from evaluations import MODES, RANDOM_ROWS, data, evaluated, random_config, run_eval, specs, write_rows

from qcls_gguf import Classifier, load_config
from qcls_gguf.config.schema import raw_config
from qcls_gguf.evaluation.passes import row_scores, score_tables
from qcls_gguf.evaluation.records import EvaluationRecord

__all__ = ["data", "random_config"]  # fixtures
STATISTICS = {
    "n_rows", "accuracy", "accuracy_ci", "macro_f1", "log_loss", "n_clipped", "brier", "ece", "agreement_with_joint",
    "label_mass", "coverage", "reliability",
}  # fmt: skip


def test_one_pass_has_the_scores_of_every_mode(
    random_config: Path, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """The same as those of a classifier opened in each mode."""
    queries = ("red dress", "", "红色连衣裙")
    with Classifier.from_config(raw_config(load_config(random_config), "tree"), audit=True) as classifier:
        tables = score_tables(classifier.prompts, [row_scores(classifier.classify(query)) for query in queries])
    for mode in MODES:
        names = ["user"] if mode == "first_token" else ["item", "user"]
        chosen = [spec for spec in specs(mode) if spec.name in names]
        classifier = open_classifier(make_model(), chosen, flash_attn=False, kv_type="f32")
        for i, query in enumerate(queries):
            for answer in classifier.classify(query).results:
                here = tables[answer.prompt].probability(mode)[i]
                expected = [score.probability for score in answer.scores]
                np.testing.assert_allclose(here, expected, rtol=0, atol=1e-5)


def test_the_record_of_the_embedded_model(data: Path) -> None:
    done = run_eval("--data", data, "--format", "json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert list(record) == [
        "data", "config", "model", "warnings", "environment", "compared_prompts", "modes", "worst", "non_finite",
    ]  # fmt: skip
    assert EvaluationRecord.model_validate(record).to_dict() == record
    assert (record["data"]["n_rows"], record["data"]["n_bad"], record["non_finite"]) == (40, 0, [])
    assert record["model"]["quantization"] == "Q8_0"
    assert list(record["modes"]) == MODES
    for found in record["modes"].values():
        assert found.keys() >= STATISTICS
        assert found["accuracy_ci"][0] < found["accuracy"] < found["accuracy_ci"][1] or found["accuracy"] == 1
        assert found["accuracy"] > 0.8
        assert 0 < found["label_mass"]["min"] <= found["label_mass"]["mean"] <= 1
        for prompt in found["prompts"].values():
            assert "not_applicable" in prompt or prompt.keys() >= STATISTICS | {"labels", "confusions"}
    modes = record["modes"]
    assert "share their first token" in modes["first_token"]["prompts"]["colour"]["not_applicable"]
    assert modes["first_token"]["n_prompts"] == 6
    assert modes["joint"]["agreement_with_joint"] == 1
    # where the labels differ in their first token, the tree has no other choice
    for name in ("category", "audience"):
        assert modes["first_token"]["prompts"][name] == modes["tree"]["prompts"][name]
    worst = [row["p_accepted"] for row in record["worst"] if row["mode"] == "tree"]
    assert len(worst) == 10
    assert worst == sorted(worst)


def test_a_mode_that_no_prompt_can_have(make_model: MakeModel, write_config: WriteConfig, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"query": "x", "labels": {"item": "jump"}}])
    config = write_config(make_model(), specs()[:1])
    found = evaluated(config, rows, modes=("first_token",))["modes"]["first_token"]
    assert found["not_applicable"] == "no prompt can have it"
    assert "share their first token" in found["prompts"]["item"]["not_applicable"]


def test_the_page_is_one_file_and_the_terminal_shows_tables(random_config: Path, tmp_path: Path) -> None:
    rows, html = write_rows(tmp_path / "rows.jsonl", RANDOM_ROWS), tmp_path / "report.html"
    done = run_eval("--data", rows, "--config", random_config, "--html", html)
    assert done.returncode == 0, done.stderr
    for word in ("accuracy (95 %)", "macro-F1", "ECE", "accuracy of", "item", "Worst-scored rows"):
        assert word in done.stdout
    assert "load model" in done.stderr
    text = html.read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href|url)\s*[=(](?!\"data:)", text)
    assert "<script" not in text
    assert "红色 &amp; &lt;i&gt;" in text
    assert "&lt;b&gt;$x$&lt;/b&gt;" in text
    assert text.count('alt="reliability diagram"') == 3
    assert text.count('alt="confusion matrix of') == 7  # first_token is not applicable to one prompt
    assert "share their first token" in text
