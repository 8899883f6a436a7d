"""What NVIDIA's driver says of the GPU in use: which it is, its state, and what slowed it while work ran.

All of it through NVML, by the package nvidia-ml-py of the extra `bench`. Without that package, that driver or such a
GPU there are no facts, and `why_no_gpu` says which of them is missing.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .record import Record

INTERVAL_S = 1.0
"""between two samples: a card sags within seconds of load, and each sample asks the driver four things"""

# Bits of nvmlDeviceGetCurrentClocksEventReasons, by nvml.h; "idle" and clocks that were asked for are no brake.
_BRAKES = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "thermal limit of the driver",
    0x40: "thermal limit of the hardware",
    0x80: "power brake",
}


class GpuFacts(Record):
    """The GPU in use; null for values that the driver does not give, as for a part of a GPU (MIG)."""

    name: str | None
    """name of the card"""
    driver: str | None
    """version of NVIDIA's driver"""
    memory_bytes: int | None
    """memory of the GPU"""
    max_sm_mhz: int | None
    """the highest clock of its multiprocessors"""
    power_limit_w: float | None
    """the power that the driver lets it draw"""


class GpuState(NamedTuple):
    """A GPU at one moment; None for values that the driver does not give."""

    sm_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    brakes: tuple[str, ...]


class GpuRange(Record):
    """The values of the samples that have one."""

    min: float
    """the smallest"""
    p50: float
    """the median"""
    max: float
    """the largest"""


class GpuSamples(Record):
    """A GPU while work ran, sampled at equal intervals; null for values that the driver does not give."""

    n_samples: int
    """number of samples"""
    interval_s: float
    """time between two samples"""
    sm_mhz: GpuRange | None
    """clock of the multiprocessors"""
    power_w: GpuRange | None
    """power that it drew"""
    temperature_c: GpuRange | None
    """temperature in °C"""
    brakes: dict[str, float]
    """for each cause that limited its clock, the share of the samples, 0 to 1"""


@dataclass(slots=True, kw_only=True)
class GpuRun:
    """States of the GPU while work ran, at equal intervals."""

    states: list[GpuState] = field(default_factory=list)

    def record(self) -> GpuSamples | None:
        """Least, median and largest of each, and for every brake the share of samples with it; None of no sample."""
        if not self.states:
            return None
        brakes = Counter(brake for state in self.states for brake in state.brakes)
        return GpuSamples(
            n_samples=len(self.states),
            interval_s=INTERVAL_S,
            sm_mhz=_range([state.sm_mhz for state in self.states]),
            power_w=_range([state.power_w for state in self.states]),
            temperature_c=_range([state.temperature_c for state in self.states]),
            brakes={name: n / len(self.states) for name, n in sorted(brakes.items())},
        )


def _range(values: Sequence[float | None]) -> GpuRange | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return GpuRange(min=min(known), p50=statistics.median(known), max=max(known))


class Nvml:
    """The driver's library, open for one GPU: the first that this process may see."""

    def __init__(self, library: Any) -> None:
        """library: pynvml, open. Raises pynvml.NVMLError without a GPU."""
        self._nvml = library
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        if first.startswith(("GPU-", "MIG-")):
            self._gpu = library.nvmlDeviceGetHandleByUUID(first)
        elif first.isdecimal():
            self._gpu = library.nvmlDeviceGetHandleByIndex(int(first))
        else:  # empty or -1: CUDA is to see none
            raise library.NVMLError(library.NVML_ERROR_NOT_FOUND)

    def _ask(self, question: str, *subject: Any) -> Any:
        """The driver's answer; None where it has none for this GPU, or is too old for the question."""
        try:
            return getattr(self._nvml, f"nvml{question}")(*subject)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def facts(self) -> GpuFacts:
        """Which GPU it is."""
        memory, limit = self._ask("DeviceGetMemoryInfo", self._gpu), self._ask("DeviceGetEnforcedPowerLimit", self._gpu)
        return GpuFacts(
            name=self._ask("DeviceGetName", self._gpu),
            driver=self._ask("SystemGetDriverVersion"),
            memory_bytes=None if memory is None else int(memory.total),
            max_sm_mhz=self._ask("DeviceGetMaxClockInfo", self._gpu, self._nvml.NVML_CLOCK_SM),
            power_limit_w=None if limit is None else limit / 1e3,
        )

    def state(self) -> GpuState:
        """What it does now."""
        power = self._ask("DeviceGetPowerUsage", self._gpu)
        reasons = self._ask("DeviceGetCurrentClocksEventReasons", self._gpu)
        if reasons is None:  # its name before driver 535
            reasons = self._ask("DeviceGetCurrentClocksThrottleReasons", self._gpu)
        return GpuState(
            sm_mhz=self._ask("DeviceGetClockInfo", self._gpu, self._nvml.NVML_CLOCK_SM),
            power_w=None if power is None else power / 1e3,
            temperature_c=self._ask("DeviceGetTemperature", self._gpu, self._nvml.NVML_TEMPERATURE_GPU),
            brakes=tuple(name for bit, name in _BRAKES.items() if (reasons or 0) & bit),
        )


def why_no_gpu() -> str | None:
    """Why the GPU cannot be queried here, and what would help; None if it can."""
    with _nvml() as found:
        return found if isinstance(found, str) else None


def gpu_facts() -> GpuFacts | None:
    """Which GPU this process may use first; None where why_no_gpu says why."""
    with _nvml() as found:
        return None if isinstance(found, str) else found.facts()


@contextmanager
def watched_gpu(run: GpuRun) -> Iterator[None]:
    """Adds the GPU's states while the body runs, from a thread of its own; none where why_no_gpu says why."""
    with _nvml() as found:
        if isinstance(found, str):
            yield
            return
        over = threading.Event()

        def watch() -> None:
            run.states.append(found.state())
            while not over.wait(INTERVAL_S):
                run.states.append(found.state())

        thread = threading.Thread(target=watch, name="gpu states", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@contextmanager
def _nvml() -> Iterator[Nvml | str]:
    """The library, closed in the end, or why it cannot be had."""
    try:
        import pynvml
    except ImportError:
        yield "nvidia-ml-py is not installed: pip install 'qcls-gguf[bench]'"
        return
    with ExitStack() as opened:
        found: Nvml | str
        try:
            pynvml.nvmlInit()
            opened.callback(pynvml.nvmlShutdown)
            found = Nvml(pynvml)
        except pynvml.NVMLError as e:
            found = f"NVIDIA's driver shows no GPU: {e}"
        yield found
