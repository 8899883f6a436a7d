"""Where a model's layers go: on one GPU, on several, on the CPU, or on both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..config.schema import QUANTISED_KV_TYPES, RuntimeConfig
from ..config.words import counted
from ..native import Device, build_info, devices

GPU_RESERVE_BYTES = 1 << 30
"""What each GPU keeps free for the KV cache, the compute buffers and its driver, when layers are fitted to it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which layers are not on the CPU."""

    n_gpu_layers: int
    """at most the model's layers and the output layer; 0: no GPU is used"""
    n_gpus: int
    """1: the first GPU alone; more: they share the layers, each as its free memory allows"""

    @property
    def text(self) -> str:
        """In words, where there are such layers."""
        return f"{counted(self.n_gpu_layers, 'layer')} on {f'{self.n_gpus} GPUs' if self.n_gpus > 1 else 'the GPU'}"


ON_CPU = Placement(0, 0)


def gpus() -> list[Device]:
    """The GPUs that llama.cpp uses; those with memory of their own, if there are any."""
    found = [device for device in devices() if device.is_gpu]
    return [device for device in found if device.kind == "GPU"] or found


def placement(runtime: RuntimeConfig, size_bytes: int, n_layer: int, gpus: Sequence[Device]) -> Placement:
    """How many layers go to GPUs, and to how many of these.

    A request passes through the layers one after the other, so a second GPU makes it no faster: layers are divided only
    where the first GPU has no room for them. `auto` fits layers, taken as equally large, to the free memory.
    """
    n_all = n_layer + 1
    rooms = [max(0, device.free_bytes - GPU_RESERVE_BYTES) for device in gpus]
    if not rooms:
        return ON_CPU
    if runtime.n_gpu_layers == "auto":
        n = min(n_all, int(sum(rooms) / size_bytes * n_all))
    else:
        n = n_all if runtime.n_gpu_layers == "all" else min(runtime.n_gpu_layers, n_all)
    fits = size_bytes / n_all * n <= rooms[0]
    return Placement(n, 0 if n == 0 else 1 if fits else len(rooms))


def unused_bytes(placement: Placement) -> int:
    """Free memory of the GPUs that no layer is on."""
    return sum(device.free_bytes for device in gpus()[placement.n_gpus :])


def flash_attention(runtime: RuntimeConfig, n_gpu_layers: int) -> bool | None:
    """Whether to use flash attention; none leaves it to llama.cpp.

    On a CPU its kernel depends on the number of tokens, so scores would depend on which queries share a decode, and it
    rounds to F16; it gains nothing there for few tokens. A quantised cache needs it.
    """
    if runtime.flash_attn != "auto":
        return runtime.flash_attn
    return None if n_gpu_layers > 0 or runtime.kv_type in QUANTISED_KV_TYPES else False


def why_not_on_gpu(runtime: RuntimeConfig) -> str:
    """Why layers that were requested for the GPU are on the CPU, in words; empty if there are none."""
    if runtime.n_gpu_layers in ("auto", 0):
        return ""
    why = "this build computes on CPUs only" if build_info().backend == "CPU" else "llama.cpp sees no GPU"
    return f"; `n_gpu_layers` {runtime.n_gpu_layers} has no effect: {why}"


def device_index(n_gpu_layers: int) -> int:
    """The place among `devices()` of the one that computes most: the first GPU where layers are on GPUs."""
    fits = (device.is_gpu if n_gpu_layers else device.kind == "CPU" for device in devices())
    return next((index for index, it_does in enumerate(fits) if it_does), 0)


def device_name(placement: Placement) -> str:
    """The names of the GPUs that layers are on, or that of the CPU."""
    if placement.n_gpus < 2:
        return list(devices())[device_index(placement.n_gpu_layers)].name
    names = Counter(device.name for device in gpus())
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in names.items())
