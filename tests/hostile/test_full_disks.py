"""Disks that fill up: what was measured is printed, the old report stays, and the error names the file."""

import json
import os
import resource
from pathlib import Path

import pytest
from commands import run, tiny_rows, write_rows
from hostile_rows import Row

from qcls_gguf import ConfigError, QclsError
from qcls_gguf.cli.terminal import show
from qcls_gguf.report.files import check_outputs, write_file
from qcls_gguf.report.record import Record

_OLD = "the report of last week\n"
_MOST_BYTES = 300  # of a file, in the commands below: fewer than any report has
_SMALL = ["--threads", "1", "--quiet", "--format", "json"]
COMMANDS = {
    "bench --html": ["bench", "-n", "2", "--warm-up", "1", "--repeat", "1", "--html"],
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
    assert report.read_text() == "new"
    assert report.stat().st_mode & 0o777 == 0o640


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


@pytest.mark.parametrize(
    "name",
    [
        "init --out",
        *(pytest.param(name, id=f"{name}, too", marks=pytest.mark.hostile) for name in COMMANDS),  # seconds each
    ],
)
def test_a_command_whose_file_does_not_fit(name: str, row: Row, tmp_path: Path) -> None:
    row.name, row.n = f"full disk: {name}", 1
    write_rows(tmp_path / "rows.jsonl", tiny_rows("heldout")[:300])
    path = tmp_path / "report"
    path.write_text(_OLD)
    words = [*COMMANDS[name], path, *([] if name == "init --out" else _SMALL)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # Python would keep, and later trust, half a file
    # the caches of matplotlib and of prefixes do not fit either, and nobody minds
    done = run(*words, cwd=tmp_path, env=environment, preexec_fn=_limited)
    said = f"qcls-gguf: {name.split()[1]} {path}: could not be written: File too large\n"
    row.check(done.returncode == 1, f"exit code {done.returncode}")
    row.check(done.stderr.endswith(said) and "Traceback" not in done.stderr, done.stderr)
    row.check(sorted(os.listdir(tmp_path)) == ["report", "rows.jsonl"], f"left: {os.listdir(tmp_path)}")
    row.check(path.read_text() == _OLD, "the old report is gone")
    row.check(name == "init --out" or bool(json.loads(done.stdout)), "nothing was printed")
