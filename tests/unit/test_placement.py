"""Where layers go on several GPUs, and which models can be batch invariant.

The limits of a context, from small prompts made by hand, and the choice of GPU layers.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from made_prompts import made_prompt

from qcls_gguf import ConfigError, RuntimeConfig
from qcls_gguf.engine import capacity
from qcls_gguf.engine.capacity import check_capacity, shapes
from qcls_gguf.engine.open import check_tensors
from qcls_gguf.model import placement as module
from qcls_gguf.model.header import TensorInfo
from qcls_gguf.model.placement import Placement, fitted_placement, is_scarce, placement, used_gpus, weights_of
from qcls_gguf.native import ContextMemory, Device
from qcls_gguf.plan.decodes import Capacity
from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.prompts.prompt_set import PromptSet

Layers = int | Literal["auto", "all"]
MIB, GIB = 1 << 20, 1 << 30
SPARE = 512 * MIB
"""What each GPU keeps free beside what is known."""
SIZES = st.integers(1, 900).map(lambda n: n * MIB)


def gpus_of(*free_bytes: int) -> list[Device]:
    return [Device(kind="GPU", name="", free_bytes=free) for free in free_bytes]


@cases(
    *(("auto", (), 0, 0), ("auto", (0,), 0, 0), ("auto", (1.2,), 0, 0), ("auto", (1.25,), 2, 1), ("auto", (3,), 18, 1)),
    *(("auto", (4.99,), 36, 1), ("auto", (5,), 37, 1), ("auto", (2, 2), 18, 2), ("auto", (2, 1), 9, 1)),
    *(("auto", (4, 2), 36, 2), ("auto", (4, 2.1), 37, 2), ("auto", (1, 0.5), 0, 0)),
    # they are divided where the first GPU has no room
    *(("auto", (5, 5), 37, 1), ("auto", (4.9, 5), 37, 2), ("auto", (0.5, 80), 37, 2), ("auto", (2, 2, 2), 27, 3)),
    *((1, (9,), 1, 1), (38, (9,), 37, 1), (9, (), 0, 0), (0, (5, 5), 0, 0), (9, (2, 5), 9, 1), (10, (2, 5), 10, 2)),
    *(("all", (), 0, 0), ("all", (5, 5), 37, 1), ("all", (3, 1), 37, 2), ("all", (3,), 37, 1)),
)
def test_layers_fit_free_memory(given_layers: Layers, free_gib: tuple[float, ...], layers: int, n_gpus: int) -> None:
    """GiB free on each GPU, layers and GPUs that are taken, of 36 layers and a head as large as one, where the context
    is not known."""
    gpus = gpus_of(*(round(gib * GIB) for gib in free_gib))
    found = placement(RuntimeConfig(n_gpu_layers=given_layers), (4 * GIB // 37,) * 37, gpus, None)
    assert (found.n_gpu_layers, found.n_gpus) == (layers, n_gpus)


@cases(
    *(("auto", (15,), True), ("auto", (16,), False), ("auto", (15, 80), True), ("auto", (), False)),
    *(("all", (5,), False), ("all", (5, 5), True), (9, (5, 5), True), (0, (5, 5), False)),
)
def test_where_the_context_is_measured(given_layers: Layers, free_gib: tuple[int, ...], wanted: bool) -> None:
    found = is_scarce(RuntimeConfig(n_gpu_layers=given_layers), 4 * GIB, gpus_of(*(gib * GIB for gib in free_gib)))
    assert found == wanted


def test_what_is_read_before_the_layers_needs_no_gpu() -> None:
    def tensors(**n_bytes: int) -> dict[str, TensorInfo]:
        found = [tensor(name.replace("__", "."), F32, 1, n_bytes=size) for name, size in n_bytes.items()]
        return {info.name: info for info in found}

    untied = tensors(token_embd__weight=1000, blk__0__a=1, blk__1__a=2, output_norm__weight=10, output__weight=20)
    assert (weights_of(untied, 2), weights_of(untied, 1, head=False)) == ((1, 2, 30), (1, 30))
    tied = tensors(token_embd__weight=1000, per_layer_token_embd__weight=5000, blk__0__a=1, output_norm__weight=10)
    assert (weights_of(tied, 1), weights_of(tied, 1, head=False)) == ((1, 1010), (1, 10))


def divisions(n: int, n_gpus: int) -> Iterator[tuple[int, ...]]:
    """All ways in which GPUs can share n layers."""
    if n_gpus == 1:
        yield (n,)
        return
    for first in range(n + 1):
        yield from ((first, *rest) for rest in divisions(n - first, n_gpus - 1))


def spares(sizes: Sequence[float], gpu_layers: Sequence[int], rooms: Sequence[float]) -> list[float]:
    """What each GPU that has layers has left; sizes: of all these layers, in their order."""
    shares = zip(rooms, np.cumsum(gpu_layers).tolist(), gpu_layers, strict=False)
    return [room - sum(sizes[end - n : end]) for room, end, n in shares if n]


@settings(derandomize=False)
@given(
    layers=st.lists(SIZES, min_size=1, max_size=7),
    head=SIZES,
    cache=SIZES,
    free=st.lists(st.integers(0, 6000).map(lambda n: n * MIB), min_size=2, max_size=3),
    compute=st.integers(0, 400).map(lambda n: n * MIB),
)
def test_no_share_exceeds_its_room(layers: list[int], head: int, cache: int, free: list[int], compute: int) -> None:
    sizes = [*(each + cache for each in layers), head]
    context = ContextMemory(cache_bytes=cache * len(layers), compute_bytes=compute)
    weights = (*layers, head)
    rooms = [each - SPARE - compute for each in free]

    def fitting(n: int) -> list[float]:
        """What each division of n layers leaves on the GPU with the least left, where that is not less than nothing."""
        found = [min(spares(sizes[-n:], each, rooms)) for each in divisions(n, len(rooms))]
        return [each for each in found if each >= 0]

    most = next((n for n in range(len(sizes), 1, -1) if fitting(n)), 0)
    for given_layers in ("auto", "all", *range(len(sizes) + 1)):
        placed = placement(RuntimeConfig(n_gpu_layers=given_layers), weights, gpus_of(*free), context)
        n = most if given_layers == "auto" else len(sizes) if given_layers == "all" else given_layers
        assert placed.n_gpu_layers == n
        if n and fitting(n):
            assert min(spares(sizes[-n:], placed.gpu_layers, rooms)) >= 0
            for n_fewer in range(1, placed.n_gpus):  # as few GPUs as hold them, of the first ones
                assert all(min(spares(sizes[-n:], each, rooms)) < 0 for each in divisions(n, n_fewer))


def test_layers_that_fit_nowhere_are_divided_all_the_same() -> None:
    """As many as were asked for; llama.cpp then says that memory is lacking, if it really is."""
    context, gpus = ContextMemory(cache_bytes=0, compute_bytes=0), gpus_of(SPARE + 1000 * MIB, SPARE)
    assert placement(RuntimeConfig(n_gpu_layers="all"), (100 * MIB,) * 21, gpus, context) == Placement((10, 11))


@cases(
    (2.01, 0.0, 3, [3]), (1.99, 0.0, 2, [3, 2]), (1.99, 0.5, 2, [3, 2]), (1.99, 1.01, 0, [3, 2]), (0.99, 0.0, 0, [3])
)
def test_layers_make_room_for_what_was_measured(parts: float, more: float, n_layers: int, asked: list[int]) -> None:
    """Two layers and a head on one GPU; the cache takes as much as the layers, the buffers more if not all fit."""
    weights = *layers, head = 100 * MIB, 100 * MIB, 50 * MIB
    measured_with: list[int] = []

    def context_with(placed: Placement) -> ContextMemory:
        measured_with.append(placed.n_gpu_layers)
        n_more = int(more * sum(layers)) if placed.n_gpu_layers < 3 else 0
        return ContextMemory(cache_bytes=sum(layers), compute_bytes=MIB + n_more)

    gpus = gpus_of(SPARE + MIB + head + int(parts * sum(layers)))
    placed, _ = fitted_placement(RuntimeConfig(), weights, gpus, context_with)
    assert (placed.n_gpu_layers, measured_with) == (n_layers, asked)


def test_layers_on_several_gpus_make_room_for_larger_buffers() -> None:
    weights = (100 * MIB,) * 5

    def context_with(placed: Placement) -> ContextMemory:
        return ContextMemory(cache_bytes=0, compute_bytes=placed.n_gpus * 50 * MIB)

    gpus = gpus_of(SPARE + 350 * MIB, SPARE + 1000 * MIB)
    placed, taken = fitted_placement(RuntimeConfig(), weights, gpus, context_with)
    assert (placed, taken.compute_bytes) == (Placement((2, 3)), 100 * MIB)


def test_only_gpus_with_layers_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Device(kind="CPU", name="", free_bytes=1), *gpus_of(1, 2, 3)]
    monkeypatch.setattr(module, "devices", lambda: found)
    monkeypatch.setattr(module, "gpus", lambda: found[1:])
    assert [used_gpus(Placement(each)) for each in ((0, 5, 6), (5,), ())] == [found[2:], found[1:2], []]
    assert Placement((0, 5, 6)).text == "11 layers on 3 GPUs (0 + 5 + 6)"
    assert Placement((5, 6)).text == "11 layers on 2 GPUs (5 + 6)"


F32, F16, Q8_0, Q4_K, Q5_K, Q6_K = 0, 1, 8, 12, 13, 14


def tensor(name: str, ggml_type: int, *shape: int, n_bytes: int = 0) -> TensorInfo:
    return TensorInfo(name=name, shape=shape, ggml_type=ggml_type, offset=0, n_bytes=n_bytes)


SOUND = (
    tensor("token_embd.weight", F16, 4096, 151_936),  # rows of it are looked up, no product
    tensor("output.weight", Q6_K, 4096, 151_936),
    tensor("blk.0.attn_norm.weight", F32, 4096),
    tensor("blk.0.attn_q.weight", Q4_K, 4096, 4096),
    tensor("blk.0.attn_v.weight", Q6_K, 4096, 1024),
    tensor("blk.0.ffn_up.weight", Q8_0, 4096, 12_288),
)


def model(*changed: TensorInfo, without: str = "") -> dict[str, TensorInfo]:
    return {info.name: info for info in (*SOUND, *changed) if info.name != without}


@cases(
    (tensor("blk.0.attn_q.weight", Q5_K, 4096, 4096), "'blk.0.attn_q.weight' is Q5_K"),
    (tensor("blk.0.attn_v.weight", Q6_K, 4352, 1024), r"shape \(4352, 1024\).* multiple of 512"),
    (tensor("blk.0.ffn_up.weight", Q8_0, 4096, 12_280), "the second of 32"),
    (tensor("blk.0.ffn_up.weight", Q8_0, 4096, 28_672), "at most 26112"),
    (tensor("blk.0.ffn_up.weight", Q8_0, 4096, 12_288, 8), r"\(4096, 12288, 8\)"),  # of several experts
)
def test_other_matrices_are_named(changed: TensorInfo, says: str) -> None:
    assert check_tensors(model()) is None
    with pytest.raises(ConfigError, match=f"^runtime.batch_invariant: tensor .*{says}.*without it, max_batch 1"):
        check_tensors(model(changed))


@cases(
    (tensor("output.weight", F16, 4096, 151_936), "", "'output.weight' is F16"),
    (tensor("output.weight", Q6_K, 4096, 151_937), "", "the second of 32"),
    (tensor("blk.0.attn_q.weight", Q4_K, 4096, 4096), "output.weight", "'token_embd.weight' is F16"),  # a tied head
)
def test_another_head_costs_the_exact_scores_alone(changed: TensorInfo, without: str, says: str) -> None:
    why = check_tensors(model(changed, without=without))
    assert why
    assert says in why
    assert "scoring: tree" in why


# The limits of a context, from small prompts made by hand, and the choice of GPU layers.


MAX_SEQ = 256
"""Of the contexts here, so that labels for so many are quickly made."""
TWO_WORDS = ((1,), (2,))
LIGHT = ((1, 2), (1, 3), (4,))


def limits(*setup: Any, **more: Any) -> SimpleNamespace:
    sizes, n_leaf_seqs = capacity.limits(*setup, **more)
    return SimpleNamespace(**sizes, n_leaf_seqs=n_leaf_seqs)


def prompt_of(
    n_head: int = 0,
    n_stable: int = 0,
    n_tail: int = 0,
    *,
    name: str = "category",
    first: int = 0,
    labels: Any = TWO_WORDS,
) -> Prompt:
    """A prompt of so many tokens; `first` is its first token."""
    return made_prompt(name, labels, (first,) * n_head, (first,) * n_stable, (0,) * n_tail)


def set_of(prompts: Sequence[Prompt], n_empty: Sequence[int]) -> PromptSet:
    """The prompts with fragments of their own, of so many tokens for an empty query."""
    own = enumerate(zip(prompts, n_empty, strict=True))
    return PromptSet(prompts=tuple(replace(each, before=str(i), n_empty=n) for i, (each, n) in own), exact=False)


def runtime(**settings: Any) -> RuntimeConfig:
    """A runtime with no room for questions beside the configured prompts."""
    return RuntimeConfig(**{"question_cells": 0, "question_prefixes": 0, "n_seq_max": MAX_SEQ, **settings})


def forks(n: int) -> tuple[tuple[int, ...], ...]:
    """Labels that need n sequences: n pairs, each with its own first token."""
    return tuple((first, second) for first in range(n) for second in (1000, 1001))


@st.composite
def setups(draw: st.DrawFn) -> tuple[RuntimeConfig, list[Prompt], list[int]]:
    """Prompts with an empty query's fragment lengths, and a runtime of automatic limits."""
    prompts, n_empty = [], []
    for index in range(draw(st.integers(1, 5))):
        n_head, n_stable, n_tail, n_more = (draw(st.integers(0, most)) for most in (60, 9, 9, 4))
        labels = draw(st.sampled_from([TWO_WORDS, LIGHT, forks(3), forks(40)]))
        first = index % draw(st.integers(1, 3))
        prompts.append(prompt_of(n_head, n_stable, n_tail, first=first, labels=labels))
        n_empty.append(n_stable + n_more)
    config = runtime(max_query_tokens=draw(st.integers(1, 300)), max_batch=draw(st.integers(1, 9)))
    return config, prompts, n_empty


