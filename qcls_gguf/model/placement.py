"""Where a model's layers go: on the GPU, on the CPU, or on both."""

from __future__ import annotations

from collections.abc import Sequence

from ..config.schema import QUANTISED_KV_TYPES, RuntimeConfig
from ..native import Device, build_info, devices

GPU_RESERVE_BYTES = 1 << 30
"""What a GPU keeps free for the KV cache, the compute buffers and its driver, when layers are fitted to it."""


def gpus() -> list[Device]:
    """The GPUs that llama.cpp sees."""
    return [device for device in devices() if device.is_gpu]


def n_gpu_layers(runtime: RuntimeConfig, size_bytes: int, n_layer: int, gpus: Sequence[Device]) -> int:
    """The layers to put on the GPU, at most n_layer + 1 with the output layer; 0 where there is no GPU.

    `auto` fits them, taken as equally large, to the GPUs' free memory.
    """
    n_all = n_layer + 1
    if not gpus:
        return 0
    if runtime.n_gpu_layers == "all":
        return n_all
    if runtime.n_gpu_layers != "auto":
        return min(runtime.n_gpu_layers, n_all)
    free = sum(device.free_bytes for device in gpus) - GPU_RESERVE_BYTES
    return max(0, min(n_all, int(free / size_bytes * n_all)))


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
    """The place among `devices()` of the one that computes most: a GPU where layers are on it."""
    fits = (device.is_gpu if n_gpu_layers else device.kind == "CPU" for device in devices())
    return next((index for index, it_does in enumerate(fits) if it_does), 0)


def device_name(n_gpu_layers: int) -> str:
    """The name of the device that computes most."""
    return list(devices())[device_index(n_gpu_layers)].name
