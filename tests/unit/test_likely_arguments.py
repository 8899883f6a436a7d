"""The command line's options, and what it says of arguments in the wrong place."""

import re
from pathlib import Path

import pytest
from commands import printed, refused

import qcls_gguf.cli.app  # noqa: F401  (makes the options known)
from qcls_gguf.cli.terminal import with_options


@pytest.fixture(autouse=True)
def _a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-q", "red", "dress"], "write --query dress, and put a text of several words in quotes"),
        (["calibrate", "data.csv"], "calibrate takes no argument 'data.csv': write --queries data.csv"),
        (["run", "-t", "1", "-"], "write --queries -"),
        (["run", "ollama:qwen3:8b"], "write --model ollama:qwen3:8b"),
        (["inspect", "my.yaml"], "write --config my.yaml"),
        (["run", "mission"], "write --config mission"),
        (["schema", "x"], "schema takes no argument 'x': `--help` lists its options"),
        (["lable"], "Did you mean 'label'?"),
        (["help", "nothing"], "No such command 'nothing'."),
    ],
)
def test_an_argument_in_the_wrong_place_is_told_its_place(arguments: list[str], words: str) -> None:
    assert words in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "--input=texts.txt"], "--input was removed: use --queries"),
        (["bench", "-i", "texts.txt"], "-i was removed: use --queries"),
        (["label", "a.csv", "--column", "text"], "--column was removed: use --query-column"),
    ],
)
def test_an_option_that_was_replaced_is_refused_with_the_new_one(arguments: list[str], line: str) -> None:
    assert refused(*arguments) == f"qcls-gguf: {line}\n"


@pytest.mark.parametrize("arguments", [["run", "-h"], ["run", "--help"], ["help", "run"]])
def test_help_has_several_names(arguments: list[str]) -> None:
    assert "--query" in printed(*arguments)
    assert printed("-h") == printed("help")
    assert "calibrate" in printed("-h")


def test_an_option_of_another_command_is_named_with_that() -> None:
    said = refused("calibrate", "--html", "x.html")
    assert "calibrate has no --html, which is an option of label, eval, compare" in said
    assert "requires an argument" in refused("eval", "--html")


def test_the_version_has_two_names() -> None:
    assert printed("version") == printed("--version")


PACKAGE = Path(__file__).parents[2] / "qcls_gguf"


def test_names_in_backquotes_become_options() -> None:
    assert with_options("`data` x.csv: leave rows out by `skip_bad`") == "--data x.csv: leave rows out by --skip-bad"
    for text in ("run `qcls-gguf calibrate` again", "data, `dates`"):
        assert with_options(text) == text


def test_no_module_below_the_command_line_names_an_option() -> None:
    named = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        if room == "cli" or path.name in ("servers.py", "harness.py"):  # which tell of another program's options
            continue
        text = path.read_text(encoding="utf-8")
        named += [(path.name, option) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)]
    assert named == []
