"""From a runtime configuration to the limits of the context."""

from ..config.schema import MAX_SEQ, RuntimeConfig
from ..config.words import counted
from ..errors import CapacityError, ConfigError
from ..native.context import ContextLimits
from ..plan.decodes import Capacity
from ..prompts.prompt_set import PromptSet

MOST_TOGETHER = 32
"""queries of a decode, for tools that ask many: on a GPU arithmetic then limits a forward pass, so that more gain
nothing"""
N_UNTIL_CAPTURED = 3
"""decodes of a shape on a GPU until its CUDA graph is captured"""
_N_WARM_GPU = 16
"""up to how many tokens of a query graphs are built at start-up on a GPU"""
_N_SPARE_SHAPES = 8
"""graphs that are kept with their buffers beside those that are built at start-up"""
_N_SHAPES = 16
"""the fewest graphs that are kept in all"""
_MOST_TOKENS = 4096
"""runtime.n_batch: auto, unless one prompt needs more"""
_DECISION_TOKENS = 2048
"""runtime.n_batch: auto, at least, for a decision model; and how many of a decode's tokens may be read, at least"""
_DECISION_LEAVES = 16
"""sequences for the leaves of a decode, at least, for a decision model: eight questions in two orders"""
_QUESTION_LEAVES = 24
"""sequences for the leaves of a decode, at least, where questions may come: 255 numbers need 23"""
_QUESTION_TOKENS = 512
"""runtime.n_batch: auto, at least so many more than the longest query, so that questions at run time fit"""
_QUESTION_CELLS = 1024
"""runtime.question_cells: auto"""
_QUESTION_PREFIXES = 16
"""runtime.question_prefixes: auto"""
_QUESTION_STATE_BYTES = 256 << 20
"""Default limit of memory for the recurrent states of prefixes that are added at run time."""


def shapes(max_query_tokens: int, n_gpu_layers: int) -> tuple[int, int]:
    """(graphs to keep, the longest query in tokens whose graph is built at start-up).

    On a GPU a new graph costs a fifth of a short request, and two requests until it is captured; on a CPU 2 %.
    """
    n_warm = min(_N_WARM_GPU, max_query_tokens) if n_gpu_layers > 0 else 0
    return max(_N_SHAPES, n_warm + _N_SPARE_SHAPES), n_warm


