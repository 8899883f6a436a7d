"""Several processes that label: each has its share of the shards, and one that dies is noticed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from labelled_tables import CONFIG

from qcls_gguf import QclsError, load_config
from qcls_gguf.labelling.inputs import read_input
from qcls_gguf.labelling.output import OutputFolder, Task
from qcls_gguf.labelling.processes import Processes
from qcls_gguf.labelling.records import ShardCounts
from qcls_gguf.labelling.worker import Job

N_SHARDS = 12


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Task]:
    path = tmp_path_factory.mktemp("in") / "in.txt"
    path.write_text("".join(f"red dress {n}\n" for n in range(2 * N_SHARDS)))
    return OutputFolder(path.parent, None).tasks([read_input(path, "query", 2, typed=True)])


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(Job(config=load_config(CONFIG), folder=tmp_path), ("cpu", "cpu"))
    started.start()
    yield started
    started.close()


def test_a_process_that_dies_ends_the_run_and_what_is_done_stays(
    processes: Processes, tasks: Sequence[Task], tmp_path: Path
) -> None:
    done: list[ShardCounts] = []

    def label() -> None:
        for progress in processes.label(tasks, 2):
            if progress.done and not done:
                os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
            done.extend(progress.done)

    with pytest.raises(QclsError, match=r"the process on device cpu has ended \(signal 9\): .* run the command again"):
        label()
    assert 0 < len(done) < N_SHARDS
    assert all((tmp_path / each.output).stat().st_size == each.n_bytes for each in done)
