"""Workers in processes of their own, each on one device."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any

from ..config.words import counted
from ..errors import ConfigError, QclsError
from ..model.placement import gpus
from ..native import build_info
from ..opening import ClassifierOpener
from .output import Task
from .worker import LabelSettings, Progress, Ready, Worker

CPU = "cpu"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_TOLD_S = 0.3
_STOP_S = 5.0


class Processes:
    """A worker in a process of its own on each of some devices."""

    def __init__(self, settings: LabelSettings) -> None:
        """Start a process for each device, and wait until each has opened its model.

        Raises what Classifier.from_config raises, and ConfigError for a missing GPU.
        """
        self._processes: dict[Connection, BaseProcess] = {}
        try:
            self.ready = self._start(settings)
        except BaseException:
            self.close()
            raise

    def _start(self, settings: LabelSettings) -> Ready:
        context = multiprocessing.get_context("spawn")  # a library of threads and a GPU's driver survive no fork
        for device in settings.devices:
            mine, theirs = context.Pipe()
            arguments = settings, device, visible_gpus(device), theirs
            process = context.Process(target=_work, args=arguments, name=device, daemon=True)
            process.start()
            theirs.close()
            self._processes[mine] = process
        ready: dict[Connection, Ready] = {}
        while waiting := [pipe for pipe in self._processes if pipe not in ready]:
            ready |= self._received(waiting)  # the first that fails is told, however long others take to open theirs
        first = next(iter(ready.values()))
        for pipe, each in ready.items():
            check_used(self._processes[pipe].name, each.model.n_gpu_layers)
            if (each.digest, each.model.sha256) != (first.digest, first.model.sha256):
                raise ConfigError("the model's file was changed while it was opened: run the command again")
        return first

    def label(self, tasks: Sequence[Task], batch: int | None) -> Iterator[Progress]:
        """Label shards, of which each process takes the next one when it wants one; see Worker.label."""
        left, n_left = iter(tasks), len(tasks)
        # The first one measures while the others wait, which would be measured with it; all use the size that it found.
        idle = list(self._processes)
        n_started = len(idle) if batch else 1
        while n_left:
            for pipe in idle[:n_started]:
                pipe.send(batch)
            idle, n_started = idle[n_started:], 0
            for pipe, progress in self._received(list(self._processes)):
                if progress is None:  # it wants a shard
                    with suppress(OSError):  # it has ended, which its pipe tells
                        pipe.send(next(left, None))
                    continue
                if progress.batch or progress.done:  # or it had nothing to measure: the cache knew all its answers
                    batch, n_started = progress.batch, len(idle)
                n_left -= len(progress.done)
                yield progress

    def _received(self, pipes: Sequence[Connection]) -> Iterator[tuple[Connection, Any]]:
        """What some processes have said, as soon as one has. Raises what a process has raised, and QclsError for one
        that has ended.
        """
        for pipe in wait(pipes):
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                process = self._processes[pipe]
                process.join(_STOP_S)
                code = process.exitcode
                how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
                raise QclsError(
                    f"the process on device {process.name} has ended ({how}): the files that are there already stay; "
                    "run the command again"
                ) from None
            if isinstance(message, BaseException):
                raise message
            yield pipe, message

    def close(self) -> None:
        """Stop all processes."""
        for pipe, process in self._processes.items():
            pipe.close()
            process.terminate()
        for process in self._processes.values():
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()


def _work(settings: LabelSettings, device: str, visible: str, pipe: Connection) -> None:
    """Run a process that was started for a device: say that it is ready, receive the size of batches, then ask for
    shard after shard, and label them, until None comes.
    """
    os.environ[_VISIBLE] = visible  # the library, which is not loaded yet, reads it as it starts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to the whole group: the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def next_task() -> Task | None:
        pipe.send(None)
        return pipe.recv()  # type: ignore[no-any-return]

    try:
        check_seen(device)
        with ClassifierOpener(offline=settings.offline) as opener, closing(Worker(settings, opener)) as worker:
            pipe.send(worker.ready)
            batch = pipe.recv()
            waiting, told = Progress(), perf_counter()
            for progress in worker.label(iter(next_task, None), batch):
                waiting.add(progress)
                if waiting.done or waiting.batch or perf_counter() - told > _TOLD_S:
                    pipe.send(waiting)
                    waiting, told = Progress(), perf_counter()
            pipe.recv()  # nothing comes: until the parent has read all, its end of the pipe stays open
    except (EOFError, ConnectionError):  # nobody listens any more
        return
    except QclsError as e:
        pipe.send(type(e)(str(e)))
    except Exception:
        pipe.send(QclsError(f"a process failed:\n{traceback.format_exc()}"))


def _end_with_parent() -> None:
    """Nobody reads what a process writes whose parent was killed, and another run may want its shards."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def visible_gpus(device: str) -> str:
    """The value of CUDA_VISIBLE_DEVICES with which a process sees one GPU, or none.

    device: its number among those that this process may see, some of which a scheduler may have lent it, or `cpu`.
    Raises ConfigError where there are fewer.
    """
    visible = os.environ.get(_VISIBLE)
    if device == CPU or visible is None:
        return "" if device == CPU else device
    names = [name for name in map(str.strip, visible.split(",")) if name]
    if int(device) >= len(names):
        raise ConfigError(
            f"`devices` {device}: {_VISIBLE}={visible} lets this process see {counted(len(names), 'GPU')}, and they "
            "are numbered from 0: name others, or cpu, or set the variable"
        )
    return names[int(device)]


def check_seen(device: str) -> None:
    """Raise ConfigError in a process that was started for a GPU which is not there."""
    if device != CPU and not gpus():
        why = "the driver knows no such GPU: `nvidia-smi -L` lists those there are, from 0"
        why = why if build_info().is_cuda else "this build has no CUDA: build it with QCLS_CUDA=ON"
        raise ConfigError(f"`devices` {device}: {why}, or name cpu")


def check_used(device: str, n_gpu_layers: int) -> None:
    """Raise ConfigError where a process that was started for a GPU computes without it."""
    if device != CPU and n_gpu_layers == 0:
        raise ConfigError(
            f"`devices` {device}: no layer of the model is on that GPU: free memory there, raise "
            "runtime.n_gpu_layers, or name cpu"
        )