@given(setups())
def test_automatic_limits_suffice(setup: tuple[RuntimeConfig, list[Prompt], list[int]]) -> None:
    config, prompts, n_empty = setup
    found = limits(config, set_of(prompts, n_empty), 0)
    prefixes = {prompt.prefix for prompt in prompts}
    n_query, both = config.max_query_tokens, zip(n_empty, prompts, strict=True)
    n_fed = [n + n_query + len(prompt.closing) + len(prompt.trie.fed) for n, prompt in both]
    fast = sum(n_fed) - sum(len(prompt.stable) for prompt in prompts)
    slow = max(n + len(prompt.opening) for n, prompt in zip(n_fed, prompts, strict=True))
    assert found.n_batch >= max(fast, slow, found.n_outputs_max)
    assert found.n_outputs_max >= found.n_seq_max
    assert found.n_ctx % 256 == 0
    assert 0 <= found.n_ctx - (sum(map(len, prefixes)) + found.n_batch) < 256
    assert len(prefixes) + max(prompt.trie.n_leaves for prompt in prompts) <= found.n_seq_max <= MAX_SEQ


MANY = prompt_of(labels=forks(40))
TWO = [prompt_of(n_head=20, n_tail=5), prompt_of(n_head=30, n_tail=5, first=1)]
STABLE = prompt_of(n_head=20, n_stable=1, n_tail=5)
FORKS = [prompt_of(), prompt_of(name="colour", first=1, n_head=1, labels=forks(99))]


