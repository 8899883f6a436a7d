"""A part of a GPU as a stand-in for a smaller one; see cuda/sm_slice.cu."""

from __future__ import annotations

import os
import warnings

from ..errors import ConfigError
from .device import Multiprocessors, multiprocessors
from .library import build_info

VARIABLE = "GGML_CUDA_SM_SLICE"


def slice_device(n: int) -> None:
    """Let CUDA compute on n multiprocessors for the rest of this process; call it before anything uses the device.

    Warns if the hardware gives more than n. Raises ConfigError without CUDA, or if CUDA has started. More
    multiprocessors than the device has, or a driver that cannot do it, end the process with the reason.
    """
    if not build_info().is_cuda:
        raise ConfigError(
            f"`sms` {n}: takes a part of a CUDA device, and this build is for the CPU: install with QCLS_CUDA=ON on a "
            "machine with an NVIDIA GPU"
        )
    os.environ[VARIABLE] = str(n)
    found = multiprocessors()
    if found is None:
        raise ConfigError(f"`sms` {n}: no CUDA device is seen: nvidia-smi tells what the driver sees")
    if found.n_planned != n:
        raise ConfigError(
            f"`sms` {n}: the CUDA backend had started with {found.n_planned} multiprocessors: set it in a new process"
        )
    if found.n_given != n:
        warnings.warn(
            f"`sms` {n}: the hardware gives {found.n_given} multiprocessors, the least it can be split at that holds "
            f"{n}: kernels plan for {n} and run on {found.n_given}; choose {found.n_given} for a slice that fits",
            stacklevel=2,
        )


def sliced_multiprocessors() -> Multiprocessors | None:
    """The multiprocessors that a slice computes on; None where the whole device computes."""
    return multiprocessors() if os.environ.get(VARIABLE) else None
