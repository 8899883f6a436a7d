"""Shards labelled by actors of Ray, on one machine or many. Needs the extra `ray`, and a folder that all machines see.

The shards, the files and their manifest are those of a run without Ray: an actor labels a shard and renames its file,
and the driver notes it. An actor that dies is started again, and its shard is dealt again; where the driver dies, the
same command goes on from the files that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import ray as typed_ray

from ..config.words import counted
from ..errors import ConfigError, QclsError
from ..opening import ClassifierOpener
from .output import Task
from .processes import CPU
from .worker import LabelSettings, Progress, Ready, Worker

ray: Any = typed_ray  # its own types say nothing of what `remote` makes of a class
_RESTARTS = 3
"""of an actor, and tries of a shard"""


class _Actor:
    """A worker that stays open between shards."""

    def __init__(self, settings: LabelSettings) -> None:
        self._worker = Worker(settings, ClassifierOpener(offline=settings.offline))

    def ready(self) -> Ready:
        return self._worker.ready

    def label(self, task: Task, batch: int | None) -> Progress:
        total = Progress()
        for progress in self._worker.label([task], batch):
            total.add(progress)
        return total


class RayActors:
    """Actors of Ray: one for each given device, or as many as the machines have GPUs, or CPUs where there are none."""

    def __init__(self, settings: LabelSettings) -> None:
        """Join Ray's cluster, or start one here, and open a model in each actor."""
        devices = settings.devices
        ray.init(ignore_reinit_error=True, log_to_driver=False)
        resources = ray.cluster_resources()
        n_gpus = int(resources.get("GPU", 0))
        n = len(devices) or n_gpus or max(1, int(resources.get("CPU", 1)) - 1)
        on_gpu = n_gpus > 0 and CPU not in devices
        if set(devices) - {CPU} and not on_gpu:
            raise ConfigError(
                f"`devices` {','.join(devices)}: with `engine` ray all are GPUs or all cpu, and the cluster has "
                f"{counted(n_gpus, 'GPU')}"
            )
        actor = ray.remote(_Actor).options(
            num_cpus=1, num_gpus=n_gpus / n if on_gpu else 0, max_restarts=_RESTARTS, max_task_retries=_RESTARTS
        )
        settings = replace(settings, folder=settings.folder.absolute())
        self._actors = [actor.remote(settings) for _ in range(n)]
        try:
            self.ready: Ready = _got([each.ready.remote() for each in self._actors])[0]
        except BaseException:
            self.close()
            raise

    def label(self, tasks: Iterable[Task], batch: int | None) -> Iterator[Progress]:
        """Label shards, dealt to actors that are free; see Worker.label."""
        waiting = iter(tasks)
        running = {each.label.remote(task, batch): each for each, task in zip(self._actors, waiting, strict=False)}
        while running:
            (found,), _ = ray.wait(list(running))
            actor = running.pop(found)
            progress = _got(found)
            if (task := next(waiting, None)) is not None:
                running[actor.label.remote(task, batch)] = actor
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
