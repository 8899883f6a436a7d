"""Where a record was made and with what configuration, as plain values."""

from __future__ import annotations

import dataclasses
import os
import platform
from typing import Any

import numpy as np

from ..config.schema import Config
from ..engine.capacity import n_threads
from ..native.features import instruction_sets
from ..native.sm_slice import slice_record


def plain_config(config: Config) -> dict[str, Any]:
    """The configuration as JSON has it."""
    plain = dataclasses.asdict(config)
    plain["path"] = config.path and str(config.path)
    plain["calibration"] = config.calibration and str(config.calibration)
    plain["model"]["path"] = config.model.path and str(config.model.path)
    return plain


def environment(config: Config) -> dict[str, Any]:
    """The machine and the interpreter, as JSON has them."""
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "instruction_sets": list(instruction_sets()),
        "n_cpus": os.cpu_count(),
        "n_threads": n_threads(config.runtime),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "sm_slice": slice_record(),
    }