@cases(
    (FORKS, {}, "n_seq_max", 101, "and the prefixes 2, more than runtime.n_seq_max (100 of at most 4096): raise"),
    (TWO, {"max_query_tokens": 8}, "n_batch", 43, "runtime.n_batch: 42 is less than the 43 that"),
    ([MANY], {}, "n_batch", 164, "runtime.n_batch: 163 is less than the 164 that"),
    ([MANY], {"question_prefixes": 200}, "n_batch", 256, "runtime.n_batch: 255 is less than the 256 that"),
    ([STABLE], {"max_query_tokens": 8}, "n_ctx", 55, "(21) and a batch (34) need: raise it"),
    (TWO[:1], {"n_batch": 1024}, "n_ctx", 1044, "runtime.n_ctx: 1043 is less than the 1044 cells"),
)
def test_one_less_than_is_needed_is_refused(
    prompts: list[Prompt], settings: dict[str, int], limit: str, least: int, message: str
) -> None:
    def found(n: int) -> SimpleNamespace:
        config = runtime(**{"max_query_tokens": 1, **settings, limit: n})
        return limits(config, set_of(prompts, [len(prompt.stable) for prompt in prompts]), 0)

    assert getattr(found(least), limit) == least
    with pytest.raises(ConfigError, match=re.escape(message)):
        found(least - 1)


