"""The command line: its options and what was removed; and texts as they are shown.

The pages agree with the project: commands, options, settings, files, links. What they show is run in tests/model.
"""

import inspect
import json
import logging
import re
import tomllib
from collections import defaultdict
from typing import get_args, get_type_hints

import pytest
from cases import cases
from commands import COMMANDS, check_usage, printed, refused
from documents import PAGES, ROOT, Command, anchors, commands, prose_of, text_of

import qcls_gguf
from qcls_gguf.cli import terminal
from qcls_gguf.cli.app import COMMANDS as FUNCTIONS
from qcls_gguf.cli.options import _log
from qcls_gguf.config.load import config_json_schema
from qcls_gguf.config.prompt import MistakeKind
from qcls_gguf.config.settings import LARGEST
from qcls_gguf.config.words import JsonObject, printable, seen_as
from qcls_gguf.native.device import STEPS
from qcls_gguf.version import __version__

REMOVED = (ROOT / "qcls_gguf" / "config" / "removed.txt").read_text(encoding="utf-8").splitlines()


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
            if place in FUNCTIONS and instead.startswith("use "):
                known = options_of(place)
                assert not known.keys() & set(names.split()), line
                assert set(re.findall(r"--[a-z-]+", instead)) <= known.keys(), line


def options_of(command: str) -> dict[str, object]:
    """The options of a command with what its signature says of them."""
    hints = get_type_hints(FUNCTIONS[command], include_extras=True)
    found: dict[str, object] = {}
    for name in inspect.signature(FUNCTIONS[command]).parameters.keys() - {"ctx"}:
        (info,) = hints[name].__metadata__
        found |= dict.fromkeys([str(info.default), *(info.param_decls or ())], info)
    return found


def test_the_commands_are_twelve_and_an_option_means_the_same_in_all() -> None:
    assert " ".join(FUNCTIONS) == "run label init inspect eval learn calibrate compare bench models serve schema"
    meanings = defaultdict(set)
    for command in FUNCTIONS:
        for option, info in options_of(command).items():
            meanings[option].add(id(info))
    said_elsewhere = {"-c", "-f", "-q", "-b", "-o", "--config", "--format", "--query", "--batch", "--out", "--scoring"}
    assert {option for option, infos in meanings.items() if len(infos) > 1} <= said_elsewhere | {"--seed"}


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


WRITTEN = ["کت\u200cوشلوار", "क्\u200dष", "👩\u200d👩\u200d👧", "👨🏽\u200d💻 x", "赤い\u3000ドレス", "cafe\u0301", ""]
"""what scripts are written with, which stays"""


@cases(
    *((text, text) for text in WRITTEN),
    ("re\u200dd", r"re\u200dd"),
    ("\u200cred", r"\u200cred"),
    ("👩\u200d\u200d", r"👩‍\u200d"),
    ("red\u200b\ufeff", r"red\u200b\ufeff"),
    ("\u202ered\u2066", r"\u202ered\u2066"),
    ("a\tb\nc\x1b[2J\0", r"a\tb\nc\x1b[2J\x00"),
    ("\udcff", r"\udcff"),
)
def test_what_is_invisible_or_moves_the_cursor_is_an_escape_and_the_rest_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_looks_the_same() -> None:
    for alike in (["red", "RED ", "re\u200bd", "ｒｅｄ", "red\ufeff"], ["é", "e\u0301", "É"], ["❤", "❤\ufe0f"]):
        assert len(set(map(seen_as, alike))) == 1, alike
    assert len(set(map(seen_as, ["red", "red.", "rot", "röd", "👩", "👩🏽"]))) == 6


# The pages agree with the project: commands, options, settings, files, links. What they show is run in tests/model.


def test_readme_is_a_page() -> None:
    assert len(text_of("README.md").splitlines()) <= 135


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(str(file.relative_to(ROOT))), f"{page}: {target}: no such heading"


def test_every_page_of_docs_is_linked_from_a_page_that_readers_start_at() -> None:
    reached, waiting = set(), ["README.md", "CONTRIBUTING.md"]
    while waiting:
        page = waiting.pop()
        if page in PAGES and page not in reached:
            reached.add(page)
            for target in re.findall(r"\]\(([^)#\s]+\.md)", prose_of(page)):
                waiting.append(str(((ROOT / page).parent / target).resolve().relative_to(ROOT)))
    assert {page for page in PAGES if page.startswith("docs/")} <= reached


@pytest.mark.parametrize("page", PAGES)
def test_files_that_it_names_exist(page: str) -> None:
    tops = "configs|docs|models|patches|qcls_gguf|tests|tiny|vendor"
    built = ("vendor/llama.cpp", "qcls_gguf/native/lib/")
    for name in re.findall(rf"`((?:{tops})/[\w./-]*\w)`", prose_of(page)):
        places = ROOT / name, (ROOT / page).parent / name
        assert name.startswith(built) or any(place.exists() for place in places), f"{page}: {name}"


