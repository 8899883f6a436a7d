"""Shards labelled by actors of Ray, on one machine or many. Needs the extra `ray`, and a folder that all machines see.

The shards, the files and their manifest are those of a run without Ray: an actor labels a shard and renames its file,
and the driver notes it. An actor that dies is started again, and its shard is dealt again; where the driver dies, the
same command goes on from the files that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray as typed_ray

from ..config.words import counted
from ..errors import ConfigError, QclsError
from ..opening import ClassifierOpener
from .crews import together
from .job import AnyTask, Done, Filled, Job, Message, OnMessage, Ready, Speeds, Step
from .one_device import CPU
from .worker import Worker

ray: Any = typed_ray  # its own types say nothing of what `remote` makes of a class
_RESTARTS = 3
"""of an actor, and tries of a shard"""


class _Actor:
    """A worker that stays open between shards."""

    def __init__(self, job: Job) -> None:
        self._messages: list[Message] = []
        self._opener = ClassifierOpener(offline=job.offline)
        self._worker = Worker(job, self._opener, self._messages.append)

    def ready(self) -> Ready:
        return self._worker.ready

    def use(self, speeds: Speeds) -> None:
        self._worker.use(speeds)

    def label(self, task: AnyTask) -> tuple[list[Message], Done | Filled]:
        self._messages.clear()
        (done,) = self._worker.label([task])
        steps = [each for each in self._messages if isinstance(each, Step)]
        others = [each for each in self._messages if not isinstance(each, Step)]
        return [*others, together(steps)], done


class RayActors:
    """Actors of Ray: one for each given device, or as many as the machines have GPUs, or CPUs where there are none."""

    def __init__(self, job: Job, devices: Sequence[str], on_message: OnMessage) -> None:
        self._job, self._devices, self._on_message = job, devices, on_message

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
        job = replace(self._job, folder=Path(self._job.folder).absolute())
        actor = ray.remote(_Actor).options(
            num_cpus=1, num_gpus=n_gpus / n if on_gpu else 0, max_restarts=_RESTARTS, max_task_retries=_RESTARTS
        )
        self._actors: list[Any] = [actor.remote(job) for _ in range(n)]
        try:
            ready: Ready = ray.get([each.ready.remote() for each in self._actors])[0]
        except ray.exceptions.RayError as e:
            raise QclsError(f"`engine` ray: {_cause(e)}") from None
        return ready

    def label(self, tasks: Iterable[AnyTask], speeds: Speeds | None) -> Iterator[Done | Filled]:
        """Deal shards to whoever is free."""
        if speeds is not None:
            ray.get([each.use.remote(speeds) for each in self._actors])
        waiting = iter(tasks)
        running = {each.label.remote(task): each for each, task in zip(self._actors, waiting, strict=False)}
        while running:
            (found,), _ = ray.wait(list(running))
            actor = running.pop(found)
            try:
                messages, done = ray.get(found)
            except ray.exceptions.RayError as e:
                raise QclsError(f"`engine` ray: {_cause(e)}") from None
            for message in messages:
                self._on_message(message)
            if (task := next(waiting, None)) is not None:
                running[actor.label.remote(task)] = actor
            yield done

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        ray.shutdown()


def _cause(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    return str(cause).splitlines()[-1] if str(cause) else type(cause).__name__
