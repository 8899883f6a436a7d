"""`qcls-gguf label` as a command: its options, its summary and its exit codes."""

from pathlib import Path

import pytest
from labelled_tables import CONFIG, QUERIES, parquet, rows_of
from typer.testing import CliRunner

from qcls_gguf.cli.app import app
from qcls_gguf.labelling import worker
from qcls_gguf.labelling.records import LabellingRecord


def test_the_command_measures_batches_prints_a_summary_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "WORTH_MEASURING", 12)
    path = parquet(tmp_path / "in.parquet", list(QUERIES[:12]))
    line = ["label", str(path), "--out", str(tmp_path / "out"), "--config", CONFIG, "--threads", "1"]
    done = CliRunner().invoke(app, [*line, "--summary", "json", "--html", str(tmp_path / "look.html")])
    assert done.exit_code == 0, done.stderr
    record = LabellingRecord.model_validate_json(done.stdout)
    assert record.speed.measured[0].size == 1
    assert record.speed.batch in [each.size for each in record.speed.measured]
    assert 0 < record.speed.measuring_s < record.speed.seconds
    assert "rows by probability" in (tmp_path / "look.html").read_text()
    done = CliRunner().invoke(app, line)
    assert "1 of 1 shard done already" in done.stderr
    assert "12 labelled" in done.stdout


def test_the_commands_options_reach_the_run(tmp_path: Path) -> None:
    path, out, cache = tmp_path / "in.csv", tmp_path / "out", tmp_path / "cache.sqlite"
    path.write_text("query\nred dress\nblue jeans\nred dress\nwool coat\n")
    line = ["label", str(path), "--out", str(out), "--config", CONFIG, "--threads", "1", "--batch", "2", "--quiet"]
    line += ["--summary", "json", "--no-state-cache", "--no-try-model"]
    chosen = ["--limit", "3", "--prefix", "m_", "--top-k", "2", "--format", "jsonl"]
    chosen += ["--cache", str(cache), "--part", "1/2", "--shard-rows", "3"]

    def label(*more: str) -> LabellingRecord:
        done = CliRunner().invoke(app, [*line, *more])
        assert done.exit_code == 0, done.stderr
        return LabellingRecord.model_validate_json(done.stdout)

    record = label(*chosen)
    assert (record.n_rows, record.speed.batch, record.speed.n_computed) == (3, 2, 2)
    rows = rows_of(out / "in-00000.jsonl")
    assert [row["m_category"] for row in rows] == ["dress", "jeans", "dress"]
    assert {len(row["m_category_scores"]) for row in rows} == {2}
    assert label("--overwrite").n_rows == 4


def test_a_part_is_two_numbers(tmp_path: Path) -> None:
    for part in ("2", "0/2", "3/2", "a/b", "1/-2"):
        done = CliRunner().invoke(app, ["label", "in.csv", "--out", str(tmp_path), "--part", part])
        assert done.exit_code == 2
        assert f"--part {part}: give two numbers, the first one at most the second, as in 2/4" in done.stderr


def test_what_no_row_of_is_labelled_is_a_failure_and_wrong_columns_and_outputs_are_usage(tmp_path: Path) -> None:
    path = parquet(tmp_path / "in.parquet", [None, " "])
    for arguments, code, words in (
        (["--out", "a"], 1, ""),
        (["--out", "out.xlsx"], 2, "name a file that ends in .parquet, .csv, .tsv, .jsonl, or a folder"),
        (["--out", "b", "--query-column", "text"], 2, "no column 'text': the columns are 'id', 'query'; name the one"),
    ):
        out = str(tmp_path / arguments[1])
        done = CliRunner().invoke(app, ["label", str(path), "--config", CONFIG, "--out", out, *arguments[2:]])
        assert done.exit_code == code
        assert words in done.stderr
