"""The pages agree with the project: commands, options, settings, files, links. What they show is run in tests/model."""

import json
import re
import tomllib
from typing import get_args

import pytest
from commands import COMMANDS, check_usage
from documents import PAGES, ROOT, Command, anchors, commands, prose_of, text_of

import qcls_gguf
from qcls_gguf.config.load import config_json_schema
from qcls_gguf.config.prompt import MistakeKind
from qcls_gguf.config.settings import LARGEST
from qcls_gguf.config.words import JsonObject
from qcls_gguf.native.device import STEPS

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_readme_is_a_page() -> None:
    assert len(text_of("README.md").splitlines()) <= 135


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (folder / path).resolve() if path else ROOT / page
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
    folders = ROOT, (ROOT / page).parent
    tops = "configs|docs|models|patches|qcls_gguf|tests|tiny|vendor"
    built = ("vendor/llama.cpp", "qcls_gguf/native/lib/")
    for name in re.findall(rf"`((?:{tops})/[\w./-]*\w)`", prose_of(page)):
        assert name.startswith(built) or any((folder / name).exists() for folder in folders), f"{page}: {name}"


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
    known = {
        name
        for command in COMMANDS.values()
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
    }
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
        shown = f"`{plain}`" if plain.startswith("[") else plain
        rows.append(f"| `{name}` | {shown} | {allowed(key)} | {key['description']} |")
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
    page = text_of("docs/python.md")
    for name in qcls_gguf.__all__:
        assert name in page, name


def test_packages_are_those_of_the_import_contract() -> None:
    (contract,) = (row for row in PYPROJECT["tool"]["importlinter"]["contracts"] if row["type"] == "layers")
    ranks = {name: rank for rank, layer in enumerate(contract["layers"]) for name in layer.split(" | ")}
    section = text_of("docs/architecture.md").partition("\n## Packages\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section, re.MULTILINE)
    rows = [name for cell in cells for name in re.findall(r"\w+", cell)]
    assert sorted(rows) == sorted(ranks)
    assert [ranks[name] for name in rows] == sorted((ranks[name] for name in rows), reverse=True)


def test_every_patch_is_documented() -> None:
    series = (ROOT / "patches" / "series").read_text().split()
    assert re.findall(r"^\| `([\w-]+\.patch)` \|", text_of("patches/README.md"), re.MULTILINE) == series


def test_the_steps_of_the_kernels_are_documented() -> None:
    rows = re.findall(r"^\| ([\w ]+) \| `(\w+)=(\d)` \|", text_of("docs/kernels.md"), re.MULTILINE)
    assert rows == [(name, variable, "0") for name, variable in STEPS.items()]
