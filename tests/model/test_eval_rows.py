"""`qcls-gguf eval`: rows that cannot be used, refusals, scores that are not finite."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import MakeModel, WriteConfig
from evaluations import MODES, RANDOM_ROWS, data, evaluated, random_config, run_eval, specs, write_rows

from qcls_gguf.errors import ConfigError
from qcls_gguf.model.header import read_header
from qcls_gguf.native import NativeModel

__all__ = ["data", "random_config"]  # fixtures


def test_bad_rows_are_refused_together_and_before_anything_is_loaded(data: Path) -> None:
    data.write_bytes(data.read_bytes() + b'{"query": "x", "labels": {"colour": "redd"}}\n\xff\n{\n')
    done = run_eval("--data", data)
    assert done.returncode == 2
    assert "3 of 43 rows cannot be used" in done.stderr
    assert "line 41: labels.colour: 'redd' is no label of this prompt, did you mean red?" in done.stderr
    assert "line 42: is not valid UTF-8" in done.stderr
    assert "line 43: is not valid JSON" in done.stderr
    assert "load model" not in done.stderr
    assert done.stdout == ""


def test_too_long_queries_are_refused_before_any_is_computed(random_config: Path, tmp_path: Path) -> None:
    rows = [*RANDOM_ROWS, {"query": "long " * 2000, "labels": {"item": "jump"}}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigError, match=r"1 of 4 rows cannot be used(.|\n)*line 4: the query has \d+ characters"):
        evaluated(random_config, path)
    found = evaluated(random_config, path, skip_bad=True)
    clean = evaluated(random_config, write_rows(path, RANDOM_ROWS))
    assert (found["data"]["n_rows"], found["data"]["n_bad"], found["data"]["bad"][0]["line"]) == (3, 1, 4)
    assert found["modes"] == clean["modes"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--data", "missing.jsonl"], 2, "missing.jsonl: cannot be read: No such file"),
        (["--data", "DATA", "--scoring", "tre"], 2, "--scoring: 'tre' is not one of tree, first_token, joint, mean"),
        (["--data", "DATA", "--html", "missing/report.html"], 2, "--html missing/report.html: cannot be written"),
        (["--data", "DATA", "--resume", "a"], 2, "--resume was removed: every row is scored again; give fewer rows"),
    ],
)
def test_refusals_have_their_exit_code_and_say_what(arguments: list[str], code: int, words: str, data: Path) -> None:
    done = run_eval(*[str(data) if argument == "DATA" else argument for argument in arguments])
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


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
    done = run_eval("--data", path, "--config", config, "--format", "json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    (lost,) = found["non_finite"]
    assert (lost["line"], "not finite" in lost["reason"]) == (4, True)
    write_rows(path, RANDOM_ROWS)
    clean = json.loads(run_eval("--data", path, "--config", config, "--format", "json").stdout)
    for mode in MODES:
        assert found["modes"][mode]["accuracy"] == clean["modes"][mode]["accuracy"]
        assert found["modes"][mode]["log_loss"] == clean["modes"][mode]["log_loss"]
