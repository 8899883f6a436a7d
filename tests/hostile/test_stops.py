"""Ctrl-C, a request to terminate and a reader that leaves, at any moment of a command: one line, no traceback."""

import json
import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import cases, written
from commands import COMMAND, run, tiny_rows, write_rows
from hostile_rows import Row, sizes
from labelled_tables import CONFIG, check_like_classify, label_command, outputs, query_log

import qcls_gguf
from qcls_gguf import Classifier, ConfigError, QclsError
from qcls_gguf.cli.terminal import show
from qcls_gguf.report.files import check_outputs, write_file
from qcls_gguf.report.record import Record

LABEL = ["run", "--quiet", "--query", "red dress", "--threads", "1"]
LINES = {signal.SIGINT: "qcls-gguf: interrupted\n", signal.SIGTERM: "qcls-gguf: terminated\n"}


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


@sizes(3, 250)
@pytest.mark.usefixtures("interruptible")
def test_a_command_that_is_told_to_stop_ends_with_its_exit_code_and_one_line(row: Row, n: int, tmp_path: Path) -> None:
    """At random moments: while modules are imported, a model is loaded, prefixes are computed, rows are read, or `run`
    waits for its input. It leaves nothing."""
    rows = [{"query": f"dress {index}", "labels": {"category": ("dress", "jeans")[index % 2]}} for index in range(400)]
    data, kept = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "kept"
    kept.mkdir()
    learn = ["learn", "-c", "mission", "--prompt", "category", "--data", str(data), "--out", str(kept / "heads.npz")]
    learn += ["--force"]  # an earlier case may have ended
    starts = [["run"], ["inspect"], ["serve", "--port", "0"], learn]
    commands = [["--help"], ["--version"], LABEL, *([*words, "--quiet"] for words in starts)]
    row.name, row.n = "Ctrl-C and SIGTERM", n * len(commands)
    began = time.perf_counter()
    assert _end(_started(LABEL)) == (0, "")
    lasts_s = time.perf_counter() - began
    for index, (seed, rng) in enumerate(row.cases()):
        words = commands[index % len(commands)]
        number, delay_s = rng.choice(list(LINES)), rng.uniform(0, lasts_s)
        process = _started(words, TMPDIR=str(kept))
        time.sleep(delay_s)
        process.send_signal(number)
        code, error = _end(process)
        if (words[0], code) == ("serve", 0):  # it was ready
            row.kinds["answered what had arrived"] += 1
        else:
            _judge(row, f"{words[0]}, seed {seed}, {number.name} after {delay_s:.3f} s", number, code, error)
    left = {path.name for path in kept.iterdir()}
    row.check(left <= {"heads.npz", "heads.npz.part"}, f"left: {left}")  # what was learnt, or what was read for it
    assert row.kinds["one line"] > row.n / len(commands)


@pytest.mark.parametrize("number", LINES)
@pytest.mark.parametrize("how", ["waits", "works", "in the background"])
@pytest.mark.usefixtures("interruptible")
def test_a_command_stops_and_what_was_printed_is_kept(how: str, number: signal.Signals, tmp_path: Path) -> None:
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


# Runs of `label` that are killed, and disks that fill up: what is done stays, and the same command goes on.


FACTOR = float(os.environ.get("QCLS_HOSTILE_FACTOR", "1"))
N_KILLS = 10


def halves(out: Path) -> list[str]:
    """Files under a final name that are not whole."""
    found = []
    for name in outputs(out):
        try:
            pq.read_metadata(out / name)
        except pa.ArrowException:
            found.append(name)
    return found


def check_rows(row: Row, path: Path, out: Path, n_asked: int) -> None:
    """Every row of the input once, in its order, with the labels that `classify` gives."""
    given = pq.read_table(path)
    found = pa.concat_tables([pq.read_table(out / name) for name in outputs(out)])
    row.check(found.select(given.column_names).equals(given), "the rows are not those of the input")
    row.check(found.column("error").null_count == len(found), "rows without labels")
    first: dict[str, int] = {}
    for number, query in enumerate(found.column("query").to_pylist()):
        first.setdefault(query, number)
    asked = random.Random(row.seed).sample(sorted(first.values()), min(n_asked, len(first)))
    row.kinds["queries asked again"] = len(asked)
    with Classifier.from_config(CONFIG) as classifier:
        check_like_classify(classifier, [found.slice(number, 1).to_pylist()[0] for number in asked])