def test_a_prompt_longer_than_the_training_context_is_refused() -> None:
    colour = prompt_of(name="colour", n_head=10, n_stable=3, n_tail=6, labels=LIGHT)
    prompts, config = set_of([prompt_of(), colour], [0, 4]), runtime(max_query_tokens=8)
    for n_train in (29, 0, -1):
        assert limits(config, prompts, n_train).n_batch >= 29
    with pytest.raises(ConfigError, match=r"^prompts.colour: with a query .* it has 29 tokens, .* for 28: lower max"):
        limits(config, prompts, 28)


def test_a_cache_that_changes_the_rope_factors_is_refused() -> None:
    config = runtime(max_query_tokens=1, max_batch=1)
    prompts = set_of([prompt_of(n_head=200, first=first) for first in (0, 1)], [0, 0])
    for n_cells in (768, 200):  # one prompt alone is past 200: the long factors are right
        assert limits(config, prompts, 0, n_cells).n_ctx == 768
    with pytest.raises(ConfigError, match=r"cache of 768 cells .* longer than 512"):
        limits(config, prompts, 0, 512)


@cases((256, 0, (16, 0)), (256, 37, (24, 16)), (5, 37, (16, 5)))
def test_shapes(max_query_tokens: int, n_gpu_layers: int, wanted: tuple[int, int]) -> None:
    assert shapes(max_query_tokens, n_gpu_layers) == wanted


