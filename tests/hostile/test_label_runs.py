"""Runs of `label` that are killed, and disks that fill up: what is done stays, and the same command goes on."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile_rows import Row
from labelled_tables import CLOSE, CONFIG, label_command, outputs, query_log

from qcls_gguf import Classifier

FACTOR = float(os.environ.get("QCLS_HOSTILE_FACTOR", "1"))
N_KILLS = 10
pytestmark = pytest.mark.hostile


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
    n_other = 0
    with Classifier.from_config(CONFIG) as classifier:
        for number in asked:
            labelled = found.slice(number, 1).to_pylist()[0]
            for answer in classifier.classify(labelled["query"]).results:
                scores = {score.label: score.probability for score in answer.scores}
                own = labelled[answer.prompt]
                n_other += own != answer.label
                row.check(scores[own] > answer.probability - CLOSE, f"row {number}: {own}, not {answer.label}")
                close = abs(labelled[f"{answer.prompt}_probability"] - answer.probability) < CLOSE
                row.check(close, f"row {number}: another probability")
    row.kinds["queries asked again"] = len(asked)
    row.kinds["labels that differ where two are equally probable"] = n_other


@pytest.mark.parametrize(
    "options", [(), ("--cache", "answers.sqlite")], ids=lambda options: "".join(options) or "alone"
)
def test_killed_at_random_ten_times(options: tuple[str, ...], row: Row, tmp_path: Path) -> None:
    row.name, row.n = f"label, killed {' '.join(options)}".strip(), N_KILLS
    rng = random.Random(row.seed)
    path, out = tmp_path / "log.parquet", tmp_path / "out"
    query_log(path, round(6_000 * FACTOR), round(2_000 * FACTOR))
    line = label_command(path, out, "--shard-rows", str(round(200 * FACTOR)), *options)
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


def test_a_full_disk_loses_nothing(row: Row, tmp_path: Path) -> None:
    row.name, row.n = "label, full disk", 1
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=132k", "tmpfs", str(disk)], check=False).returncode:
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
