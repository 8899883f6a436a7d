"""Several processes that label: each has its share of the shards, and one that dies is noticed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from labelled_tables import CONFIG

from qcls_gguf import QclsError, load_config
from qcls_gguf.labelling.crews import Processes
from qcls_gguf.labelling.job import Done, Job, Task
from qcls_gguf.labelling.shards import plan_input

N_SHARDS = 12


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Task]:
    path = tmp_path_factory.mktemp("in") / "in.txt"
    path.write_text("".join(f"red dress {n}\n" for n in range(2 * N_SHARDS)))
    planned = plan_input(path, "text", "query", 2, typed=True)
    return [Task(shard=shard, output=f"{number}.csv", planned=planned) for number, shard in enumerate(planned.shards)]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(Job(config=load_config(CONFIG), folder=tmp_path, batch=2), ("cpu", "cpu"), lambda _: None)
    processes.start()
    yield processes
    processes.close()


def test_a_process_that_dies_ends_the_run_and_what_is_done_stays(
    crew: Processes, tasks: Sequence[Task], tmp_path: Path
) -> None:
    done: list[Done] = []

    def label() -> None:
        for each in crew.label(tasks, None):
            assert isinstance(each, Done)
            if not done:
                os.kill(crew._processes[1].pid, signal.SIGKILL)
            done.append(each)

    with pytest.raises(QclsError, match=r"the process on device cpu has ended \(signal 9\): .* run the command again"):
        label()
    assert 0 < len(done) < N_SHARDS
    assert all((tmp_path / each.task.output).stat().st_size == each.counts.n_bytes for each in done)
