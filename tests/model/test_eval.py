"""`qcls-gguf eval` on random models and on the embedded one: one pass for all modes, refusals, resumption, reports."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier, WriteConfig
from oracle import PromptSpec

from qcls_gguf import Classifier, load_config
from qcls_gguf.config.raw import raw_config
from qcls_gguf.config.scoring import Scoring
from qcls_gguf.data.labelled import LabelledQuery
from qcls_gguf.errors import ConfigError
from qcls_gguf.evaluation.evaluate import EvaluationSettings, evaluate
from qcls_gguf.evaluation.passes import score_rows
from qcls_gguf.evaluation.records import EvaluationRecord
from qcls_gguf.model.header import read_header
from qcls_gguf.native import NativeModel
from qcls_gguf.opening import ClassifierOpener

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).parent / "qcls-gguf")
HELD_OUT = ROOT / "models" / "tiny" / "heldout.jsonl"
MODES: list[Scoring] = ["tree", "first_token", "joint", "mean"]
STATISTICS = {
    "n_rows", "accuracy", "accuracy_ci", "macro_f1", "log_loss", "n_clipped", "brier", "ece", "agreement_with_joint",
    "label_mass", "coverage", "reliability", "n_non_finite",
}  # fmt: skip
OWN_ROWS: list[dict[str, Any]] = [
    {"query": "red dress for girls", "labels": {"category": "dress", "audience": "girl", "colour": "red"}},
    {"query": "孕妇牛仔裤", "labels": {"category": "jeans", "audience": ["pregnant", "woman"]}},
    {"query": "light pink sweater, wool", "labels": {"category": ["knit", "hoodie"], "colour": "light pink"}},
    {"query": "when does the shop open", "labels": {"category": "none", "audience": "none"}},
]
TEMPLATE = "<|im_start|>user\n{topic} of {query}<|im_end|>\n<|im_start|>assistant\nlabel:"
LABELS = {"item": ("jump", "jumper", "tank top", "none"), "user": ("boy", "girl", "<b>$x$</b>")}
RANDOM_ROWS: list[dict[str, Any]] = [
    {"query": "red dress", "labels": {"item": ["jump", "none"], "user": "girl"}},
    {"query": "coat", "labels": {"user": "boy"}},
    {"query": "红色 & <i>", "labels": {"item": "tank top", "user": ["boy", "girl"]}},
]


def specs(scoring: Scoring = "tree") -> list[PromptSpec]:
    return [
        PromptSpec(name=name, template=TEMPLATE.replace("{topic}", name), labels=labels, scoring=scoring)
        for name, labels in LABELS.items()
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "eval", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Forty rows of the held-out data; a few of our own where the models' training is not there."""
    if not HELD_OUT.exists():
        rows = [{**row, "query": f"{row['query']} {i}"} for i in range(10) for row in OWN_ROWS]
        return write_rows(tmp_path / "rows.jsonl", rows)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(HELD_OUT.read_text(encoding="utf-8").splitlines(keepends=True)[:40]), encoding="utf-8")
    return path


@pytest.fixture
def random_config(make_model: MakeModel, write_config: WriteConfig) -> Path:
    return write_config(make_model(), specs(), flash_attn=False, kv_type="f32")


def evaluated(config: Path, rows: Path, **options: Any) -> dict[str, Any]:
    """The record without times, as JSON has it."""
    options = {"modes": tuple(MODES), "n_latency": 0, **options}
    settings = EvaluationSettings(config=load_config(config), path=rows, **options)
    with ClassifierOpener() as opener:
        return evaluate(settings, opener).to_dict()


