"""The command line, in a process of its own and in the test's, and labelled rows for it."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import typer
import yaml
from typer.testing import CliRunner, Result

from qcls_gguf.cli.app import app
from qcls_gguf.config.yaml_values import load_yaml

ROOT = Path(__file__).parents[1]
COMMAND = str(Path(sys.executable).with_name("qcls-gguf"))
COMMANDS = typer.main.get_group(app).commands


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; options: of `subprocess.run`."""
    line = [COMMAND, *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, **options)


@contextmanager
def _own_log() -> Iterator[None]:
    """What a command prints of the log it prints to streams that are gone afterwards."""
    try:
        yield
    finally:
        for name in ("qcls_gguf", "qcls_gguf.llama"):
            logger = logging.getLogger(name)
            logger.handlers, logger.filters = [logging.NullHandler()], []
            logger.setLevel(logging.NOTSET)


def invoked(*words: object) -> Result:
    """The command in this process, which saves the start of an interpreter; an error of Python's own is raised."""
    with _own_log():
        return CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)


def check_usage(name: str, words: Sequence[str]) -> None:
    """Raise what a command would refuse as usage."""
    with _own_log():
        COMMANDS[name].make_context(name, [*words])


def printed(*words: object) -> str:
    """What the command, in this process, writes to standard output; it ends well."""
    done = invoked(*words)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def refused(*words: object, code: int = 2) -> str:
    """What the command, in this process, writes to standard error when it ends with this code and prints nothing."""
    done = invoked(*words)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    return done.stderr


def tiny_rows(name: Literal["dev", "heldout"], *prompts: str) -> list[dict[str, Any]]:
    """The embedded model's labelled queries, those that are nobody's or those held out; labelled for these prompts."""
    lines = (ROOT / "models" / "tiny" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [{**row, "labels": {name: row["labels"][name] for name in prompts or row["labels"]}} for row in rows]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def change(path: Path, **keys: Any) -> Path:
    """Give a configuration other top-level keys."""
    tree = load_yaml(path.read_text(encoding="utf-8")).values | keys
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    return path


PLAIN: Sequence[tuple[str, int, str]] = (
    ("models", 0, ""),
    ("init --labels color=red,blue,none --out new.yaml", 0, "wrote new.yaml"),
    ("init --data rows.jsonl --model (embedded) --out tried.yaml --quick", 0, "wrote tried.yaml"),
    ("inspect -c mission", 0, ""),
    ("run -c mission --query dress --format labels", 0, ""),
    ("eval -c mission --data rows.jsonl --html page.html", 0, ""),
    ("calibrate -c mission --data rows.jsonl --out fit.json", 1, "no fit lowers the held-out log-loss"),
    ("learn -c mission --data rows.jsonl --out heads.gguf", 1, "no head is better than the prompts"),
    ("bench -c mission --requests 2 --queries rows.jsonl", 0, ""),
    ("compare -c mission --rounds 2 --query dress --method naive", 0, ""),
    ("label -c mission rows.jsonl --out out.jsonl", 2, "pip install 'qcls-gguf[label]'"),
    ("serve -c mission", 2, "pip install 'qcls-gguf[serve]'"),
)
"""What every command does without an extra, in a folder with `rows.jsonl`: words, exit code, words that it says."""


def write_plain_rows(folder: Path) -> None:
    """The rows of PLAIN."""
    write_rows(folder / "rows.jsonl", tiny_rows("dev", "category", "audience")[:60])
