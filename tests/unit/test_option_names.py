"""Messages name what is wrong as Python does; only the command line speaks of its options."""

import re
from pathlib import Path

import pytest

import qcls_gguf.cli.app  # noqa: F401  (makes the options known)
from qcls_gguf.cli import options
from qcls_gguf.cli.terminal import with_options

PACKAGE = Path(__file__).parents[2] / "qcls_gguf"


def test_names_in_backquotes_become_options() -> None:
    assert with_options("`data` x.csv: leave rows out by `skip_bad`") == "--data x.csv: leave rows out by --skip-bad"
    for text in ("run `qcls-gguf calibrate` again", "data, `dates`"):
        assert with_options(text) == text


def test_help_needs_no_schema_file_which_a_shell_empties_for_the_command_that_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = options._definitions()
    (tmp_path / "empty.json").touch()
    monkeypatch.setattr(options, "schema_path", lambda: tmp_path / "empty.json")
    assert options._definitions.__wrapped__() == whole


def test_no_module_below_the_command_line_names_an_option() -> None:
    named = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        if room == "cli" or path.name == "servers.py":  # which shows how to start another program
            continue
        text = path.read_text(encoding="utf-8")
        named += [(path.name, option) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)]
    assert named == []