def test_one_pass_has_the_scores_of_every_mode(
    random_config: Path, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """The same as those of a classifier opened in each mode."""
    rows = [LabelledQuery(line=i, query=query, labels={}) for i, query in enumerate(("red dress", "", "红色连衣裙"))]
    done = []
    with Classifier.from_config(raw_config(load_config(random_config), "tree"), audit=True) as classifier:
        scores = score_rows(classifier, rows, None, lambda: done.append(1))
    assert len(done) == len(rows)
    for mode in MODES:
        names = ["user"] if mode == "first_token" else ["item", "user"]
        chosen = [spec for spec in specs(mode) if spec.name in names]
        classifier = open_classifier(make_model(), chosen, flash_attn=False, kv_type="f32")
        for row, found in zip(rows, scores, strict=True):
            for answer in classifier.classify(row.query).results:
                assert found.prompts is not None
                here = found.prompts[answer.prompt].probability(mode)
                expected = [score.probability for score in answer.scores]
                np.testing.assert_allclose(here, expected, rtol=0, atol=1e-5)


def test_the_record_of_the_embedded_model(data: Path) -> None:
    done = run("--data", data, "--format", "json", "--latency-sample", 6)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert list(record) == ["data", "config", "model", "environment", "modes", "worst", "non_finite"]
    assert EvaluationRecord.model_validate(record).to_dict() == record
    assert (record["data"]["n_rows"], record["data"]["n_bad"], record["non_finite"]) == (40, 0, [])
    assert record["model"]["quantization"] == "Q8_0"
    assert list(record["modes"]) == MODES
    for mode, found in record["modes"].items():
        assert found.keys() >= STATISTICS
        assert found["accuracy_ci"][0] < found["accuracy"] < found["accuracy_ci"][1] or found["accuracy"] == 1
        assert found["accuracy"] > 0.8
        assert found["p50_ms"] > 0
        assert found["latency"]["n_queries"] == 6
        assert mode in found["latency"]["measured_by"]
        for prompt in found["prompts"].values():
            assert "not_applicable" in prompt or prompt.keys() >= STATISTICS | {"labels", "confusions"}
    modes = record["modes"]
    assert "share their first token" in modes["first_token"]["prompts"]["colour"]["not_applicable"]
    assert modes["first_token"]["n_prompts"] == 6
    assert modes["joint"]["agreement_with_joint"] == 1
    assert modes["first_token"]["n_tokens_new"] < modes["tree"]["n_tokens_new"] < modes["joint"]["n_tokens_new"]
    # where the labels differ in their first token, the tree has no other choice
    for name in ("category", "audience"):
        assert modes["first_token"]["prompts"][name] == modes["tree"]["prompts"][name]
    worst = [row["p_accepted"] for row in record["worst"] if row["mode"] == "tree"]
    assert len(worst) == 10
    assert worst == sorted(worst)


def test_statistics_are_those_of_the_answers(random_config: Path, tmp_path: Path) -> None:
    found = evaluated(random_config, write_rows(tmp_path / "rows.jsonl", RANDOM_ROWS), modes=("tree",))
    tree = found["modes"]["tree"]
    assert (tree["n_rows"], tree["prompts"]["item"]["n_rows"], tree["prompts"]["user"]["n_rows"]) == (5, 2, 3)
    right, brier = 0, 0.0
    with Classifier.from_config(random_config) as classifier:
        for row in RANDOM_ROWS:
            for answer in classifier.classify(row["query"]).results:
                accepted = row["labels"].get(answer.prompt, [])
                if accepted:
                    right += answer.label in accepted
                    p_right = sum(score.probability for score in answer.scores if score.label in accepted)
                    p_other = [score.probability for score in answer.scores if score.label not in accepted]
                    brier += (1 - p_right) ** 2 + sum(p * p for p in p_other)
    assert tree["accuracy"] == pytest.approx(right / 5)
    assert tree["brier"] == pytest.approx(brier / 5, abs=1e-5)
    assert tree["agreement_with_joint"] is None
    assert tree["label_mass"] is None
    assert tree["p50_ms"] is None


def test_an_audit_adds_the_agreement_with_joint(random_config: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", RANDOM_ROWS)
    found = evaluated(random_config, rows, modes=("tree",), audit=True)["modes"]
    assert list(found) == ["tree"]
    assert 0 <= found["tree"]["agreement_with_joint"] <= 1
    assert 0 < found["tree"]["label_mass"]["min"] <= found["tree"]["label_mass"]["mean"] < 1


def test_a_mode_that_no_prompt_can_have(make_model: MakeModel, write_config: WriteConfig, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"query": "x", "labels": {"item": "jump"}}])
    config = write_config(make_model(), specs()[:1])
    found = evaluated(config, rows, modes=("first_token",), n_latency=5)["modes"]["first_token"]
    assert found["not_applicable"] == "no prompt can have it"
    assert found["p50_ms"] is None
    assert "share their first token" in found["prompts"]["item"]["not_applicable"]


def test_csv_is_the_same_as_json_lines(random_config: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["query", "user", "item"])
        writer.writeheader()
        for row in RANDOM_ROWS:
            labels = row["labels"]
            cells = {name: "|".join([label] if isinstance(label, str) else label) for name, label in labels.items()}
            writer.writerow({"query": row["query"], **cells})
    lines = evaluated(random_config, write_rows(tmp_path / "rows.jsonl", RANDOM_ROWS))
    table = evaluated(random_config, path)
    assert table["modes"] == lines["modes"]
    assert [{**row, "line": row["line"] - 1} for row in table["worst"]] == lines["worst"]


