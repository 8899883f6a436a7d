"""What is said of a GPU: nothing but the reason where there is none, and the ranges and brakes of what was sampled."""

from __future__ import annotations

import sys
import threading

import pytest

from qcls_gguf.bench.document import samples_text
from qcls_gguf.report.gpu import GpuRange, GpuRun, GpuState, gpu_facts, watched_gpu, why_no_gpu


def state(mhz: int | None, watts: float | None = 70.0, brakes: tuple[str, ...] = ()) -> GpuState:
    return GpuState(sm_mhz=mhz, power_w=watts, temperature_c=60, brakes=brakes)


def test_a_run_is_told_by_its_ranges_and_the_share_of_its_brakes() -> None:
    states = [
        state(1590),
        state(900, brakes=("power limit",)),
        state(None, None),
        state(600, 71.0, ("power limit",)),
    ]
    samples = GpuRun(states=states).record()
    assert samples is not None
    assert samples.n_samples == 4
    assert samples.sm_mhz == GpuRange(min=600, p50=900, max=1590)
    assert samples.power_w == GpuRange(min=70.0, p50=70.0, max=71.0)
    assert samples.brakes == {"power limit": 0.5}
    assert samples_text(samples) == (
        "600 to 1590 MHz, mostly 900; 70 to 71 W, mostly 70; 60 to 60 °C, mostly 60; "
        "held down by power limit 50% of the time"
    )
    assert GpuRun().record() is None
    unknown = GpuRun(states=[state(None, None)]).record()
    assert unknown is not None
    assert (unknown.sm_mhz, unknown.brakes) == (None, {})


def test_without_the_package_the_reason_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert why_no_gpu() == "nvidia-ml-py is not installed: pip install 'qcls-gguf[bench]'"
    assert gpu_facts() is None


@pytest.mark.parametrize("visible", ["", "-1", "1000"])
def test_a_process_that_sees_no_gpu_is_told_of_none(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    reason = why_no_gpu()
    assert reason is not None
    assert reason.startswith("NVIDIA's driver shows no GPU: ")
    assert gpu_facts() is None
    run, n_threads = GpuRun(), threading.active_count()
    with watched_gpu(run):
        assert threading.active_count() == n_threads
    assert run.states == []


@pytest.mark.skipif(why_no_gpu() is not None, reason="needs an NVIDIA GPU and nvidia-ml-py")
def test_the_gpu_of_this_machine_has_a_name_and_a_state() -> None:
    facts = gpu_facts()
    assert facts is not None
    assert facts.name
    assert facts.driver
    run = GpuRun()
    with watched_gpu(run):
        pass
    assert 1 <= len(run.states) <= 2
