"""`label --engine ray`: the files of a run without Ray, also where an actor or the driver is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from hostile_rows import Row
from labelled_tables import label_command, outputs, query_log, rows_of

pytest.importorskip("ray", reason="Ray is not installed: pip install 'qcls-gguf[ray]'")
pytestmark = pytest.mark.hostile
SHARDS = ("--shard-rows", "20")
ACTOR = "ray::_Actor"


def wait_for(n: int, out: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 240
    while len(outputs(out)) < n and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)


def actors(driver: int) -> list[psutil.Process]:
    """The actors' processes below a driver."""
    found = psutil.Process(driver).children(recursive=True)
    return [each for each in found if each.name().startswith("ray::_Actor"[:15]) or ACTOR in " ".join(each.cmdline())]


@pytest.mark.parametrize("who", ["actor", "driver"])
def test_ray_goes_on_when_somebody_is_killed(who: str, row: Row, tmp_path: Path) -> None:
    row.name, row.n = f"label --engine ray, {who} killed", 1
    path, alone, out = tmp_path / "log.parquet", tmp_path / "alone", tmp_path / "out"
    query_log(path, 400, 160)
    subprocess.run(label_command(path, alone, *SHARDS), check=True, capture_output=True)
    line = [*label_command(path, out, *SHARDS), "--engine", "ray", "--devices", "cpu,cpu"]
    with subprocess.Popen(line, stderr=subprocess.PIPE) as process:
        wait_for(3, out, process)
        if who == "actor":
            (victim, *_) = actors(process.pid)
            victim.kill()
        else:
            process.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=300)
    n_then = len(outputs(out))
    if who == "actor":
        row.check(process.returncode == 0, said.decode()[-2000:])
    else:
        row.check(process.returncode == -signal.SIGKILL, "the driver ended by itself")
        row.check(3 <= n_then < 20, f"{n_then} files")
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=dict(os.environ))
        row.check(done.returncode == 0, done.stderr[-2000:])
        row.check("shards done already" in done.stderr, done.stderr[-2000:])
    row.check(outputs(out) == outputs(alone), "other files")
    for name in outputs(alone):
        ours, theirs = rows_of(alone / name), rows_of(out / name)
        row.check([each["id"] for each in ours] == [each["id"] for each in theirs], f"{name}: other rows")
        labels = [[each[prompt] for prompt in ("category", "audience", "error")] for each in ours]
        row.check(labels == [[each[prompt] for prompt in ("category", "audience", "error")] for each in theirs], name)
    assert pq.read_table(out / outputs(out)[0]).num_rows == 20