def test_bad_rows_are_refused_together_and_before_anything_is_loaded(data: Path) -> None:
    data.write_bytes(data.read_bytes() + b'{"query": "x", "labels": {"colour": "redd"}}\n\xff\n{\n')
    done = run("--data", data)
    assert done.returncode == 2
    assert "3 of 43 rows cannot be used" in done.stderr
    assert "line 41: labels.colour: 'redd' is no label of this prompt, did you mean 'red'?" in done.stderr
    assert "line 42: is not valid UTF-8" in done.stderr
    assert "line 43: is not valid JSON" in done.stderr
    assert "load model" not in done.stderr
    assert done.stdout == ""


def test_too_long_queries_are_refused_before_any_is_computed(random_config: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    rows = [*RANDOM_ROWS, {"query": "long " * 2000, "labels": {"item": "jump"}}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigError, match=r"1 of 4 rows cannot be used(.|\n)*line 4: the query has \d+ tokens"):
        evaluated(random_config, path, resume=kept)
    assert not kept.exists()
    found = evaluated(random_config, path, skip_bad=True)
    clean = evaluated(random_config, write_rows(path, RANDOM_ROWS))
    assert (found["data"]["n_rows"], found["data"]["n_bad"], found["data"]["bad"][0]["line"]) == (3, 1, 4)
    assert found["modes"] == clean["modes"]


def test_bad_rows_are_left_out_and_counted_with_skip_bad(data: Path) -> None:
    good = json.loads(run("--data", data, "--format", "json", "--latency-sample", 0, "--scoring", "tree").stdout)
    data.write_bytes(data.read_bytes() + b"\xff\n{\n")
    done = run("--data", data, "--format", "json", "--latency-sample", 0, "--scoring", "tree", "--skip-bad")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert [row["line"] for row in found["data"]["bad"]] == [41, 42]
    assert found["modes"] == good["modes"]
    table = run("--data", data, "--latency-sample", 0, "--scoring", "tree", "--skip-bad").stdout
    assert "2 rows could not be used and are left out: lines 41, 42" in " ".join(table.split())


def test_data_without_one_usable_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{\n")
    done = run("--data", path, "--skip-bad")
    assert done.returncode == 2
    assert "1 of 1 rows cannot be used" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "--data"),
        (["--data", "missing.jsonl"], 2, "missing.jsonl: cannot be read: No such file"),
        (["--data", str(ROOT)], 2, "cannot be read: Is a directory"),
        (["--data", "DATA", "--scoring", "tre"], 2, "--scoring: 'tre' is not one of tree, first_token, joint, mean"),
        (["--data", "DATA", "--format", "xml"], 2, "--format"),
        (["--data", "DATA", "--latency-sample", "-1"], 2, "--latency-sample"),
        (["--data", "DATA", "--html", "missing/report.html"], 2, "--html missing/report.html: cannot be written"),
        (["--data", "DATA", "--resume", "missing/kept.jsonl"], 2, "--resume missing/kept.jsonl: cannot be read and"),
        (["--data", "DATA", "--resume", "DATA"], 2, "is the data itself"),
        (["--data", "DATA", "--resume", str(ROOT / "README.md")], 2, "line 1 is no result of eval"),
        (["--data", "DATA", "--config", "missing.yaml"], 2, "missing.yaml"),
        (["--data", "DATA", "--model", "missing.gguf"], 3, "missing.gguf"),
    ],
)
def test_refusals_have_their_exit_code_and_say_what(arguments: list[str], code: int, words: str, data: Path) -> None:
    before = data.read_bytes(), (ROOT / "README.md").read_bytes()
    done = run(*[str(data) if argument == "DATA" else argument for argument in arguments])
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert (data.read_bytes(), (ROOT / "README.md").read_bytes()) == before


