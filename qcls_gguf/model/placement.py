"""Where a model's layers go: on one GPU, on several, on the CPU, or on both."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..config.schema import QUANTISED_KV_TYPES, RuntimeConfig
from ..config.words import counted
from ..native import ContextMemory, Device, build_info, devices
from ..native.device import OWN_TYPES, type_name
from .header import TensorInfo

RESERVE_BYTES = 1 << 30
"""What a GPU keeps free beside weights, where it is not known what the context will take."""
_SPARE_BYTES = 1 << 29
"""What it keeps free beside weights and context: for the driver, code, scratch memory, and kept graphs, of which a
context keeps fewer where memory is lacking."""
_PLENTY = 4
"""A GPU with so many times the memory of a model has room for usual contexts beside it."""
_LEAST_STOCK = 0.1
"""The share of weights on llama.cpp's own kernels from which on it is told."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which layers are not on the CPU."""

    gpu_layers: tuple[int, ...]
    """how many of the model's last layers the first GPUs have, in their order; the output layer is the last"""

    @property
    def n_gpu_layers(self) -> int:
        """At most the model's layers and the output layer; 0: no GPU is used."""
        return sum(self.gpu_layers)

    @property
    def n_gpus(self) -> int:
        """How many GPUs are used, with those before them that have no room for a layer."""
        return len(self.gpu_layers)

    @property
    def text(self) -> str:
        """In words, where there are such layers."""
        layers = counted(self.n_gpu_layers, "layer")
        on_gpus = f"{self.n_gpus} GPUs ({' + '.join(map(str, self.gpu_layers))})"
        return f"{layers} on {'the GPU' if self.n_gpus == 1 else on_gpus}"


ON_CPU = Placement(())


def weights_of(tensors: Mapping[str, TensorInfo], n_layer: int, *, head: bool = True) -> tuple[int, ...]:
    """The bytes of the layers' weights, and of the output layer's, which can all be on GPUs; what is read before the
    first layer stays on the CPU.

    tensors: of all the model's files, as far as they are loaded; head: the output matrix is. One that is the token
    embedding is on a GPU a second time.
    """
    layer_bytes = Counter[str]()
    for name, tensor in tensors.items():
        layer_bytes[".".join(name.split(".")[:2])] += tensor.n_bytes
    beginnings = ("output",) if "output.weight" in tensors or not head else ("output", "token_embd.")
    output_bytes = sum(tensor.n_bytes for name, tensor in tensors.items() if name.startswith(beginnings))
    return (*(layer_bytes[f"blk.{n}"] for n in range(n_layer)), output_bytes)


def gpus() -> list[Device]:
    """The GPUs that llama.cpp uses, with what they have free now; those with memory of their own, if there are any."""
    seen = [device for device in devices() if device.is_gpu]
    return [device for device in seen if device.kind == "GPU"] or seen


def is_scarce(runtime: RuntimeConfig, size_bytes: int, gpus: Sequence[Device]) -> bool:
    """Whether it depends on the context's memory where layers go.

    It does not on a GPU with several times the memory of the model, which spares its start the time to find out: with
    150,000 tokens in the vocabulary 0.4 s.
    """
    is_fixed = not gpus or runtime.n_gpu_layers == 0 or (runtime.n_gpu_layers != "auto" and len(gpus) == 1)
    return not is_fixed and gpus[0].free_bytes < _PLENTY * size_bytes


