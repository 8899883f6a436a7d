"""The command line, in a process of its own and in the test's, and labelled rows for it."""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from typer.testing import CliRunner, Result

from qcls_gguf.cli.app import app

ROOT = Path(__file__).parents[1]
COMMAND = str(Path(sys.executable).with_name("qcls-gguf"))


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; options: of `subprocess.run`."""
    line = [COMMAND, *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, **options)


def invoked(*words: object, stdin: str = "") -> Result:
    """The command in this process, which saves the start of an interpreter; an error of Python's own is raised."""
    try:
        return CliRunner().invoke(app, [*map(str, words)], input=stdin, catch_exceptions=False)
    finally:  # what the command prints of the log it prints to streams that are gone now
        for name in ("qcls_gguf", "qcls_gguf.llama"):
            logger = logging.getLogger(name)
            logger.handlers, logger.filters = [logging.NullHandler()], []
            logger.setLevel(logging.NOTSET)


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


def tiny_rows(name: Literal["dev", "heldout"]) -> list[dict[str, Any]]:
    """The embedded model's labelled queries: those that are nobody's, and those held out."""
    lines = (ROOT / "models" / "tiny" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def change(path: Path, **keys: Any) -> Path:
    """Give a configuration other top-level keys."""
    tree = yaml.safe_load(path.read_text(encoding="utf-8")) | keys
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    return path
