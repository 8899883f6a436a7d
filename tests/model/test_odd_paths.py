"""Paths with bytes that are no UTF-8, as file systems of Linux allow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeModel

from qcls_gguf.config.schema import ModelConfig
from qcls_gguf.report.files import write_file
from qcls_gguf.report.record import json_text


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    folder = tmp_path / os.fsdecode(b"odd \xff\xe9")
    folder.mkdir()
    return folder


def test_json_and_reports_have_them_as_escapes(odd: Path) -> None:
    text = json_text({"path": str(odd), "query": "été"})
    assert "\\udcff" in text
    assert "été" in text
    assert json.loads(text.encode()) == {"path": str(odd), "query": "été"}
    write_file(odd / "report.html", f"<p>{odd}", "--html")
    assert (odd / "report.html").read_text("utf-8").endswith("odd \\udcff\\udce9")


def test_a_model_may_have_them(odd: Path) -> None:
    assert ModelConfig(path=odd / "m.gguf").path == odd / "m.gguf"


def test_a_table_and_its_output_may_have_them(odd: Path, make_model: MakeModel) -> None:
    (odd / "m.gguf").symlink_to(make_model())
    (odd / "q.csv").write_text("query\nred dress\nblue jeans\n")
    names = [odd / "q.csv", "--out", odd / "out", "-c", "mission", "-m", odd / "m.gguf", "--n-gpu-layers", "0"]
    words = ["label", *map(str, names), "--batch", "1"]
    for said in ("2 rows in 1 shard", "nothing is left"):
        done = subprocess.run(
            [sys.executable, "-m", "qcls_gguf.cli.command", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stdout + done.stderr
    assert (odd / "out" / "q-00000.csv").read_text().count("\n") == 3