def whole_cells(n: int) -> int:
    """The cells of a cache for n tokens: llama.cpp has them in steps of 256."""
    return -(-n // 256) * 256


def pays_to_share(n_gpu_layers: int, n_prefixes: int) -> bool:
    """Whether waiting callers get their answers sooner from one shared decode than from decodes of their own.

    On a CPU time grows with the tokens, and queries of prompts with different prefixes share no tokens: a decode of
    four takes 0.77 to 0.95 of the time of four decodes (embedded model, one thread), and all four callers would wait
    for its end. n_prefixes: how many different prefixes the prompts have.
    """
    return n_gpu_layers > 0 or n_prefixes == 1


def n_whole_tokens(prompts: PromptSet, max_query_tokens: int, n_ctx_train: int) -> list[int]:
    """The tokens of every rendered prompt with the longest query and all its label branches.

    Raises CapacityError if that is more than the model was trained for; n_ctx_train <= 0: unknown.
    """
    whole = [
        len(prompt.opening) + prompt.n_empty + max_query_tokens + len(prompt.closing) + len(prompt.trie.fed)
        for prompt in prompts.fed
    ]
    for prompt, n in zip(prompts.fed, whole, strict=True):
        if n > n_ctx_train > 0:
            has = f"with a query of runtime.max_query_tokens ({max_query_tokens}) it has {n} tokens"
            remedy = "lower max_query_tokens, shorten the prompt, or give fewer labels"
            raise CapacityError(f"prompts.{prompt.name}: {has}, and the model was trained for {n_ctx_train}: {remedy}")
    return whole


def check_capacity(prompts: PromptSet, capacity: Capacity, max_query_tokens: int, n_ctx_train: int) -> None:
    """Raise CapacityError if any prompt of a set does not fit into one decode of an open engine."""
    whole = n_whole_tokens(prompts, max_query_tokens, n_ctx_train)
    for prompt, n in zip(prompts.fed, whole, strict=True):
        trie = prompt.trie
        for what, needs, holds, setting in (
            ("label branches", trie.n_leaves, capacity.n_seqs, "max_batch"),
            ("tokens", n, capacity.n_tokens, "n_batch"),
            ("hidden states", len(trie.read), capacity.n_rows, "max_batch"),
        ):
            if needs > holds:
                both = f"needs {needs} {what} in one decode, and this engine was opened for {holds}"
                raise CapacityError(
                    f"prompts.{prompt.name}: {both}: raise runtime.{setting} of its configuration to {needs}"
                )


def limits(
    runtime: RuntimeConfig,
    prompts: PromptSet,
    n_ctx_train: int,
    n_ctx_short: int | None = None,
    state_bytes: int = 0,
    decides: bool = False,
    walks_trees: bool = False,
) -> tuple[ContextLimits, int]:
    """(the sizes of the context that a prompt set needs, with what questions at run time need; how many of its
    sequences are for the leaves of token trees: the others hold prefixes).

    n_ctx_short: for a model with two sets of RoPE factors, the largest cache in cells with which llama.cpp uses the
    short factors (it looks at the size of the cache, not of a sequence: get_rope_factors in src/llama-model.cpp); None
    for other models. state_bytes: memory that recurrent layers need for every sequence that keeps a state, used or not;
    0 without such. decides: whether the model's template may put questions after their text, so that they are fed with
    every request. walks_trees: whether recurrent layers walk token trees, so that leaves keep no state.

    Raises ConfigError if a limit of the configuration, the model or llama.cpp is too small.
    """
    whole = n_whole_tokens(prompts, runtime.max_query_tokens, n_ctx_train)
    prefixes = set(prompts.prefixes)
    n_reserved = 0 if runtime.question_prefixes == "auto" else runtime.question_prefixes
    n_others = len(prefixes) + n_reserved
    n_leaf_seqs, n_outputs = _leaf_seqs(runtime, prompts, n_others)
    may_ask = runtime.question_cells != 0 and runtime.n_batch == "auto" and (walks_trees or not state_bytes)
    n_least_seqs = max(_DECISION_LEAVES * decides, _QUESTION_LEAVES * may_ask)
    n_leaf_seqs = max(n_leaf_seqs, min(n_least_seqs, _most_seqs(runtime) - n_others))
    n_seqs = n_others + n_leaf_seqs
    n_least = max(*whole, n_seqs, n_outputs)
    if runtime.n_batch == "auto":
        n_least = max(n_least, _DECISION_TOKENS * decides)
        if runtime.n_ctx == "auto" and runtime.question_cells != 0 and n_ctx_short is None:
            n_least = max(n_least, min(runtime.max_query_tokens + _QUESTION_TOKENS, n_ctx_train))
    n_batch = _n_batch(runtime, prompts, n_least, max(whole), max(n_seqs, n_outputs))
    n_prefix = sum(map(len, prefixes))
    n_needed = n_prefix + n_batch
    if runtime.n_ctx == "auto":
        n_question = _QUESTION_CELLS if runtime.question_cells == "auto" else runtime.question_cells
        n_ctx = whole_cells(n_needed + n_question)
        if n_ctx_short is not None and runtime.question_cells == "auto":
            n_ctx = max(whole_cells(n_needed), min(n_ctx, n_ctx_short))
    elif runtime.n_ctx < n_needed:
        need = f"the {n_needed} cells that the prefixes ({n_prefix}) and a batch ({n_batch}) need"
        remedy = "raise it, or lower n_batch or max_query_tokens"
        raise ConfigError(f"runtime.n_ctx: {runtime.n_ctx} is less than {need}: {remedy}")
    else:
        n_ctx = runtime.n_ctx
    if n_ctx_short is not None and max(whole) <= n_ctx_short < n_ctx:
        what = f"would make this model use its RoPE factors for sequences longer than {n_ctx_short} tokens"
        remedy = f"and the longest prompt has {max(whole)}: lower max_query_tokens or max_batch"
        raise ConfigError(f"runtime: a cache of {n_ctx} cells {what}, {remedy}")
    if runtime.question_prefixes == "auto":  # llama.cpp has no more sequences than tokens in a batch
        n_more = min(_QUESTION_PREFIXES, _QUESTION_STATE_BYTES // state_bytes) if state_bytes else _QUESTION_PREFIXES
        n_seqs = min(n_seqs + n_more, _most_seqs(runtime), n_batch)
    sizes = ContextLimits(
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_seq_max=n_seqs,
        n_outputs_max=max(n_seqs, n_outputs, min(n_batch, _DECISION_TOKENS) if decides else 0),
        n_state_seqs=n_seqs - n_leaf_seqs if walks_trees else n_seqs,
    )
    return sizes, n_leaf_seqs


def _most_seqs(runtime: RuntimeConfig) -> int:
    return MAX_SEQ if runtime.n_seq_max == "auto" else runtime.n_seq_max


def _leaf_seqs(runtime: RuntimeConfig, prompts: PromptSet, n_prefixes: int) -> tuple[int, int]:
    """(sequences for leaves, hidden states of one decode), for max_batch queries or as many as sequences allow."""
    n_most = _most_seqs(runtime)
    n_leaves = [prompt.trie.n_leaves for prompt in prompts.fed]
    for prompt, n in zip(prompts.fed, n_leaves, strict=True):
        if n_prefixes + n > n_most:
            need = f"its labels need {counted(n, 'sequence')} and the prefixes {n_prefixes}"
            most = f"more than runtime.n_seq_max ({n_most} of at most {MAX_SEQ})"
            remedy = "raise it, or use fewer prompts, fewer labels that share first tokens, or scoring: first_token"
            raise ConfigError(f"prompts.{prompt.name}: {need}, {most}: {remedy}")
    n_free = n_most - n_prefixes
    # queries of one decode; some leaves of the last one may be in the next decode
    n_queries = min(runtime.max_batch, -(-n_free // sum(n_leaves)))
    n_read = sum(len(prompt.trie.read) for prompt in prompts.fed)
    return min(n_free, sum(n_leaves) * runtime.max_batch), n_read * n_queries


def _n_batch(runtime: RuntimeConfig, prompts: PromptSet, n_least: int, n_longest: int, n_outputs: int) -> int:
    """Tokens of one decode. auto: one query over all prompts on the fast path, or any one prompt off it.

    With many prompts the longest query takes several decodes, so that buffers stay within bounds: they grow with a
    decode's tokens, and usual queries are far shorter.
    """
    if runtime.n_batch == "auto":
        n_new = sum(
            prompt.n_empty + runtime.max_query_tokens - len(prompt.stable) + len(prompt.closing) + len(prompt.trie.fed)
            for prompt in prompts.fed
        )
        return max(min(n_new, _MOST_TOKENS), n_least)
    if runtime.n_batch < n_least:
        need = f"the longest prompt ({n_longest} tokens) and the sequences and rows of max_batch ({n_outputs}) need"
        remedy = "raise it, or lower max_query_tokens or max_batch"
        raise ConfigError(f"runtime.n_batch: {runtime.n_batch} is less than the {n_least} that {need}: {remedy}")
    return runtime.n_batch
