"""What of the machine a context takes: threads, by the cores that the process may use and a container's CPU quota; and
whether the KV cache fits into the free memory, checked before llama.cpp allocates it.

Linux grants more memory than exists, and kills the process that then uses it.
"""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ..config.schema import KvType, RuntimeConfig
from ..config.words import counted
from ..errors import ModelError
from ..model import Vocabulary
from ..model.header import GgufHeader
from ..native.context import ContextMemory, ContextSettings
from ..system.control_groups import available_bytes, cpu_quota

_BITS: dict[KvType, float] = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5}
LEAST_FREE_BYTES = 256 << 20
"""Memory of a GPU that contexts leave free for the scratch memory of decodes; without it llama.cpp ends the process."""
_ASKED_FROM_BYTES = 1 << 30
"""For smaller caches the free memory is not checked, because that would take longer than opening the context."""


def threads(runtime: RuntimeConfig, *, root: Path = Path("/")) -> tuple[int, str]:
    """(threads of a decode on the CPU, why so many): the configured ones, else all cores but one.

    A busy neighbour on the last core can make a decode a hundred times slower.

    A control group's quota limits them further: threads that have used it up are stopped until its next period.
    root: where `proc` and `sys` are looked for.
    """
    n_cores = physical_cores()
    if runtime.n_threads != "auto":
        why, slow = "as configured", "requests may take many times as long"
        if runtime.n_threads > n_cores:
            why += f", more than {counted(n_cores, 'core')}: {slow}"
        elif runtime.n_threads == n_cores > 1:
            why += f", one for every core: while other programs work, {slow}"
        return runtime.n_threads, why
    n_free = max(1, n_cores - 1)
    quota = cpu_quota(root)
    if quota is not None and quota < n_free:
        return max(1, math.floor(quota)), f"a quota of {quota:.3g} CPUs, {n_cores} cores"
    return n_free, f"{counted(n_cores, 'core')}{' less one' * (n_cores > 1)}"


def physical_cores() -> int:
    """Physical cores that this process may use; hardware threads, if the system does not tell which share a core."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(topology.read_text())
        except OSError:
            return max(1, len(usable))
    return max(1, len(siblings))


def cache_bytes(header: GgufHeader, n_ctx: int, kv_type: KvType) -> int:
    """The most bytes of a cache of n_ctx cells, with keys and values for all heads in every layer.

    Some models keep less, such as hybrids. 0 if the header has a list in place of a needed number.
    """
    keys = "attention.head_count attention.head_count_kv embedding_length attention.key_length attention.value_length"
    values = [header.scalars.get(f"{header.arch}.{key}") for key in keys.split()]
    n_heads, n_kv_heads, n_embd, *given = [value if type(value) is int else 0 for value in values]
    usual = n_embd // n_heads if n_heads else 0
    sizes = [size or usual for size in given]
    return int(header.n_layer * (n_kv_heads or n_heads) * sum(sizes) * n_ctx * _BITS[kv_type] / 8)


def check_memory(
    model: Vocabulary, settings: ContextSettings, kv_type: KvType, measure: Callable[[], ContextMemory]
) -> None:
    """Raise ModelError for a cache that does not fit in main memory.

    measure: called if an upper bound does not fit, for what the cache really takes.
    """
    n_ctx, n_state_bytes = settings["n_ctx"], model.facts.state_bytes * settings["n_state_seqs"]
    n_most = cache_bytes(model.header, n_ctx, kv_type) + n_state_bytes
    if n_most < _ASKED_FROM_BYTES:
        return
    n_free = available_bytes()
    if n_most > n_free and (n_bytes := measure().cache_bytes) > n_free:
        what = f"{model.path}: a cache of {n_ctx:,} cells, with {_gib(n_state_bytes)} of states, takes {_gib(n_bytes)}"
        remedy = "lower runtime.n_ctx, question_cells, max_query_tokens or max_batch, or take a smaller kv_type"
        raise ModelError(f"{what}, and {_gib(n_free)} of memory are free: {remedy}")


def shortage_on_gpus(
    runtime: RuntimeConfig, n_gpu_layers: int, taken: ContextMemory, free_bytes: Sequence[int], n_others: int
) -> str:
    """Why a context has too little memory on GPUs that layers are on, and what to do.

    taken: what it takes, on all of them; free_bytes: of these GPUs, without it; n_others: other open contexts
    on GPUs.
    """
    is_auto = runtime.n_gpu_layers == "auto"
    others = f" and {counted(n_others, 'other open context')}" if n_others else ""
    where = "the GPU" if len(free_bytes) == 1 else f"the fullest of {len(free_bytes)} GPUs"
    return (
        f"it takes {taken}, and {_gib(min(free_bytes, default=0))} are free on {where} beside "
        f"{counted(n_gpu_layers, 'layer')}{' that n_gpu_layers auto put there' * is_auto}{others}: set "
        f"runtime.n_gpu_layers to less than {n_gpu_layers}, or lower runtime.max_query_tokens, question_cells or "
        f"max_batch{', or close the other contexts, as a service does that is started again' * (n_others > 0)}"
    )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 30):.1f} GiB"
