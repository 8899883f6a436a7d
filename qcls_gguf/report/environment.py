"""The machine and the interpreter that a record was made with."""

from __future__ import annotations

import os
import platform

import numpy as np

from ..config.schema import Config
from ..engine.capacity import n_threads
from ..native import Multiprocessors
from ..native.features import instruction_sets
from ..native.sm_slice import sliced_multiprocessors
from .record import Record


class Environment(Record):
    """The machine and the interpreter."""

    platform: str
    """operating system, its version and the processor's architecture"""
    machine: str
    """the processor's architecture"""
    n_cpus: int | None
    """logical CPUs; null where the system does not tell"""
    n_threads: int
    """threads that a decode uses on the CPU"""
    python: str
    """version of Python"""
    numpy: str
    """version of numpy"""
    instruction_sets: tuple[str, ...]
    """that the code for the CPU was compiled for, such as AVX2 or AMX_INT8"""
    sm_slice: Multiprocessors | None
    """the part of the GPU that computed; null where that was the whole GPU, or none"""


def environment(config: Config) -> Environment:
    """The machine and the interpreter as they are now."""
    return Environment(
        platform=platform.platform(),
        machine=platform.machine(),
        n_cpus=os.cpu_count(),
        n_threads=n_threads(config.runtime),
        python=platform.python_version(),
        numpy=np.__version__,
        instruction_sets=instruction_sets(),
        sm_slice=sliced_multiprocessors(),
    )
