"""From a runtime configuration to numbers: threads, GPU layers, and the limits of the context."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config.schema import QUANTISED_KV_TYPES, RuntimeConfig
from ..errors import ConfigError
from ..native import Device
from ..prompts.compiled import Prompt
from .engine import MAX_SEQ

_GPU_RESERVE_BYTES = 1 << 30
"""What a GPU keeps free for the KV cache, the compute buffers and its driver, when layers are fitted to it."""
_N_WARM_GPU = 16
_N_SPARE_SHAPES = 8
_N_SHAPES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The sizes of a context; see llama.cpp for n_ctx, n_batch and n_seq_max."""

    n_ctx: int
    n_batch: int
    n_seq_max: int
    n_outputs_max: int


def physical_cores() -> int:
    """Cores that this process may use, counting a core with two threads once where the system tells."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(topology.read_text())
        except OSError:
            return max(1, len(usable))
    return max(1, len(siblings))


def n_threads(runtime: RuntimeConfig) -> int:
    """The threads to compute with: all cores but one, since a neighbour on the last one can cost a hundredfold."""
    if runtime.n_threads != "auto":
        return runtime.n_threads
    return max(1, physical_cores() - 1)


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
    free = sum(device.free_bytes for device in gpus) - _GPU_RESERVE_BYTES
    return max(0, min(n_all, int(free / size_bytes * n_all)))


def flash_attention(runtime: RuntimeConfig, n_gpu_layers: int) -> bool | None:
    """Whether to use flash attention; none leaves it to llama.cpp.

    On a CPU its kernel depends on the number of tokens, so that scores would depend on who shares a decode, and it
    rounds to F16; it gains nothing there for few tokens. A quantised cache needs it.
    """
    if runtime.flash_attn != "auto":
        return runtime.flash_attn
    return None if n_gpu_layers > 0 or runtime.kv_type in QUANTISED_KV_TYPES else False


def shapes(runtime: RuntimeConfig, n_gpu_layers: int) -> tuple[int, int]:
    """(graphs to keep, the longest query in tokens whose graph is built at start-up).

    On a GPU a new graph costs a fifth of a short request, and two requests until it is captured; on a CPU 2 %.
    """
    on_gpu = n_gpu_layers > 0
    n_warm = (_N_WARM_GPU if on_gpu else 0) if runtime.warm_query_tokens == "auto" else runtime.warm_query_tokens
    n_warm = min(n_warm, runtime.max_query_tokens)
    n_auto = max(_N_SHAPES, n_warm + _N_SPARE_SHAPES)
    return (n_auto if runtime.n_shapes == "auto" else runtime.n_shapes), n_warm


def whole_cells(n: int) -> int:
    """The cells of a cache for n tokens: llama.cpp has them in steps of 256."""
    return -(-n // 256) * 256


def merged_callers(runtime: RuntimeConfig, n_gpu_layers: int, n_prefixes: int) -> int:
    """Up to how many queries callers that wait share a decode.

    On a CPU time grows with the tokens, and every token attends to the other queries' cells too: prompts with prefixes
    of their own, which share no tokens, are faster one query after the other.
    """
    return runtime.max_batch if n_gpu_layers > 0 or n_prefixes == 1 else 1


def limits(
    runtime: RuntimeConfig,
    prompts: Sequence[Prompt],
    n_empty: Sequence[int],
    n_ctx_train: int,
    n_ctx_short: int | None = None,
) -> Limits:
    """The context that the prompts need; n_empty[p] is the fragment length of prompt p for an empty query.

    n_ctx_short: up to how many cells llama.cpp uses the short factors of a model with two sets of RoPE factors (it
    goes by the whole cache, not by a sequence: get_rope_factors in src/llama-model.cpp); none for other models.

    Raises ConfigError where a limit of the configuration, of the model or of llama.cpp is too small.
    """
    n_holders = len({prompt.prefix for prompt in prompts})
    n_leaves = [prompt.trie.n_leaves for prompt in prompts]
    for prompt, n in zip(prompts, n_leaves, strict=True):
        if n_holders + n > MAX_SEQ:
            raise ConfigError(
                f"prompts.{prompt.name}: its labels need {n} sequences and the prefixes {n_holders}, more than "
                f"llama.cpp's {MAX_SEQ}: use fewer labels that share first tokens, or scoring: first_token"
            )
    n_seq_max = min(MAX_SEQ, n_holders + sum(n_leaves) * runtime.max_batch)
    n_queries = min(runtime.max_batch, -(-(MAX_SEQ - n_holders) // sum(n_leaves)))  # of one decode, the last in part
    n_outputs_max = max(n_seq_max, sum(len(prompt.trie.read) for prompt in prompts) * n_queries)

    fragments = [n + runtime.max_query_tokens for n in n_empty]
    behind = [len(prompt.tail) + len(prompt.trie.fed) for prompt in prompts]
    whole = [len(prompt.head) + n + rest for prompt, n, rest in zip(prompts, fragments, behind, strict=True)]
    for prompt, n in zip(prompts, whole, strict=True):
        if n_ctx_train > 0 and n > n_ctx_train:
            raise ConfigError(
                f"prompts.{prompt.name}: with a query of runtime.max_query_tokens ({runtime.max_query_tokens}) it has "
                f"{n} tokens, and the model was trained for {n_ctx_train}: lower max_query_tokens or shorten the prompt"
            )
    new = [n - len(prompt.stable) + rest for prompt, n, rest in zip(prompts, fragments, behind, strict=True)]
    # one query over all prompts on the fast path; any one prompt where a query changes what is cached
    n_batch = max(sum(new), *whole, n_outputs_max)
    if runtime.n_batch != "auto":
        least = max(*whole, n_outputs_max)
        if runtime.n_batch < least:
            raise ConfigError(
                f"runtime.n_batch: {runtime.n_batch} is less than the {least} that the longest prompt ({max(whole)} "
                f"tokens) and the rows of max_batch queries ({n_outputs_max}) need: raise it, or lower "
                "max_query_tokens or max_batch"
            )
        n_batch = runtime.n_batch
    n_prefix = sum(len(prefix) for prefix in {prompt.prefix for prompt in prompts})
    n_ctx = whole_cells(n_prefix + n_batch)
    if runtime.n_ctx != "auto":
        if runtime.n_ctx < n_prefix + n_batch:
            raise ConfigError(
                f"runtime.n_ctx: {runtime.n_ctx} is less than the {n_prefix + n_batch} cells that the prefixes "
                f"({n_prefix}) and a batch ({n_batch}) need: raise it, or lower n_batch or max_query_tokens"
            )
        n_ctx = runtime.n_ctx
    if n_ctx_short is not None and max(whole) <= n_ctx_short < n_ctx:
        raise ConfigError(
            f"runtime: a cache of {n_ctx} cells would make this model use its RoPE factors for sequences longer than "
            f"{n_ctx_short} tokens, and the longest prompt has {max(whole)}: lower max_query_tokens or max_batch"
        )
    return Limits(n_ctx=n_ctx, n_batch=n_batch, n_seq_max=n_seq_max, n_outputs_max=n_outputs_max)
