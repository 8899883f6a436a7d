"""Who labels shards: a worker in this process, or workers in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any, Protocol

from ..errors import ConfigError, QclsError
from ..opening import ClassifierOpener
from .job import AnyTask, Done, Filled, Job, Message, OnMessage, Ready, Speeds, Step
from .one_device import check_seen, check_used, only

_TOLD_S = 0.3
_N_AHEAD = 3
"""shards that a process has: one to work at, while the one before is written and the one behind is read"""
_STOP_S = 5.0


class Crew(Protocol):
    """Labels shards, somewhere."""

    def start(self) -> Ready:
        """Open the model. Raises what Classifier.from_config raises."""

    def label(self, tasks: Iterable[AnyTask], speeds: Speeds | None) -> Iterator[Done | Filled]:
        """Label shards; each is told of when its file has its name. Raises QclsError, with those before it done."""

    def close(self) -> None:
        """Stop."""


class OwnProcess:
    """One worker in this process."""

    def __init__(self, job: Job, opener: ClassifierOpener, on_message: OnMessage) -> None:
        self._job, self._opener, self._on_message = job, opener, on_message

    def start(self) -> Ready:
        """Open the model."""
        from .worker import Worker

        self._worker = Worker(self._job, self._opener, self._on_message)
        return self._worker.ready

    def label(self, tasks: Iterable[AnyTask], speeds: Speeds | None) -> Iterator[Done | Filled]:
        """Label shards one after the other."""
        if speeds is not None:
            self._worker.use(speeds)
        return self._worker.label(tasks)

    def close(self) -> None:
        """Close the classifier."""
        if hasattr(self, "_worker"):
            self._worker.close()


class Processes:
    """A worker in a process of its own on each of some devices."""

    def __init__(self, job: Job, devices: Sequence[str], on_message: OnMessage) -> None:
        """devices: numbers of GPUs as in `only`, or `cpu`; one may be given several times."""
        self._job, self._devices, self._on_message = job, devices, on_message
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def start(self) -> Ready:
        """Start all processes, and wait until each has opened its model. Raises ConfigError for a GPU there is not."""
        context = multiprocessing.get_context("spawn")  # a library of threads and a GPU's driver survive no fork
        for device in self._devices:
            mine, theirs = context.Pipe()
            process = context.Process(target=work, args=(self._job, device, theirs), daemon=True)
            with only(device):
                process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(mine)
        ready: dict[int, Ready] = {}
        while left := [pipe for index, pipe in enumerate(self._pipes) if index not in ready]:
            for pipe in wait(left):  # whoever fails first is told, however long others take to open their model
                index = self._pipes.index(pipe)  # type: ignore[arg-type]
                message = self._receive(index)
                assert isinstance(message, Ready)
                ready[index] = message
        first = ready[0]
        for index, device in enumerate(self._devices):
            each = ready[index]
            check_used(device, each.model.n_gpu_layers)
            if (each.digest, each.model.sha256) != (first.digest, first.model.sha256):
                raise ConfigError("the model's file was changed while it was opened: run the command again")
            self._on_message(each)
        return first

    def label(self, tasks: Iterable[AnyTask], speeds: Speeds | None) -> Iterator[Done | Filled]:
        """Deal shards to whoever is free."""
        waiting = iter(tasks)
        left = [0] * len(self._pipes)
        ended = [False] * len(self._pipes)

        def deal(index: int) -> None:
            task = next(waiting, None)
            if not ended[index]:
                with suppress(OSError):  # it has ended, which its pipe tells
                    self._pipes[index].send(task)
            left[index] += task is not None
            ended[index] = task is None

        def start(index: int) -> None:
            if speeds is not None:
                self._pipes[index].send(speeds)
            for _ in range(_N_AHEAD):
                deal(index)

        # The first one measures while the others wait, which would be measured with it; all use the size that it found.
        n_started = 1 if speeds is None and self._job.batch is None else len(self._pipes)
        for index in range(n_started):
            start(index)
        while any(left):
            for pipe in wait([pipe for pipe, n in zip(self._pipes, left, strict=True) if n]):
                index = self._pipes.index(pipe)  # type: ignore[arg-type]
                message = self._receive(index)
                if isinstance(message, Speeds | Step):
                    self._on_message(message)
                if n_started == 1 and isinstance(message, Speeds | Done | Filled):
                    # The first one may have had nothing to measure: the cache knew all its answers. Then each measures.
                    speeds, n_started = message if isinstance(message, Speeds) else None, len(self._pipes)
                    for other in range(1, n_started):
                        start(other)
                if isinstance(message, Done | Filled):
                    left[index] -= 1
                    deal(index)
                    yield message

    def _receive(self, index: int) -> Message | Filled:
        try:
            message = self._pipes[index].recv()
        except (EOFError, OSError):
            process = self._processes[index]
            process.join(_STOP_S)
            code = process.exitcode
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            raise QclsError(
                f"the process on device {self._devices[index]} has ended ({how}): the files that are there already "
                "stay; run the command again"
            ) from None
        if isinstance(message, BaseException):
            raise message
        return message  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop all processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()


def work(job: Job, device: str, pipe: Connection) -> None:
    """What a process that was started for a device does: tell that it is ready, then label what it is sent until None
    comes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to the whole group: the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    told = perf_counter()
    steps: list[Step] = []

    def tell(message: Message) -> None:
        nonlocal told
        if isinstance(message, Step):
            steps.append(message)
            if perf_counter() - told < _TOLD_S:
                return
            message = together(steps)
            steps.clear()
            told = perf_counter()
        pipe.send(message)

    def tasks(first: AnyTask | Speeds | None) -> Iterator[AnyTask]:
        task = first
        while task is not None:
            if isinstance(task, Speeds):
                worker.use(task)
            else:
                yield task
            task = pipe.recv()

    try:
        check_seen(device)
        from .worker import Worker  # not for a process that has nothing to do

        with ClassifierOpener(offline=job.offline) as opener, Worker(job, opener, tell) as worker:
            for done in worker.label(tasks(pipe.recv())):
                if steps:
                    pipe.send(together(steps))
                    steps.clear()
                pipe.send(done)
            pipe.recv()  # nothing comes: until the parent has read all, its end of the pipe stays open
    except EOFError:
        return
    except QclsError as e:
        pipe.send(type(e)(str(e)))
    except Exception:
        pipe.send(QclsError(f"a process failed:\n{traceback.format_exc()}"))


def together(steps: Sequence[Step]) -> Step:
    """Several steps as one."""
    return Step(
        n_queries=sum(step.n_queries for step in steps),
        n_computed=sum(step.n_computed for step in steps),
        n_rows=sum(step.n_rows for step in steps),
    )


def _end_with_parent() -> None:
    """Nobody reads what a process writes whose parent was killed, and another run may want its shards."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
