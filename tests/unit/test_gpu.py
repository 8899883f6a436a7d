"""What is said of a GPU, what a start there makes NVIDIA's driver do, and what a build says of its architectures."""

import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qcls_gguf.native import Device, build_info
from qcls_gguf.native import device as device_module
from qcls_gguf.native.device import CudaDevice, driver_step, first_cuda_device, running_code
from qcls_gguf.report.environment import GpuState, gpu_state


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


@pytest.mark.parametrize(
    ("architectures", "capability", "wanted"),
    [
        ("75", 75, (75, False)),
        ("75", 90, (75, True)),
        ("75 86", 89, (86, False)),
        ("75 86", 80, (75, True)),
        ("75-real", 86, None),
        ("75-virtual 86-real", 120, (75, True)),
        ("90a", 100, None),
        ("120f", 121, (120, False)),
    ],
)
def test_a_gpu_runs_the_newest_code_that_is_not_newer(
    architectures: str, capability: int, wanted: tuple[int, bool] | None
) -> None:
    assert running_code(architectures.split(), capability) == wanted


@pytest.mark.parametrize(
    ("architectures", "capability", "step", "warning"),
    [
        ("75 90", 90, None, None),
        ("75", 90, r"for this GPU \(code for 75 on 90\), half a minute .*built with CUDAARCHS='75;90'$", None),
        ("90", 75, None, r"has no code for this GPU \(75\), but for 90: build with CUDAARCHS=75"),
    ],
)
def test_what_a_start_says(
    architectures: str, capability: int, step: str | None, warning: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, f"CUDA 13.0.88, architectures {architectures}", capability, n_gpus=1)
    with pytest.warns(UserWarning, match=warning) if warning else nullcontext():
        found = driver_step()
    assert re.search(step, found or "") if step else found is None


def test_a_gpu_that_is_not_used_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, "CUDA 13.0.88, architectures 75-virtual", 90, n_gpus=0)
    monkeypatch.setattr(device_module, "library_folder", lambda: tmp_path)
    module = tmp_path / "libggml-cuda.so"
    module.write_bytes(b"none")
    with pytest.warns(UserWarning, match=r"the CPU computes: libggml-cuda.so \(CUDA 13.* finds none: .*file too short"):
        driver_step()


def _pretend(monkeypatch: pytest.MonkeyPatch, backend: str, capability: int, n_gpus: int) -> None:
    build = replace(build_info(), backend=backend)
    gpu = Device(kind="GPU", name="a GPU", free_bytes=1)
    monkeypatch.setattr(device_module, "build_info", lambda: build)
    monkeypatch.setattr(device_module, "first_cuda_device", lambda: CudaDevice(capability=capability, driver=13000))
    monkeypatch.setattr(device_module, "devices", lambda: [gpu] * n_gpus)


DRIVER = """
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int * version) { *version = 13000; return 0; }
int cuDeviceGet(int * device, int index) { *device = 7 + index; return 0; }
int cuDeviceGetAttribute(int * value, int attribute, int device) {
    *value = attribute == 75 ? 8 : attribute == 76 ? 6 : -1;
    return device == 7 ? 0 : 1;
}
"""


def test_the_driver_is_asked_as_its_header_says(tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libdriver.so", source], check=True)
    device = first_cuda_device(str(tmp_path / "libdriver.so"))
    assert device is not None
    assert (device.capability, device.driver) == (86, 13000)
