"""One GPU, or none, for a process: what it is started with, and whether it sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..config.words import counted
from ..errors import ConfigError
from ..model.placement import gpus
from ..native import build_info

CPU = "cpu"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextmanager
def only(device: str) -> Iterator[None]:
    """What is started inside sees one GPU, or none: CUDA reads the variable as it starts.

    device: its number among those that this process may see, or `cpu`. Raises ConfigError where there are fewer.
    """
    before = os.environ.get(_VISIBLE)
    os.environ[_VISIBLE] = "" if device == CPU else _name(int(device), before)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VISIBLE]
        else:
            os.environ[_VISIBLE] = before


def _name(number: int, visible: str | None) -> str:
    """What the variable has for a GPU: its number in the machine, or what a scheduler lent this process."""
    if visible is None:
        return str(number)
    names = [name for name in map(str.strip, visible.split(",")) if name]
    if number >= len(names):
        raise ConfigError(
            f"`devices` {number}: {_VISIBLE}={visible} lets this process see {counted(len(names), 'GPU')}, and they "
            "are numbered from 0: name others, or cpu, or set the variable"
        )
    return names[number]


def check_seen(device: str) -> None:
    """Raise ConfigError in a process that was started for a GPU which is not there."""
    if device == CPU or gpus():
        return
    if not build_info().is_cuda:
        raise ConfigError(f"`devices` {device}: this build has no CUDA: build it with QCLS_CUDA=ON, or name cpu")
    raise ConfigError(
        f"`devices` {device}: the driver knows no such GPU: `nvidia-smi -L` lists those there are, from 0, or name cpu"
    )


def check_used(device: str, n_gpu_layers: int) -> None:
    """Raise ConfigError where a process that was started for a GPU computes without it."""
    if device != CPU and n_gpu_layers == 0:
        raise ConfigError(
            f"`devices` {device}: no layer of the model is on that GPU: free memory there, raise "
            "runtime.n_gpu_layers, or name cpu"
        )
