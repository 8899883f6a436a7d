"""Texts that move a terminal's cursor, or ask it for something: shown as escapes wherever they come from."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

_COMMAND = str(Path(sys.executable).with_name("qcls-gguf"))
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


@pytest.fixture
def server() -> Iterator[str]:
    """A peer that refuses everything, in such words."""

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(500)
            self.end_headers()
            self.wfile.write(json.dumps({"error": {"message": _EVIL}}, ensure_ascii=False).encode())

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


def _run(*arguments: object) -> tuple[str, str]:
    done = subprocess.run([_COMMAND, *map(str, arguments)], capture_output=True, timeout=120, check=False)
    return done.stdout.decode(), done.stderr.decode()


def _is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_tables_show_escapes_and_json_is_exact(config: Path) -> None:
    for command in (("run", "--query", _QUERY), ("inspect",)):
        out, error = _run(*command, "--config", config)
        assert _is_clean(out), out
        assert _is_clean(error), error
        assert f"a{_ESCAPED}"[:20] in out
    out, _ = _run("run", "--config", config, "--query", _QUERY, "--format", "jsonl", "--quiet")
    record = json.loads(out)
    assert record["query"] == _QUERY
    assert {answer["prompt"] for answer in record["results"]} == {f"a{_EVIL}", f"b{_EVIL}"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--query", _QUERY * 1000, "--quiet"),
        ("run", "--config", f"/missing/{_EVIL}.yaml"),
        ("run", "--model", f"/missing/{_EVIL}.gguf", "--query", "red"),
        ("run", "--queries", f"/missing/{_EVIL}.txt"),
        ("eval", "--data", f"/missing/{_EVIL}.jsonl"),
        ("bench", "--html", f"/missing/{_EVIL}.html"),
        ("run", "--scoring", _EVIL, "--query", "red"),
    ],
)
def test_errors_show_escapes(arguments: tuple[str, ...]) -> None:
    _, error = _run(*arguments)
    assert error
    assert _is_clean(error), error


def test_what_a_peer_says_is_escaped(server: str) -> None:
    options = ["--rounds", "1", "--warm-up", "0", "--threads", "1", "--quiet", "--query", "red dress"]
    out, error = _run("compare", "--method", "llama-server", "--llama-server", server, *options)
    assert _is_clean(out + error), out + error
    assert "llama-server" in out + error
