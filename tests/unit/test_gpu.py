"""What is said of a GPU: nothing where there is none, and what a driver answers."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from qcls_gguf.report.gpu import GpuState, gpu_state


@pytest.mark.parametrize("visible", ["", "-1", "1000"])
def test_a_process_that_sees_no_gpu_is_told_of_none(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_state() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_state() is None


@pytest.mark.parametrize(("visible", "found"), [("2,0", 2), ("GPU-7,GPU-8", "GPU-7")])
def test_the_first_visible_gpu_is_asked_and_old_drivers_leave_gaps(
    visible: str, found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NVMLError(Exception):
        """What the package raises."""

    def refuse(*_: Any) -> int:
        raise NVMLError

    closed: list[bool] = []
    driver = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetHandleByIndex=lambda index: ("gpu", index),
        nvmlDeviceGetHandleByUUID=lambda uuid: ("gpu", uuid),
        nvmlDeviceGetName=lambda gpu: f"T4 {gpu[1]}",
        nvmlDeviceGetClockInfo=lambda gpu, clock: 900,
        nvmlDeviceGetMaxClockInfo=refuse,
        nvmlDeviceGetCurrentClocksEventReasons=lambda gpu: 0x1 | 0x4 | 0x40,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_state() == GpuState(
        name=f"T4 {found}",
        driver=None,
        sm_mhz=900,
        max_sm_mhz=None,
        throttle_reasons=("power limit", "thermal limit of the hardware"),
    )
    assert closed == [True]
