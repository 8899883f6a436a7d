"""Shards labelled by actors of Ray, on one machine or many. Needs the extra `ray`, and a folder that all machines see.

The shards, the files and their manifest are those of a run without Ray: an actor labels a shard and renames its file,
and the driver notes it. An actor that dies is started again, and its shard is dealt again; where the driver dies, the
same command goes on from the files that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray as typed_ray

from ..config.words import counted
from ..errors import ConfigError, QclsError
from ..opening import ClassifierOpener
from .output import Task
from .processes import CPU
from .worker import Job, Progress, Ready, Worker

ray: Any = typed_ray  # its own types say nothing of what `remote` makes of a class
_RESTARTS = 3
"""of an actor, and tries of a shard"""


class _Actor:
    """A worker that stays open between shards."""

    def __init__(self, job: Job) -> None:
        self._worker = Worker(job, ClassifierOpener(offline=job.offline))

    def ready(self) -> Ready:
        return self._worker.ready

    def use(self, batch: int) -> None:
        self._worker.batch = batch

    def label(self, task: Task) -> Progress:
        total = Progress()
        for progress in self._worker.label([task]):
            total.add(progress)
        return total


class RayActors:
    """Actors of Ray: one for each given device, or as many as the machines have GPUs, or CPUs where there are none."""

    def __init__(self, job: Job, devices: Sequence[str]) -> None:
        self._job, self._devices = replace(job, folder=job.folder.absolute()), devices

    def start(self) -> Ready:
        """Join Ray's cluster, or start one here, and open a model in each actor."""
        ray.init(ignore_reinit_error=True, log_to_driver=False)
        resources = ray.cluster_resources()
        n_gpus = int(resources.get("GPU", 0))
        n = len(self._devices) or n_gpus or max(1, int(resources.get("CPU", 1)) - 1)
        on_gpu = n_gpus > 0 and CPU not in self._devices
        if set(self._devices) - {CPU} and not on_gpu:
            raise ConfigError(
                f"`devices` {','.join(self._devices)}: with `engine` ray all are GPUs or all cpu, and the cluster has "
                f"{counted(n_gpus, 'GPU')}"
            )
        actor = ray.remote(_Actor).options(
            num_cpus=1, num_gpus=n_gpus / n if on_gpu else 0, max_restarts=_RESTARTS, max_task_retries=_RESTARTS
        )
        self._actors = [actor.remote(self._job) for _ in range(n)]
        return _got([each.ready.remote() for each in self._actors])[0]  # type: ignore[no-any-return]

    def label(self, tasks: Iterable[Task], batch: int | None) -> Iterator[Progress]:
        """Deal shards to actors that are free."""
        if batch is not None:
            _got([each.use.remote(batch) for each in self._actors])
        waiting = iter(tasks)
        running = {each.label.remote(task): each for each, task in zip(self._actors, waiting, strict=False)}
        while running:
            (found,), _ = ray.wait(list(running))
            actor = running.pop(found)
            progress = _got(found)
            if (task := next(waiting, None)) is not None:
                running[actor.label.remote(task)] = actor
            yield progress

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        ray.shutdown()


def _got(found: Any) -> Any:
    """What actors return. Raises QclsError for what they raise."""
    try:
        return ray.get(found)
    except ray.exceptions.RayError as e:
        cause = getattr(e, "cause", None) or e
        what = str(cause).splitlines()[-1] if str(cause) else type(cause).__name__
        raise QclsError(f"`engine` ray: {what}") from None