ONE = set_of([prompt_of(n_head=20)], [0])


def test_questions_get_room_beside_the_prompts() -> None:
    without, auto = (limits(made(n_batch=1024), ONE, 0) for made in (runtime, RuntimeConfig))
    assert (auto.n_ctx, auto.n_seq_max) == (without.n_ctx + 1024, without.n_seq_max + 16)
    assert auto.n_leaf_seqs == without.n_leaf_seqs == 4
    for state_bytes, walks, n in ((0, False, 24), (9, True, 24), (9, False, 4)):
        assert limits(RuntimeConfig(), ONE, 0, None, state_bytes, walks_trees=walks).n_leaf_seqs == n
    assert limits(RuntimeConfig(question_cells=0, question_prefixes=0), ONE, 0).n_leaf_seqs == 4
    given_room = limits(RuntimeConfig(n_batch=1024, question_cells=3000, question_prefixes=40), ONE, 0)
    assert (given_room.n_ctx, given_room.n_seq_max) == (4096, 45)  # 1,044 + 3,000 cells, in steps of 256
    # a cache that would change the RoPE factors takes less by itself
    assert limits(RuntimeConfig(n_batch=1024), ONE, 0, 1500).n_ctx == 1500


@cases(({}, 0, 24), ({}, GIB, 16), ({"max_batch": 30}, 0, 30), ({"n_seq_max": 9}, 0, 8))
def test_a_decision_model_answers_eight_at_once(settings: dict[str, Any], state_bytes: int, n_leaf_seqs: int) -> None:
    found = limits(RuntimeConfig(**settings), ONE, 0, None, state_bytes, decides=True)
    assert (found.n_leaf_seqs, found.n_batch, found.n_outputs_max) == (n_leaf_seqs, 2048, 2048)
    assert n_leaf_seqs < found.n_seq_max == found.n_state_seqs


