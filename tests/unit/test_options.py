"""The command line: its options and what was removed; and texts as they are shown."""

import inspect
import logging
import re
from collections import defaultdict
from pathlib import Path
from typing import get_type_hints

import pytest
from cases import cases
from commands import printed, refused

from qcls_gguf.cli import terminal
from qcls_gguf.cli.app import COMMANDS
from qcls_gguf.cli.options import _log
from qcls_gguf.config.words import printable, seen_as
from qcls_gguf.version import __version__

PACKAGE = Path(__file__).parents[2] / "qcls_gguf"
REMOVED = (PACKAGE / "config" / "removed.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def test_what_was_removed_is_told_for_two_versions_and_is_not_there() -> None:
    until = re.search(r"told until version (\d+)\.(\d+)", REMOVED[0])
    assert until
    assert tuple(map(int, __version__.split(".")[:2])) < tuple(map(int, until.groups()))
    for line in REMOVED[1:]:
        places, names, instead = line.split(": ", 2)
        for place in places.split():
            if place in COMMANDS and instead.startswith("use "):
                known = options_of(place)
                assert not known.keys() & set(names.split()), line
                assert set(re.findall(r"--[a-z-]+", instead)) <= known.keys(), line


def options_of(command: str) -> dict[str, object]:
    """The options of a command with what its signature says of them."""
    hints = get_type_hints(COMMANDS[command], include_extras=True)
    found: dict[str, object] = {}
    for name in inspect.signature(COMMANDS[command]).parameters.keys() - {"ctx"}:
        (info,) = hints[name].__metadata__
        found |= dict.fromkeys([str(info.default), *(info.param_decls or ())], info)
    return found


def test_the_commands_are_twelve_and_an_option_means_the_same_in_all() -> None:
    wanted = "run label init inspect eval learn calibrate compare bench models serve schema"
    assert list(COMMANDS) == wanted.split()
    meanings = defaultdict(set)
    for command in COMMANDS:
        for option, info in options_of(command).items():
            meanings[option].add(id(info))
    said_elsewhere = {"-c", "-f", "-q", "-b", "-o", "--config", "--format", "--query", "--batch", "--out", "--scoring"}
    assert {option for option, infos in meanings.items() if len(infos) > 1} <= said_elsewhere | {"--seed", "--warm-up"}


@pytest.mark.parametrize("arguments", [["run", "-h"], ["run", "--help"]])
def test_help_teaches(arguments: list[str]) -> None:
    said = printed(*arguments)
    assert said.index("--query") < said.index("qcls-gguf run --queries")
    assert "calibrate" in printed("-h")


def test_a_number_that_is_none_is_refused() -> None:
    assert "--grace inf: give a finite number" in refused("serve", "--grace", "inf")


def test_names_in_backquotes_become_options_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "OPTIONS", {"--data", "--skip-bad"})
    said = terminal.with_options("`data` x.csv: leave rows out by `skip_bad`")
    assert said == "--data x.csv: leave rows out by --skip-bad"
    for text in ("run `qcls-gguf calibrate` again", "data, `dates`"):
        assert terminal.with_options(text) == text


def test_of_llama_cpps_words_few_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose end of text is no token of it answers otherwise."""
    log, llama = logging.getLogger("qcls_gguf"), logging.getLogger("qcls_gguf.llama")
    for logger, name in ((log, "handlers"), (log, "level"), (llama, "filters"), (llama, "level")):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    _log(verbose=False)
    llama.warning("bad special token: 'tokenizer.ggml.eos_token_id' = 99, using default id 11")
    llama.warning("control-looking token was not control-type")
    assert capsys.readouterr().err.startswith("qcls-gguf: warning: bad special token: 'tokenizer.ggml.eos_token_id'")
    _log(verbose=True)
    llama.debug("n_layer = 1")
    assert "qcls_gguf.llama: n_layer = 1" in capsys.readouterr().err


@cases("کت\u200cوشلوار", "क्\u200dष", "👩\u200d👩\u200d👧", "👨🏽\u200d💻 x", "赤い\u3000ドレス", "cafe\u0301", "")
def test_what_scripts_are_written_with_stays(text: str) -> None:
    assert printable(text) == text


@cases(
    ("re\u200dd", r"re\u200dd"),
    ("\u200cred", r"\u200cred"),
    ("👩\u200d\u200d", r"👩‍\u200d"),
    ("red\u200b\ufeff", r"red\u200b\ufeff"),
    ("\u202ered\u2066", r"\u202ered\u2066"),
    ("a\tb\nc\x1b[2J\0", r"a\tb\nc\x1b[2J\x00"),
    ("\udcff", r"\udcff"),
)
def test_what_is_invisible_or_moves_the_cursor_is_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_looks_the_same() -> None:
    for alike in (["red", "RED ", "re\u200bd", "ｒｅｄ", "red\ufeff"], ["é", "e\u0301", "É"], ["❤", "❤\ufe0f"]):
        assert len(set(map(seen_as, alike))) == 1, alike
    assert len(set(map(seen_as, ["red", "red.", "rot", "röd", "👩", "👩🏽"]))) == 6
