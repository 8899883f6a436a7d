"""The state of the GPU in use at one moment: its name, its clock, and what limits the clock.

It is read from NVIDIA's driver through NVML, with the package nvidia-ml-py of the extra `bench`.
"""

from __future__ import annotations

import os
from typing import Any

from .record import Record

# Bits of nvmlDeviceGetCurrentClocksEventReasons, by nvml.h; "idle" and clocks that were asked for slow nothing down.
_THROTTLE_REASONS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "thermal limit of the driver",
    0x40: "thermal limit of the hardware",
    0x80: "power brake",
}


class GpuState(Record):
    """The GPU in use; null for values that the driver does not give, as for a part of a GPU (MIG)."""

    name: str | None
    """name of the card"""
    driver: str | None
    """version of NVIDIA's driver"""
    sm_mhz: int | None
    """clock of its multiprocessors"""
    max_sm_mhz: int | None
    """the highest clock"""
    throttle_reasons: tuple[str, ...]
    """what limits the clock"""


def gpu_state() -> GpuState | None:
    """The first GPU that this process may see, now; None without the package, the driver or a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # there is no package, or no driver
        return None

    def ask(question: str, *subject: Any) -> Any:
        try:
            return getattr(pynvml, f"nvml{question}")(*subject)
        except (pynvml.NVMLError, AttributeError):  # a driver, or a package, that is too old for the question
            return None

    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        if first.startswith(("GPU-", "MIG-")):
            gpu = ask("DeviceGetHandleByUUID", first)
        else:  # empty or -1: CUDA is to see none
            gpu = ask("DeviceGetHandleByIndex", int(first)) if first.isdecimal() else None
        if gpu is None:
            return None
        reasons = ask("DeviceGetCurrentClocksEventReasons", gpu) or 0
        return GpuState(
            name=ask("DeviceGetName", gpu),
            driver=ask("SystemGetDriverVersion"),
            sm_mhz=ask("DeviceGetClockInfo", gpu, pynvml.NVML_CLOCK_SM),
            max_sm_mhz=ask("DeviceGetMaxClockInfo", gpu, pynvml.NVML_CLOCK_SM),
            throttle_reasons=tuple(name for bit, name in _THROTTLE_REASONS.items() if reasons & bit),
        )
    finally:
        pynvml.nvmlShutdown()
