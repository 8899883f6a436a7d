"""Ctrl-C, a request to terminate and a reader that leaves, at any moment of a command: one line, no traceback."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import COMMAND, write_rows
from hostile_rows import Row, cases, sizes

import qcls_gguf

LABEL = ["run", "--quiet", "--query", "red dress", "--threads", "1"]
LINES = {signal.SIGINT: "qcls-gguf: interrupted\n", signal.SIGTERM: "qcls-gguf: terminated\n"}
_RUNS = {"help": ["--help"], "version": ["--version"], "run": LABEL}


def _started(arguments: list[str], **variables: str) -> subprocess.Popen[str]:
    pipe, environment = subprocess.PIPE, {**os.environ, **variables}
    return subprocess.Popen([COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def _end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and what stands on standard error."""
    with process:
        try:
            _, error = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(), "it went on for a minute"
    return process.returncode, error


def _judge(row: Row, case: str, number: signal.Signals, code: int, error: str) -> None:
    if (code, error) == (0, ""):
        row.kinds["ended before"] += 1
    elif (code, error) == (128 + number, LINES[number]):
        row.kinds["one line"] += 1
    elif (code, error) == (-number, ""):
        row.kinds["before the interpreter was up, silently"] += 1
    # without a line of the package, it came before its first one or after its last: in the script that pip writes, too,
    # or in site's own imports, one of which finds an editable installation: its file has this project's name
    elif (
        (code, error) == (1, "KeyboardInterrupt\n")
        or "Failed to import the site module" in error
        or ("Traceback" in error and str(Path(qcls_gguf.__file__).parent) not in error)
    ):
        row.kinds["while the interpreter itself started"] += 1
    else:
        row.wrong.append(f"{case}: exit code {code}: {error!r}")


@sizes(2, 80)
@pytest.mark.usefixtures("interruptible")
def test_it_stops_with_one_line_whenever_it_is_told_to(row: Row, n: int) -> None:
    """At moments spread evenly over each command, and for `run` a while beyond, where it waits for its input."""
    row.name = "Ctrl-C and SIGTERM, by delay"
    for name, arguments in _RUNS.items():
        start = time.perf_counter()
        assert _end(_started(arguments)) == (0, "")
        lasts_s = time.perf_counter() - start
        for index, (_, rng) in enumerate(cases(row.seed, n)):
            number = signal.SIGTERM if index % 4 == 3 else signal.SIGINT
            process = _started(arguments)
            time.sleep((index + rng.random()) / n * lasts_s)
            process.send_signal(number)
            _judge(row, f"{name} {index} of {n}", number, *_end(process))
            row.n += 1
    assert row.kinds["one line"]  # on a fast machine many have ended before


@sizes(5, 500)
@pytest.mark.usefixtures("interruptible")
def test_a_start_that_is_stopped_ends_with_its_exit_code_and_leaves_nothing(row: Row, n: int, tmp_path: Path) -> None:
    """At random moments, while modules are imported, a model is loaded, prefixes are computed or rows are read."""
    row.name, row.n = "stops of a start, by command", 4 * n
    rows = [{"query": f"dress {index}", "labels": {"category": ("dress", "jeans")[index % 2]}} for index in range(400)]
    data, kept = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "kept"
    kept.mkdir()
    learn = ["learn", "-c", "mission", "--prompt", "category", "--data", str(data), "--out", str(kept / "heads.npz")]
    starts = {
        "run": ["run", "--query", "red dress"],
        "inspect": ["inspect"],
        "serve": ["serve", "--port", "0"],
        "learn": learn,
    }
    began = time.perf_counter()
    assert _end(_started([*LABEL]))[0] == 0
    lasts_s = time.perf_counter() - began
    for name, arguments in starts.items():
        for seed, rng in cases(row.seed, n):
            number, delay_s = rng.choice(list(LINES)), rng.uniform(0, lasts_s)
            process = _started([*arguments, "--quiet"], TMPDIR=str(kept))
            time.sleep(delay_s)
            process.send_signal(number)
            code, error = _end(process)
            if (name, code) == ("serve", 0):  # it was ready
                row.kinds["answered what had arrived"] += 1
            else:
                _judge(row, f"{name}, seed {seed}, {number.name} after {delay_s:.3f} s", number, code, error)
        left = {path.name for path in kept.iterdir()}
        row.check(left <= {"heads.npz"}, f"{name} left {left}")
    assert row.kinds["one line"] > n


@pytest.mark.parametrize("number", LINES)
@pytest.mark.parametrize("how", ["waits", "works", "in the background"])
@pytest.mark.usefixtures("interruptible")
def test_a_command_that_has_begun_stops_and_what_was_printed_is_kept(
    how: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Except in the background: a shell starts such a job with SIGINT ignored, `nohup` others."""
    arguments = ["run", "--quiet", "--format", "jsonl", "--threads", "1"]
    if how == "works":
        (tmp_path / "queries.txt").write_text("red dress\n" * 100_000)
        arguments += ["--queries", str(tmp_path / "queries.txt")]
    before = signal.getsignal(number)
    try:
        if how == "in the background":
            signal.signal(number, signal.SIG_IGN)
        process = _started(arguments)
    finally:
        signal.signal(number, before)
    assert process.stdin
    assert process.stdout
    process.stdin.write("red dress\n")
    process.stdin.flush()
    assert process.stdout.readline().endswith("}\n")
    process.send_signal(number)
    assert _end(process) == ((0, "") if how == "in the background" else (128 + number, LINES[number]))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["schema"], LABEL, [*LABEL, "--format", "json"]])
def test_a_reader_that_has_left_is_no_traceback(arguments: list[str]) -> None:
    """For an output that is lost otherwise see tests/model/test_cli.py."""
    reader, output = os.pipe()
    os.close(reader)
    done = subprocess.run([COMMAND, *arguments], stdout=output, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(output)
    assert (done.stderr, done.returncode in (0, 1)) == ("", True)  # click ends with 1, as others do
