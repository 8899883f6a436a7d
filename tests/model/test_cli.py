"""The command as its users run it, in processes of their own, on the embedded model.

What commands refuse before they compute anything: the exit code, and words that say why.
"""

import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from commands import COMMAND, ROOT, invoked, run, write_plain_rows
from conftest import MakeModel
from labelled_tables import parquet

from qcls_gguf.native import devices
from qcls_gguf.report.files import write_file
from qcls_gguf.report.record import json_text


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_layers_for_a_gpu_that_is_not_there_are_told() -> None:
    if any(device.kind != "CPU" for device in devices()):
        pytest.skip("there is a GPU")
    done = run("run", "--query", "x", "-c", "mission", "-ngl", 7, "-f", "labels")
    assert "on the CPU; --n-gpu-layers 7 has no effect: " in done.stderr
    assert "1 graph," in done.stderr


@cases(("jeans", 0, "jeans\tnone\n"), ("孕妇牛仔裤", 1, "jeans\tpregnant\n"), ("孕妇牛仔裤", 0, ""))
def test_arguments_are_utf_8_or_refused(query: str, mode: int, answer: str) -> None:
    """The C locale without what Python makes of it stands for others than UTF-8, which a system may lack."""
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": f"{mode}", "PYTHONCOERCECLOCALE": "0"}
    done = run("run", "-c", "mission", "--quiet", "-f", "labels", "--query", query, env=plain, encoding="utf-8")
    assert (done.returncode, done.stdout) == (0 if answer else 2, answer)
    assert ("this locale has another encoding: set PYTHONUTF8=1" in done.stderr) is (answer == "")


def test_bad_queries_are_reported_and_the_others_answered() -> None:
    lines = f"one\n\udcff\udcfe\n{'long ' * 2000}\nlast\n"
    done = run("run", "--format", "jsonl", input=lines, errors="surrogateescape")
    assert done.returncode == 1
    first, invalid, long, last = objects(done.stdout)
    assert [line["line"] for line in (first, invalid, long, last)] == [1, 2, 3, 4]
    assert (first["query"], last["query"]) == ("one", "last")
    assert "not valid UTF-8" in invalid["error"]
    assert "more than 8192 bytes" in long["error"]
    assert "qcls-gguf: '\\xff\\xfe': line 2 is not valid UTF-8" in done.stderr


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
    text = run("run", "--help").stdout
    for option in ("--query", "--queries", "--config", "--model", "-hf", "--offline", "-ngl", "-t,", "--format"):
        assert option in text
    assert text.index("Options:") < text.index("Without arguments")
    assert "llama.cpp 0c1e57098 patched" in run("--version").stdout
    commands = run("--help").stdout.partition("Commands:")[2]
    assert "serve" in commands
    assert "..." not in commands


@pytest.mark.parametrize("arguments", ["--query x", "", "--queries -", "--query x 2>&-"])
def test_closed_streams_end_nothing(arguments: str) -> None:
    command = f"{COMMAND} run --quiet --format jsonl {arguments} <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
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
    done = run("run", "--interactive", "-c", "mission", "--quiet", "--format", "labels", input="red dress\n")
    assert (done.returncode, done.stdout) == (0, "dress\tnone\n")


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


def test_a_table_and_its_output_may_have_them(odd: Path, make_model: MakeModel) -> None:
    (odd / "m.gguf").symlink_to(make_model())
    (odd / "q.csv").write_text("query\nred dress\nblue jeans\n")
    words = ["-c", "mission", "-m", odd / "m.gguf", "--n-gpu-layers", 0, "--batch", 1]
    for said in ("2 rows in 1 shard", "nothing is left"):
        done = run("label", odd / "q.csv", "--out", odd / "out", *words)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout + done.stderr
    assert (odd / "out" / "q-00000.csv").read_text().count("\n") == 3


# What commands refuse before they compute anything: the exit code, and words that say why.


