"""The command as its users run it, in processes of their own, on the embedded model."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from commands import COMMAND
from conftest import MakeModel

from qcls_gguf.config.schema import ModelConfig
from qcls_gguf.native import devices
from qcls_gguf.report.files import write_file
from qcls_gguf.report.record import json_text


def run(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [COMMAND, "run", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False, cwd=cwd)


def objects(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.decode().splitlines()]


def test_layers_for_a_gpu_that_is_not_there_are_told() -> None:
    if any(device.kind != "CPU" for device in devices()):
        pytest.skip("there is a GPU")
    done = run("--query", "x", "-c", "mission", "-ngl", "7", "-f", "labels")
    assert b"on the CPU; --n-gpu-layers 7 has no effect: " in done.stderr
    assert b"1 graph," in done.stderr


@cases(("jeans", 0, "jeans\tnone\n"), ("孕妇牛仔裤", 1, "jeans\tpregnant\n"), ("孕妇牛仔裤", 0, ""))
def test_arguments_are_utf_8_or_refused(query: str, mode: int, answer: str) -> None:
    """The C locale without what Python makes of it stands for others than UTF-8, which a system may lack."""
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": f"{mode}", "PYTHONCOERCECLOCALE": "0"}
    command = [COMMAND, "run", "-c", "mission", "--quiet", "--format", "labels", "--query", query]
    done = subprocess.run(command, env=plain, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.decode()) == (0 if answer else 2, answer)
    assert ("this locale has another encoding: set PYTHONUTF8=1" in done.stderr.decode()) is (answer == "")


def test_bad_queries_are_reported_and_the_others_answered() -> None:
    done = run("--format", "jsonl", stdin=b"one\n\xff\xfe\n" + b"long " * 2000 + b"\nlast\n")
    assert done.returncode == 1
    first, invalid, long, last = objects(done.stdout)
    assert [line["line"] for line in (first, invalid, long, last)] == [1, 2, 3, 4]
    assert (first["query"], last["query"]) == ("one", "last")
    assert "not valid UTF-8" in invalid["error"]
    assert "more than 8192 bytes" in long["error"]
    assert b"qcls-gguf: '\\xff\\xfe': line 2 is not valid UTF-8" in done.stderr


@contextmanager
def on_terminal() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`run` on a terminal of its own, and the descriptor of the terminal's other end."""
    main, terminal = pty.openpty()
    line = [COMMAND, "run", "--quiet"]
    with subprocess.Popen(line, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True) as process:
        os.close(terminal)
        try:
            yield process, main
        finally:
            process.kill()
            os.close(main)


def test_interactive_on_a_terminal_ends_at_an_empty_line() -> None:
    with on_terminal() as (process, main):
        os.write(main, b"black leather trousers\n\n")
        shown = b""
        while True:
            try:
                shown += (data := os.read(main, 4096))
            except OSError:  # the terminal's other end is closed
                break
            if not data:
                break
        assert process.wait(60) == 0
    assert b"query> " in shown
    assert b"leather" in shown.split(b"query> ", 1)[1]
    assert b"material" in shown


@pytest.mark.usefixtures("interruptible")
def test_interrupt_on_a_terminal_leaves_a_line_of_its_own() -> None:
    with on_terminal() as (process, main):
        shown = b""
        while b"query> " not in shown:
            shown += os.read(main, 4096)
        time.sleep(0.2)  # the prompt is shown before Python waits in a way that a signal ends
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert os.read(main, 4096).endswith(b"qcls-gguf: interrupted\r\n")


def test_help_and_version() -> None:
    text = run("--help").stdout.decode()
    for option in ("--query", "--queries", "--config", "--model", "-hf", "--offline", "-ngl", "-t,", "--format"):
        assert option in text
    assert text.index("Options:") < text.index("Without arguments")
    done = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert "llama.cpp 0c1e57098 patched" in done.stdout
    text = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    assert "..." not in text.partition("Commands:")[2]


@pytest.mark.parametrize("arguments", ["--query x", "", "--queries -", "--query x 2>&-"])
def test_closed_streams_end_nothing(arguments: str) -> None:
    command = f"{COMMAND} run --quiet --format jsonl {arguments} <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(objects(done.stdout)) == ("--query" in arguments)


@cases(
    *(f"run --quiet --query x --format {name}" for name in ("table", "jsonl", "json")),
    *("models", "schema", "--help", "--version"),
)
@pytest.mark.parametrize(("to", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_a_lost_output_is_one_line_and_a_failure(words: str, to: str, why: str) -> None:
    command = f"{COMMAND} {words} {to}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, f"qcls-gguf: standard output could not be written: {why}\n")


def test_without_a_terminal_to_ask_on_the_lines_of_the_input_are_answered() -> None:
    done = run("--interactive", "--config", "mission", "--quiet", "--format", "labels", stdin=b"red dress\n")
    assert (done.returncode, done.stdout) == (0, b"dress\tnone\n")


def test_a_query_that_is_refused_is_named_by_its_line_and_a_full_disk_for_that_ends_nothing() -> None:
    lines = f"red dress\n{'dress ' * 300}\nblue jeans\n"
    for standard_error in ("", " 2> /dev/full"):
        command = f"{COMMAND} run --config mission --quiet --format labels{standard_error}"
        done = subprocess.run(["bash", "-c", command], input=lines, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (1, "dress\tnone\n\njeans\tnone\n")
        assert done.stderr.startswith("qcls-gguf: line 2: 'dress dress") is not bool(standard_error)


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