@pytest.mark.hostile
def test_killed_at_random_ten_times(row: Row, tmp_path: Path) -> None:
    row.name, row.n = "label, killed", N_KILLS
    rng = random.Random(row.seed)
    path, out = tmp_path / "log.parquet", tmp_path / "out"
    query_log(path, round(6_000 * FACTOR), round(2_000 * FACTOR))
    line = label_command(path, out, "--shard-rows", str(round(200 * FACTOR)))
    for _ in range(N_KILLS):
        before = len(outputs(out))
        with subprocess.Popen([*line, "--quiet"], cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
            until = time.monotonic() + 120
            while process.poll() is None and len(outputs(out)) <= before and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(rng.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
        row.kinds["killed" if process.returncode == -signal.SIGKILL else "ended by itself"] += 1
        row.check(halves(out) == [], f"half files: {halves(out)}")
        row.check(len(outputs(out)) >= before, "files are gone")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    row.check(done.returncode == 0, done.stderr[-1000:])
    row.check("shards done already" in done.stderr, done.stderr[-1000:])
    check_rows(row, path, out, round(500 * FACTOR))
    assert row.kinds["killed"] >= N_KILLS / 2


@pytest.mark.hostile
def test_a_full_disk_loses_nothing(row: Row, tmp_path: Path) -> None:
    row.name, row.n = "label, full disk", 1
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("a file system can be mounted by its owner only")
    path, out = tmp_path / "log.parquet", disk / "out"
    try:
        query_log(path, 1_500, 100)
        line = label_command(path, out, "--shard-rows", "150")
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        row.check(done.returncode == 1, f"exit code {done.returncode}")
        row.check("could not be written: " in done.stderr and "finished files stay" in done.stderr, done.stderr)
        row.check("Traceback" not in done.stderr, done.stderr)
        before = outputs(out)
        row.check(bool(before) and halves(out) == [], f"{before}, of which half {halves(out)}")
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        row.check(done.returncode == 0, done.stderr)
        row.check(f"{len(before)} of 10 shards done already" in done.stderr, done.stderr)
        check_rows(row, path, out, 100)
    finally:
        subprocess.run(["umount", str(disk)], check=False)


_OLD = "the report of last week\n"
_MOST_BYTES = 300  # of a file, in the commands below: fewer than any report has
_SMALL = ["--threads", "1", "--quiet", "--format", "json"]
COMMANDS = {
    "bench --html": ["bench", "-n", "2", "--repeat", "1", "--html"],
    "eval --html": ["eval", "--data", "rows.jsonl", "--scoring", "tree", "--html"],
    "init --out": ["init", "--labels", "a=x,y", "--force", "--out"],
    "calibrate --out": ["calibrate", "--data", "rows.jsonl", "--force", "--out"],
}


@pytest.mark.parametrize("target", ["/dev/full", "link to /dev/full"])
def test_a_device_is_written_to_as_it_is(target: str, tmp_path: Path) -> None:
    path = Path(target)
    if target.startswith("link"):
        path = tmp_path / "report.json"
        path.symlink_to("/dev/full")
    with pytest.raises(QclsError, match="could not be written: No space left on device"):
        write_file(path, "text", "--out")
    write_file(Path("/dev/null"), "text", "--out")
    assert not Path("/dev/null").is_file()


def test_a_file_keeps_its_rights_and_a_link_its_target(tmp_path: Path) -> None:
    report, link = tmp_path / "report.json", tmp_path / "latest.json"
    report.write_text(_OLD)
    report.chmod(0o640)
    link.symlink_to(report)
    write_file(link, "new", "--out")
    assert link.is_symlink()
    assert (report.read_text(), report.stat().st_mode & 0o777) == ("new", 0o640)


class OneNumber(Record):
    """A record."""

    n: int = 1


def test_what_was_measured_is_printed_and_then_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QclsError, match=r"^--out /dev/full: could not be written: No space left on device$"):
        show(OneNumber(), None, "json", output=("--out", Path("/dev/full"), "report"))
    assert json.loads(capsys.readouterr().out) == {"n": 1}

    def fail(*words: object) -> None:
        raise error

    monkeypatch.setattr("builtins.print", fail)
    for error in (BrokenPipeError(), OSError(28, "No space left on device")):
        path = tmp_path / type(error).__name__
        with pytest.raises((BrokenPipeError, QclsError)):
            show(OneNumber(), None, "json", output=("--out", path, "report"))
        assert path.read_text() == "report"


def test_a_folder_that_takes_no_new_file_is_refused_before_the_work(tmp_path: Path) -> None:
    folder = Path("/proc/self")  # where a process can write to files and make none, even one with all rights
    with pytest.raises(ConfigError, match=r"--out .*: cannot be written"):
        check_outputs({"--out": folder / "comm"}, {})
    check_outputs({"--out": tmp_path / "new.json"}, {})
    assert not list(tmp_path.iterdir())


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))


@cases(
    "init --out",
    *(pytest.param(name, id=f"{name}, too", marks=pytest.mark.hostile) for name in COMMANDS),  # seconds each
)
def test_a_command_whose_file_does_not_fit(name: str, row: Row, tmp_path: Path) -> None:
    row.name, row.n = f"full disk: {name}", 1
    write_rows(tmp_path / "rows.jsonl", tiny_rows("heldout")[:300])
    path = written(tmp_path / "report", _OLD)
    words = [*COMMANDS[name], path, *([] if name == "init --out" else _SMALL)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # Python would keep, and later trust, half a file
    # the cache of prefixes does not fit either, and nobody minds
    done = run(*words, cwd=tmp_path, env=environment, preexec_fn=_limited)
    said = f"qcls-gguf: {name.split()[1]} {path}: could not be written: File too large\n"
    row.check(done.returncode == 1, f"exit code {done.returncode}")
    row.check(done.stderr.endswith(said) and "Traceback" not in done.stderr, done.stderr)
    row.check(sorted(os.listdir(tmp_path)) == ["report", "rows.jsonl"], f"left: {os.listdir(tmp_path)}")
    row.check(path.read_text() == _OLD, "the old report is gone")
    row.check(name == "init --out" or bool(json.loads(done.stdout)), "nothing was printed")