REFUSED = (
    ("run -q x -c missing.yaml", 2, "missing.yaml: the configuration cannot be read"),
    ("run --queries missing.txt", 2, "--queries missing.txt: no such file"),
    ("run --queries one.txt --query-column sku -m no-such.gguf", 2, "has no column 'sku'"),
    ("run -q x -m a.gguf -hf b/c", 2, "--model and --hf-repo are both given"),
    ("run -q x -ngl many", 2, "--n-gpu-layers: 'many' should be a whole number, or 'auto' or 'all'"),
    ("run -q x --queries ''", 2, ""),
    ("run -q x --format xml", 2, "'--format' / '-f': 'xml' is not one of 'table'"),
    ("run -q x --model missing.gguf", 3, "missing.gguf"),
    ("run -q x -hf no-slash", 2, "no-slash"),
    ("run -q x --top 2 -f csv", 2, "--top is not for --format csv"),
    ("run -q x --query-column title", 2, "--query-column, --input-format, … are for --queries"),
    ("run -q x --long-queries half", 2, "half"),
    ("run --input=texts.txt", 2, "--input was removed: use --queries"),
    ("watch x --any", 2, "watch was removed: label new rows now and then"),
    ("bench -i texts.txt", 2, "-i was removed: use --queries"),
    ("bench --batch 1 --batch 9", 2, "max_batch: 4"),
    ("bench --query-tokens 6", 2, "--query-tokens was removed: give queries"),
    ("bench --full", 2, "--full was removed: give -c mission"),
    ("bench --queries x.txt --html x.txt", 2, "--html x.txt: is the file of --queries: name another"),
    ("bench --queries empty.txt", 2, "0 different queries are too few"),
    ("bench --queries one.txt --batch 2", 2, "1 different queries are too few for --batch 2"),
    ("bench --queries long.txt", 2, "query 2: the query has 600 tokens"),
    ("bench --queries bad.txt", 2, "line 2 is not valid UTF-8"),
    ("eval --data missing.jsonl", 2, "missing.jsonl: no such file"),
    ("eval --data rows.jsonl --scoring tre", 2, "--scoring: 'tre'"),
    ("eval --data rows.jsonl --html missing/report.html", 2, "--html missing/report.html: cannot be written"),
    ("eval --data rows.jsonl --resume a", 2, "--resume was removed: every row is scored again; give fewer rows"),
    ("calibrate", 2, "give --data FILE with labelled queries, or --queries FILE"),
    ("calibrate --queries a --data b", 2, "--queries and --data are both given"),
    ("calibrate --data rows.jsonl --out rows.jsonl --force", 2, "--out rows.jsonl: is the file of --data"),
    ("calibrate -c c.yaml --data rows.jsonl --out c.yaml --force", 2, "--out c.yaml: is the file of --config: name"),
    ("learn -c mission --data rows.jsonl --out h --prompt colour", 2, "is no prompt of the configuration"),
    ("learn -c mission --data rows.jsonl --out h --common-text 'no slot'", 2, "needs exactly one {query}"),
    ("learn -c mission --out h", 2, "give --queries FILE"),
    ("learn -c mission --data rows.jsonl --out h --teacher fashion-8", 2, "--teacher answers --queries"),
    ("learn -c mission --queries one.txt --out h", 2, "are needed"),
    ("init --out x", 2, "give --labels NAME=LABEL,… or --data FILE"),
    ("init --out x --labels a=b,c --data rows.csv", 2, "--labels and --data are both given"),
    ("init --out x --from mission", 2, "--from was removed: copy the configuration"),
    ("init --out x --labels a=b,c --label-column x", 2, "--query-column, --label-column, … are for --data"),
    ("init --out x --labels a=b,c -m a -hf b/c", 2, "--model and --hf-repo are both given"),
    ("init --out x --labels a=b,c --family lfm2", 2, "--family was removed"),
    ("label a.csv --column text", 2, "--column was removed: use --query-column"),
    ("label a.csv --out b --summary json", 2, "--summary was removed: use --format"),
    ("label a --out b --format csv", 2, "is not one of 'table', 'json'"),
    ("label in.parquet --out a", 1, ""),
    ("label in.parquet --out out.xlsx", 2, "name a file that ends in .parquet, .csv, .tsv, .jsonl, or a folder"),
    ("label in.parquet --out b --query-column text", 2, "no column 'text': the columns are 'id', 'query'"),
    *(
        (f"label a --out b --part {part}", 2, f"--part {part}: give two numbers, the first one at most the second")
        for part in ("2", "0/2", "3/2", "a/b", "1/-2")
    ),
    ("compare -q x --method ollama", 1, "ollama absent: no server: give its URL as --ollama"),
    ("compare -q x --method llama-server", 1, "as --llama-server, started with llama-server --model "),
    ("compare -q x --method cappr", 2, "--method cappr: was removed: its probabilities are those of our scoring"),
    ("compare -q x --method nave", 2, "--method nave: is not one of qcls, naive, prefix"),
    ("compare -q x --ollama-model x", 2, "--ollama and --ollama-model belong together"),
    ("compare -q x --method ollama --ollama 127.0.0.1:1 --ollama-model x", 1, "not a server's address: it is no"),
    ("compare --queries empty.txt", 2, "there is no query to compare with"),
    (f"compare --method qcls -q '{'dress ' * 300}'", 2, "more than runtime.max_query_tokens: 256"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the commands name."""
    folder = tmp_path_factory.mktemp("refused")
    shutil.copy(ROOT / "configs/mission.yaml", folder / "c.yaml")
    for name, text in {"empty": "", "one": "red\n", "long": "red\n" + "x " * 600, "bad": "red\n\udcff\n"}.items():
        (folder / f"{name}.txt").write_bytes(text.encode(errors="surrogateescape"))
    write_plain_rows(folder)
    parquet(folder / "in.parquet", [None, " "])
    return folder


@pytest.mark.parametrize(("line", "code", "words"), REFUSED)
def test_commands_say_why(line: str, code: int, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = invoked(*shlex.split(line))
    assert done.exit_code == code
    assert words in " ".join((done.stdout + done.stderr).split())
    assert code == 1 or done.stdout == ""
