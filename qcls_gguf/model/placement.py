"""Where a model's layers go: on one GPU, on several, on the CPU, or on both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..config.schema import QUANTISED_KV_TYPES, RuntimeConfig
from ..config.words import counted
from ..native import ContextMemory, Device, build_info, devices
from .header import TensorInfo

RESERVE_BYTES = 1 << 30
"""What each GPU keeps free beside weights, where it is not known what the context will take."""
_SPARE_BYTES = 1 << 29
"""What it keeps free beside weights and context: for the driver, code, scratch memory, and kept graphs, of which a
context keeps fewer where memory is lacking."""
_PLENTY = 4
"""A GPU with so many times the memory of a model has room for usual contexts beside it."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of a model's weights that can be on GPUs; what is read before the first layer stays on the CPU."""

    n_layer: int
    layers_bytes: int
    head_bytes: int


def weights_of(tensors: Mapping[str, TensorInfo], n_layer: int) -> Weights:
    """tensors: of all the model's files. A head that is the token embedding is on a GPU a second time."""

    def n_bytes(*beginnings: str) -> int:
        return sum(tensor.n_bytes for name, tensor in tensors.items() if name.startswith(beginnings))

    head = ("output",) if "output.weight" in tensors else ("output", "token_embd.")
    return Weights(n_layer=n_layer, layers_bytes=n_bytes("blk."), head_bytes=n_bytes(*head))


def gpus() -> list[Device]:
    """The GPUs that llama.cpp uses, with what they have free now; those with memory of their own, if there are any."""
    return _gpus_of(devices())


def _gpus_of(devices: Iterable[Device]) -> list[Device]:
    found = [device for device in devices if device.is_gpu]
    return [device for device in found if device.kind == "GPU"] or found


def room_bytes(gpus: Sequence[Device]) -> int:
    """What GPUs have free for weights, with something left on each for all else."""
    return sum(_rooms(gpus, RESERVE_BYTES))


def _rooms(gpus: Sequence[Device], reserve_bytes: int) -> list[int]:
    return [max(0, device.free_bytes - reserve_bytes) for device in gpus]


def is_scarce(runtime: RuntimeConfig, size_bytes: int, gpus: Sequence[Device]) -> bool:
    """Whether it depends on the context's memory where layers go.

    It does not on a GPU with several times the memory of the model, which spares its start the time to find out: with
    150,000 tokens in the vocabulary 0.4 s.
    """
    is_fixed = not gpus or runtime.n_gpu_layers == 0 or (runtime.n_gpu_layers != "auto" and len(gpus) == 1)
    return not is_fixed and gpus[0].free_bytes < _PLENTY * size_bytes


def placement(
    runtime: RuntimeConfig, weights: Weights, gpus: Sequence[Device], context: ContextMemory | None = None
) -> Placement:
    """How many layers go to GPUs, and to how many of these.

    context: what it takes with about so many layers on one GPU: its cache goes where the layers go, and each GPU has
    compute buffers; None: not known.

    A request passes through the layers one after the other, so a second GPU makes it no faster: layers are divided only
    where the first GPU has no room for them. `auto` fits layers, taken as equally large, to the free memory, behind the
    head, which goes to a GPU first.
    """
    rooms = _rooms(gpus, RESERVE_BYTES if context is None else _SPARE_BYTES + context.compute_bytes)
    if not rooms:
        return ON_CPU
    n_all = weights.n_layer + 1
    layer_bytes = max(1, weights.layers_bytes + (context.cache_bytes if context else 0)) / weights.n_layer
    if runtime.n_gpu_layers == "auto":
        n_layers = min(weights.n_layer, int((sum(rooms) - weights.head_bytes) / layer_bytes))
        n = n_layers + 1 if n_layers > 0 else 0
    else:
        n = n_all if runtime.n_gpu_layers == "all" else min(runtime.n_gpu_layers, n_all)
    fits = weights.head_bytes + (n - 1) * layer_bytes <= rooms[0]
    return Placement(n, 0 if n == 0 else 1 if fits else len(rooms))


def fitted(
    runtime: RuntimeConfig, weights: Weights, gpus: Sequence[Device], context_with: Callable[[int], ContextMemory]
) -> tuple[Placement, ContextMemory]:
    """The placement beside a context that is measured, and what that takes.

    context_with: what the context takes with so many layers on a GPU. It is asked a second time where not all of them
    fit, because the compute buffers are larger then: for decodes of 32 tokens and more llama.cpp copies the weights of
    layers on the CPU to the GPU.
    """
    n_wanted = weights.n_layer + 1 if runtime.n_gpu_layers == "auto" else placement(runtime, weights, gpus).n_gpu_layers
    context = context_with(n_wanted)
    placed = placement(runtime, weights, gpus, context)
    if 0 < placed.n_gpu_layers < n_wanted:
        context = context_with(placed.n_gpu_layers)
        again = placement(runtime, weights, gpus, context)
        placed = min(placed, again, key=lambda each: each.n_gpu_layers)
    return placed, context


def used_gpus(placement: Placement) -> list[Device]:
    """The GPUs that layers are on, with what they have free now."""
    return gpus()[: placement.n_gpus] if placement.n_gpus else []


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
    found = list(devices())
    chosen = _gpus_of(found) if n_gpu_layers else [device for device in found if device.kind == "CPU"]
    return found.index(chosen[0]) if chosen else 0


def device_name(placement: Placement) -> str:
    """The names of the GPUs that layers are on, or that of the CPU."""
    if placement.n_gpus < 2:
        return list(devices())[device_index(placement.n_gpu_layers)].name
    names = Counter(device.name for device in used_gpus(placement))
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in names.items())
