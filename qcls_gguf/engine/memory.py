"""Whether the KV cache fits into the free memory, checked before llama.cpp allocates it.

Linux grants more memory than exists, and kills the process that then uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..config.schema import KvType, RuntimeConfig
from ..config.words import counted
from ..errors import ModelError
from ..model.header import GgufHeader
from ..native import ContextMemory
from ..system.control_groups import available_bytes

_BITS: dict[KvType, float] = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5}
_MANY_BYTES = 1 << 28
"""If a context cannot be opened, the message mentions the recurrent states of all sequences if they take as much."""
LEAST_FREE_BYTES = 256 << 20
"""Memory of a GPU that contexts leave free for the scratch memory of decodes; without it llama.cpp ends the process."""
_ASKED_FROM_BYTES = 1 << 30
"""For smaller caches the free memory is not checked, because that would take longer than opening the context."""


def cache_bytes(header: GgufHeader, n_ctx: int, kv_type: KvType) -> int:
    """The most bytes of a cache of n_ctx cells, with keys and values for each head in every layer.

    Some models keep less, such as hybrids. 0 if the header has a list in place of a needed number.
    """

    def number(key: str) -> int:
        value = header.scalars.get(f"{header.arch}.{key}", 0)
        return value if type(value) is int else 0

    n_heads = number("attention.head_count")
    n_kv_heads = number("attention.head_count_kv") or n_heads
    usual = number("embedding_length") // n_heads if n_heads else 0
    sizes = [number(f"attention.{each}_length") or usual for each in ("key", "value")]
    return int(header.n_layer * n_kv_heads * sum(sizes) * n_ctx * _BITS[kv_type] / 8)


def check_memory(
    header: GgufHeader,
    path: object,
    n_ctx: int,
    kv_type: KvType,
    *,
    measure: Callable[[], ContextMemory],
    n_state_bytes: int = 0,
) -> None:
    """Raise ModelError for a cache that does not fit in main memory.

    measure: called if an upper bound does not fit, for what the cache really takes; n_state_bytes: bytes of all states
    of recurrent layers.
    """
    n_most = cache_bytes(header, n_ctx, kv_type) + n_state_bytes
    if n_most < _ASKED_FROM_BYTES:
        return
    n_free = available_bytes()
    if n_most > n_free and (n_bytes := measure().cache_bytes) > n_free:
        raise ModelError(
            f"{path}: a cache of {n_ctx:,} cells, with {_gib(n_state_bytes)} of states, takes {_gib(n_bytes)}, and "
            f"{_gib(n_free)} of memory are free: lower runtime.n_ctx, question_cells, max_query_tokens or max_batch, "
            "or take a smaller kv_type"
        )


def many_states(state_bytes: int, n_seqs: int) -> str:
    """A remark on the memory of n_seqs sequences' recurrent states, and how to lower it; empty if it is little."""
    if (n_bytes := state_bytes * n_seqs) < _MANY_BYTES:
        return ""
    return (
        f"; the states of {n_seqs:,} sequences take {_gib(n_bytes)}: if memory is lacking, lower "
        "runtime.max_batch or question_prefixes, or take fewer prompts"
    )


def shortage_on_gpus(
    runtime: RuntimeConfig, n_gpu_layers: int, taken: ContextMemory, free_bytes: Sequence[int], n_others: int
) -> str:
    """Why a context has too little memory on GPUs that layers are on, and what to do.

    taken: what it takes, on all of them; free_bytes: of each of these GPUs, without it; n_others: other open contexts
    on GPUs.
    """
    is_auto = runtime.n_gpu_layers == "auto"
    others = f" and {counted(n_others, 'other open context')}" if n_others else ""
    where = "the GPU" if len(free_bytes) == 1 else f"the fullest of {len(free_bytes)} GPUs"
    return (
        f"it takes {taken}, and {_gib(min(free_bytes, default=0))} are free on {where} beside "
        f"{counted(n_gpu_layers, 'layer')}{' that n_gpu_layers auto put there' * is_auto}{others}: set "
        f"runtime.n_gpu_layers to less than {n_gpu_layers}, or lower runtime.max_query_tokens or question_cells"
        f"{', or close the other contexts, as a service does that is started again' * (n_others > 0)}"
    )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 30):.1f} GiB"