def placement(
    runtime: RuntimeConfig, weights: Sequence[int], gpus: Sequence[Device], context: ContextMemory | None = None
) -> Placement:
    """How many layers go to GPUs, and how many to which.

    weights: as `weights_of` gives them. context: what it takes with about so many layers on one GPU: its cache goes
    where the layers go, of which all have as much, and every GPU has compute buffers; None: not known.

    A request passes through the layers one after the other, so a second GPU makes it no faster: as few GPUs take the
    layers as hold them. `auto` fits layers to the free memory, after the output matrix, which goes first.
    """
    reserve_bytes = RESERVE_BYTES if context is None else _SPARE_BYTES + context.compute_bytes
    spaces = [device.free_bytes - reserve_bytes for device in gpus]
    *layers, output = weights
    cache_bytes = (context.cache_bytes if context else 0) / len(layers)
    sizes = [*(layer + cache_bytes for layer in layers), output]
    n = with_all_wanted(runtime, weights, gpus).n_gpu_layers
    if runtime.n_gpu_layers == "auto":
        n = next((n for n in range(n, 1, -1) if sum(_filled(sizes[-n:], spaces)) == n), 0)
    if n == 0:
        return ON_CPU
    *taken, last = _filled(sizes[-n:], spaces)
    return Placement((*taken, max(last, n - sum(taken))))  # where not all fit, llama.cpp says so


def _filled(sizes: Sequence[float], spaces: Sequence[int]) -> list[int]:
    """How many of the sizes the GPUs take, in order. Each takes as many as it can, so no other way needs fewer GPUs."""
    taken: list[int] = []
    for space in spaces:
        if (n := sum(taken)) < len(sizes):
            taken.append(bisect_right(list(accumulate(sizes[n:])), space))
    return taken


def with_all_wanted(runtime: RuntimeConfig, weights: Sequence[int], gpus: Sequence[Device]) -> Placement:
    """All layers that are wanted on GPUs, on the first one."""
    given = runtime.n_gpu_layers
    n = min(given, len(weights)) if isinstance(given, int) else len(weights)
    return Placement((n,)) if n and gpus else ON_CPU


def fitted_placement(
    runtime: RuntimeConfig,
    weights: Sequence[int],
    gpus: Sequence[Device],
    context_with: Callable[[Placement], ContextMemory],
) -> tuple[Placement, ContextMemory]:
    """The placement beside a context that is measured, and what that takes.

    context_with: what the context takes with layers so placed. It is asked a second time where they are not all on the
    first GPU, because a GPU's compute buffers are larger then: llama.cpp copies to them what another GPU computed and,
    for decodes of 32 tokens and more, the weights of layers on the CPU.
    """
    wanted = with_all_wanted(runtime, weights, gpus)
    context = context_with(wanted)
    placed = placement(runtime, weights, gpus, context)
    if placed != wanted and placed != ON_CPU:
        context = context_with(placed)
        again = placement(runtime, weights, gpus, context)
        placed = min(again, placed, key=lambda layers: layers.n_gpu_layers)
    return placed, context


def used_gpus(placement: Placement) -> list[Device]:
    """The GPUs that layers are on, with what they have free now."""
    return [device for device, n_layers in zip(gpus(), placement.gpu_layers, strict=False) if n_layers]


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


def device_name(placement: Placement) -> str:
    """The names of the GPUs that layers are on, or that of the CPU."""
    used = used_gpus(placement) or [device for device in devices() if device.kind == "CPU"][:1]
    names = Counter(device.name for device in used)
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in names.items())


def stock_types(tensors: Iterable[TensorInfo], on_gpu: bool) -> dict[str, float]:
    """The types of a file's matrices that llama.cpp's own kernels multiply by, with their share of the bytes."""
    n_bytes: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
            n_bytes["experts" if on_gpu and len(tensor.shape) > 2 else type_name(tensor.ggml_type)] += tensor.n_bytes
    own = OWN_TYPES["GPU" if on_gpu else "CPU"]
    return {name: n / n_bytes.total() for name, n in n_bytes.most_common() if name not in own}


def stock_text(stock: Mapping[str, float]) -> str:
    """What is told of a model's `stock_types`; empty where they are few of the weights."""
    share = sum(stock.values())
    if share < _LEAST_STOCK:
        return ""
    hint = ": a file of Q4_K_M or Q8_0 may be faster" if share - stock.get("experts", 0) >= _LEAST_STOCK else ""
    shares = ", ".join(f"{name} ({share:.0%} of the weights)" for name, share in stock.items())
    return f"llama.cpp's kernels for {shares}{hint}"