def test_an_interrupted_run_goes_on_where_it_was(data: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    arguments = ["--data", str(data), "--latency-sample", "0", "--format", "json"]
    limit = time.monotonic() + 60
    with subprocess.Popen(
        [COMMAND, "eval", *arguments, "--resume", kept], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not kept.exists() or kept.read_bytes().count(b"\n") < 5:
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in errors
    n_kept = kept.read_bytes().count(b"\n")
    assert 5 <= n_kept < 40
    before = kept.read_bytes()
    kept.write_bytes(before + b'{"key": "0')  # as if it had died while writing
    resumed, whole = run(*arguments, "--resume", kept), run(*arguments)
    assert resumed.returncode == 0, resumed.stderr
    records = [json.loads(done.stdout) for done in (resumed, whole)]
    for record in records:
        del record["environment"]["date"]
    assert records[0] == records[1]
    assert kept.read_bytes().startswith(before)
    assert len({json.loads(line)["key"] for line in kept.read_text().splitlines()}) >= n_kept


def test_kept_scores_are_taken_for_the_same_run_only(
    random_config: Path, make_model: MakeModel, write_config: WriteConfig, tmp_path: Path
) -> None:
    kept, rows = tmp_path / "kept.jsonl", write_rows(tmp_path / "rows.jsonl", RANDOM_ROWS)

    def n_lines(config: Path, **options: Any) -> int:
        evaluated(config, rows, resume=kept, **options)
        return len(kept.read_text().splitlines())

    assert n_lines(random_config) == 3
    assert n_lines(random_config) == 3
    assert n_lines(random_config, modes=("mean",)) == 3
    assert n_lines(random_config, modes=("tree",)) == 6
    assert n_lines(write_config(make_model(seed=1), specs(), flash_attn=False, kv_type="f32")) == 9
    assert n_lines(write_config(make_model(), specs()[::-1], flash_attn=False, kv_type="f32")) == 12
    first = json.loads(kept.read_text().splitlines()[0])
    for name, labels in LABELS.items():
        first["prompts"][name]["tree"] = [0.0] + [-200.0] * (len(labels) - 1)
    kept.write_text(json.dumps(first) + "\n")
    found = evaluated(random_config, rows, resume=kept, modes=("tree",), audit=True)
    assert found["modes"]["tree"]["n_rows"] == 5
    assert max(row["probability"] for row in found["worst"]) == 1


def test_scores_that_are_not_finite_are_counted_and_named(
    make_model: MakeModel, write_config: WriteConfig, tmp_path: Path
) -> None:
    """The embedding of `~` is not a number."""
    with NativeModel(make_model()) as model:
        token = int(model.tokenize("~", parse_special=False)[0])
    tensor = read_header(make_model()).tensors["token_embd.weight"]
    content = bytearray(make_model().read_bytes())
    start = tensor.offset + 4 * token * tensor.shape[0]
    content[start : start + 4 * tensor.shape[0]] = np.full(tensor.shape[0], np.nan, np.float32).tobytes()
    (damaged := tmp_path / "nan.gguf").write_bytes(content)
    config = write_config(damaged, specs())
    path = write_rows(tmp_path / "rows.jsonl", [*RANDOM_ROWS, {"query": "~", "labels": {"item": "jump"}}])
    done = run("--data", path, "--config", config, "--format", "json", "--resume", tmp_path / "kept.jsonl")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [(row["line"], row["query"]) for row in found["non_finite"]] == [(4, "~")]
    assert "not finite" in found["non_finite"][0]["error"]
    write_rows(path, RANDOM_ROWS)
    clean = json.loads(run("--data", path, "--config", config, "--format", "json").stdout)
    for mode in MODES:
        assert found["modes"][mode]["n_non_finite"] == (1 if mode != "first_token" else 0)
        assert found["modes"][mode]["accuracy"] == clean["modes"][mode]["accuracy"]
        assert found["modes"][mode]["log_loss"] == clean["modes"][mode]["log_loss"]
    table = run("--data", path, "--config", config, "--resume", tmp_path / "kept.jsonl", "--latency-sample", 0)
    assert table.returncode == 0


def test_the_html_report_is_one_file(random_config: Path, tmp_path: Path) -> None:
    rows, html = write_rows(tmp_path / "rows.jsonl", RANDOM_ROWS), tmp_path / "report.html"
    done = run("--data", rows, "--config", random_config, "--html", html, "--latency-sample", 2)
    assert done.returncode == 0, done.stderr
    text = html.read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href|url)\s*[=(](?!\"data:)", text)
    assert "<script" not in text
    assert "红色 &amp; &lt;i&gt;" in text
    assert "&lt;b&gt;$x$&lt;/b&gt;" in text
    assert text.count('alt="reliability diagram"') == 3
    assert text.count('alt="confusion matrix of') == 7  # first_token is not applicable to one prompt
    assert "share their first token" in text


def test_the_table_and_the_steps(data: Path) -> None:
    done = run("--data", data, "--scoring", "tree", "--scoring", "joint", "--latency-sample", 3)
    assert done.returncode == 0
    for word in ("accuracy (95 %)", "macro-F1", "ECE", "accuracy of", "category", "worst by tree"):
        assert word in done.stdout
    assert "first_token" not in done.stdout
    assert "load model" in done.stderr
    assert run("--data", data, "--scoring", "tree", "--latency-sample", 0, "--quiet").stderr == ""
