"""Texts that move a terminal's cursor, or ask it for something: shown as escapes wherever they come from."""

import json
from pathlib import Path

import pytest
import yaml
from commands import run

_EVIL = "\x1b[2J\x1b]0;x\x07\x9b31m\x08\u202e"
_ESCAPED = "\\x1b[2J\\x1b]0;x\\x07\\x9b31m\\x08\\u202e"
_QUERY = f"red{_EVIL}\ndress"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Prompts and labels with such texts in their names."""
    prompt = {"name": f"a{_EVIL}", "prompt_template": "{query} is", "labels": [f"x{_EVIL}", f"y{_EVIL}"]}
    tree = {"runtime": {"n_threads": 1}, "prompts": [prompt, {**prompt, "name": f"b{_EVIL}"}]}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def _is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_tables_show_escapes_and_json_is_exact(config: Path) -> None:
    for command in (("run", "--query", _QUERY), ("inspect",)):
        done = run(*command, "--config", config)
        assert _is_clean(done.stdout), done.stdout
        assert _is_clean(done.stderr), done.stderr
        assert f"a{_ESCAPED}"[:20] in done.stdout
    done = run("run", "--config", config, "--query", _QUERY, "--format", "jsonl", "--quiet")
    record = json.loads(done.stdout)
    assert record["query"] == _QUERY
    assert {answer["prompt"] for answer in record["results"]} == {f"a{_EVIL}", f"b{_EVIL}"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--query", _QUERY * 1000, "--quiet"),
        ("run", "--model", f"/missing/{_EVIL}.gguf", "--query", "red"),
        ("run", "--queries", f"/missing/{_EVIL}.txt"),
        ("bench", "--html", f"/missing/{_EVIL}.html"),
        ("run", "--scoring", _EVIL, "--query", "red"),
    ],
)
def test_errors_show_escapes(arguments: tuple[str, ...]) -> None:
    error = run(*arguments).stderr
    assert error
    assert _is_clean(error), error