# --- commands --------------------------------------------------------------------------------------------------------


def test_every_command_is_documented() -> None:
    rows = re.findall(r"^\| `qcls-gguf (\w+)` \|", text_of("README.md"), re.MULTILINE)
    assert set(rows) == set(COMMANDS)
    page = text_of("docs/commands.md")
    assert set(re.findall(r"^\| \[`(\w+)`\]", page, re.MULTILINE)) == set(COMMANDS)
    for name in COMMANDS:
        assert f"\n## {name}\n" in page
        assert any(command.words[:2] == ("qcls-gguf", name) for command in commands()), f"no example of {name}"


def test_options_that_pages_name_exist() -> None:
    options = [option for command in COMMANDS.values() for option in command.params]
    known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    known |= {"--version", "--help", "-h", "--install-completion"}
    for page in PAGES:
        if page == "docs/changes.md":  # which names those that are gone
            continue
        for code in re.findall(r"`([^`\n]+)`", prose_of(page)):
            for option in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", code):
                if code.startswith(("-", "qcls-gguf", *COMMANDS)) and not re.match(r"-\w+=", code):  # a compiler's
                    assert option in known, f"{page}: {code}"


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.text)
def test_commands_that_pages_show_are_valid(command: Command) -> None:
    program, first, *_ = (*command.words, "")
    if program == "qcls-gguf" and first in COMMANDS:
        check_usage(first, command.words[2:])
    elif program == "make":
        assert re.search(rf"^{first}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    else:
        assert program != "qcls-gguf" or first in ("--version", "--install-completion")


# --- settings --------------------------------------------------------------------------------------------------------


def table_of(settings: JsonObject) -> str:
    """The table of the keys of a JSON Schema, as the page on configurations has it."""
    rows = ["| key | default | allowed | what |", "|---|---|---|---|"]
    for name, key in settings["properties"].items():
        if key["description"].startswith("for prompts without one of their own"):
            continue
        default = json.dumps(key.get("default"), ensure_ascii=False)
        plain = "" if default in ("null", "[]", "{}") else default.strip('"').rstrip() or f"`{default}`"
        plain = f"`{plain}`" if plain.startswith("[") else plain
        rows.append(f"| `{name}` | {plain} | {allowed(key)} | {key['description']} |")
    return "\n".join(rows)


def allowed(key: JsonObject) -> str:
    """What a key takes, in words."""
    if "anyOf" in key:
        return ", ".join(allowed(part) for part in key["anyOf"] if part.get("type") != "null")
    if "enum" in key or "const" in key:
        return ", ".join(key.get("enum", [key.get("const")]))
    low, high = key.get("minimum", key.get("exclusiveMinimum")), key.get("maximum")
    if low is not None:
        above = "above " if "exclusiveMinimum" in key else ""
        return f"{low} or more" if high == LARGEST else f"{above}{low} to {high:,}"
    words = {"boolean": "true, false", "string": "text", "array": "list", "object": "mapping"}
    return words.get(key.get("type", ""), "see below")


@pytest.mark.parametrize("name", [None, "ModelConfig", "RuntimeConfig", "PromptConfig"])
def test_the_tables_of_keys_are_made_from_the_types(name: str | None) -> None:
    schema = config_json_schema()
    table = table_of(schema["$defs"][name] if name else schema)
    assert table in text_of("docs/configuration.md"), f"the page should have\n{table}"


def test_every_kind_of_warning_is_documented() -> None:
    section = text_of("docs/configuration.md").partition("## Warnings")[2]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(get_args(MistakeKind))


# --- the rest --------------------------------------------------------------------------------------------------------


def test_public_names_are_documented() -> None:
    for name in qcls_gguf.__all__:
        assert name in text_of("docs/python.md"), name


def test_packages_are_those_of_the_import_contract() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (row for row in linter["contracts"] if row["type"] == "layers")
    ranks = {name: rank for rank, layer in enumerate(contract["layers"]) for name in layer.split(" | ")}
    section = text_of("docs/architecture.md").partition("\n## Packages\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section, re.MULTILINE)
    rows = [name for cell in cells for name in re.findall(r"\w+", cell)]
    assert sorted(rows) == sorted(ranks)
    assert [ranks[name] for name in rows] == sorted((ranks[name] for name in rows), reverse=True)


def test_every_patch_is_in_the_series_and_documented() -> None:
    series = (ROOT / "patches" / "series").read_text().split()
    assert series == sorted(path.name for path in (ROOT / "patches").glob("*.patch"))
    assert re.findall(r"^\| `([\w-]+\.patch)` \|", text_of("patches/README.md"), re.MULTILINE) == series


def test_the_steps_of_the_kernels_are_documented() -> None:
    rows = re.findall(r"^\| ([\w ]+) \| `(\w+)=(\d)` \|", text_of("docs/kernels.md"), re.MULTILINE)
    assert rows == [(name, variable, "0") for name, variable in STEPS.items()]