def test_leaves_of_trees_that_are_walked_keep_no_states() -> None:
    found = limits(RuntimeConfig(), ONE, 0, None, GIB, decides=True, walks_trees=True)
    assert (found.n_leaf_seqs, found.n_seq_max, found.n_state_seqs) == (24, 25, 1)
    found = limits(RuntimeConfig(question_prefixes=3), ONE, 0, None, GIB, walks_trees=True)
    assert found.n_state_seqs == found.n_seq_max - found.n_leaf_seqs == 4


def test_questions_take_no_sequence_from_the_prompts() -> None:
    many: dict[str, Any] = {"max_batch": 1000, "n_seq_max": MAX_SEQ}
    for options, n_leaf_seqs in ((many, 255), ({**many, "question_prefixes": 100}, 155), ({"n_seq_max": 60}, 59)):
        found = limits(RuntimeConfig(max_query_tokens=1, **options), set_of([MANY], [0]), 0)
        assert (found.n_seq_max, found.n_leaf_seqs) == (options["n_seq_max"], n_leaf_seqs)


@cases(
    (Capacity(n_seqs=39, n_tokens=99, n_rows=99), "needs 40 label branches in one decode, and this engine .* 39"),
    (Capacity(n_seqs=40, n_tokens=60, n_rows=99), "needs 61 tokens in one decode, .* runtime.n_batch"),
    (Capacity(n_seqs=40, n_tokens=61, n_rows=40), "needs 41 hidden states in one decode, .* 40"),
)
def test_prompts_that_an_open_engine_cannot_hold_are_refused(capacity: Capacity, message: str) -> None:
    prompts = set_of([prompt_of(n_head=20, labels=forks(40))], [0])
    check_capacity(prompts, Capacity(n_seqs=40, n_tokens=61, n_rows=41), 1, 0)
    with pytest.raises(ConfigError, match=rf"^prompts\.category: {message}"):
        check_capacity(prompts, capacity, 1, 0)


@given(st.integers(1, 200), st.integers(0, 900))
def test_what_a_refusal_of_a_question_advises_is_enough(n: int, n_head: int) -> None:
    configured, question = set_of([prompt_of()], [0]), set_of([prompt_of(n_head=n_head, labels=forks(n))], [0])
    settings: dict[str, Any] = {}
    for _ in range(4):
        found = limits(RuntimeConfig(max_query_tokens=1, **settings), configured, 0)
        opened = Capacity(n_seqs=found.n_leaf_seqs, n_tokens=found.n_batch, n_rows=found.n_outputs_max)
        try:
            return check_capacity(question, opened, 1, 0)
        except ConfigError as e:
            (setting, least), *_ = re.findall(r"raise runtime\.(\w+) of its configuration to (\d+)", str(e))
            settings[setting] = int(least)
    raise AssertionError(settings)
