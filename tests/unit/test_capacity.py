"""The limits of a context, from small prompts made by hand, and the choice of GPU layers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.config.schema import RuntimeConfig
from qcls_gguf.engine.capacity import (
    Limits,
    check_capacity,
    limits,
    pays_to_share,
    shapes,
)
from qcls_gguf.errors import ConfigError
from qcls_gguf.model.header import TensorInfo
from qcls_gguf.model.placement import Weights, is_scarce, placement, room_bytes, weights_of
from qcls_gguf.native import ContextMemory, Device
from qcls_gguf.plan.growth import Capacity
from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.prompts.prompt_set import PromptSet
from qcls_gguf.prompts.trie import build_trie

GIB = 1 << 30
MAX_SEQ = 256
"""Of the contexts here, so that labels for so many are quickly made."""
TWO_WORDS = ((1,), (2,))
LIGHT = ((1, 2), (1, 3), (4,))


def prompt_of(
    *,
    name: str = "category",
    n_head: int = 0,
    n_stable: int = 0,
    n_tail: int = 0,
    first: int = 0,
    labels: tuple[tuple[int, ...], ...] = TWO_WORDS,
) -> Prompt:
    """A prompt of so many tokens; `first` is its first token."""
    texts = tuple(map(str, labels))
    return Prompt(
        name=name,
        labels=texts,
        label_tokens=labels,
        trie=build_trie(texts, labels, -1, "tree"),
        before="",
        after="",
        head=(first,) * n_head,
        stable=(first,) * n_stable,
        tail=(0,) * n_tail,
    )


def set_of(prompts: Sequence[Prompt], n_empty: Sequence[int]) -> PromptSet:
    """The prompts with fragments of their own, of so many tokens for an empty query."""
    own = tuple(replace(prompt, before=str(index)) for index, prompt in enumerate(prompts))
    fragments = {prompt.fragment: n for prompt, n in zip(own, n_empty, strict=True)}
    return PromptSet(prompts=own, settings=(), fragments=fragments, exact=False)


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
        n_stable = draw(st.integers(0, 9))
        prompts.append(
            prompt_of(
                n_head=draw(st.integers(0, 60)),
                n_stable=n_stable,
                n_tail=draw(st.integers(0, 9)),
                first=index % draw(st.integers(1, 3)),
                labels=draw(st.sampled_from([TWO_WORDS, LIGHT, forks(3), forks(40)])),
            )
        )
        n_empty.append(n_stable + draw(st.integers(0, 4)))
    config = runtime(max_query_tokens=draw(st.integers(1, 300)), max_batch=draw(st.integers(1, 9)))
    return config, prompts, n_empty


@settings(deadline=None, max_examples=100, derandomize=True)
@given(setups())
def test_automatic_limits_suffice(setup: tuple[RuntimeConfig, list[Prompt], list[int]]) -> None:
    config, prompts, n_empty = setup
    found = limits(config, set_of(prompts, n_empty), 0)
    prefixes = {prompt.prefix for prompt in prompts}
    n_query = [n + config.max_query_tokens for n in n_empty]
    fast = sum(n - len(p.stable) + len(p.tail) + len(p.trie.fed) for n, p in zip(n_query, prompts, strict=True))
    slow = max(n + len(p.head) + len(p.tail) + len(p.trie.fed) for n, p in zip(n_query, prompts, strict=True))
    assert found.n_batch >= max(fast, slow)
    assert found.n_batch >= found.n_outputs_max >= found.n_seq_max
    assert found.n_ctx % 256 == 0
    assert 0 <= found.n_ctx - (sum(map(len, prefixes)) + found.n_batch) < 256
    n_leaves = [prompt.trie.n_leaves for prompt in prompts]
    assert len(prefixes) + max(n_leaves) <= found.n_seq_max <= MAX_SEQ
    wanted = len(prefixes) + sum(n_leaves) * config.max_batch
    assert found.n_seq_max == min(MAX_SEQ, wanted)
    n_read = sum(len(prompt.trie.read) for prompt in prompts)
    n_queries = min(config.max_batch, math.ceil((MAX_SEQ - len(prefixes)) / sum(n_leaves)))
    assert found.n_outputs_max == max(found.n_seq_max, n_read * n_queries)


def test_limits_worked_by_hand() -> None:
    prompts = [
        prompt_of(n_head=10, n_stable=3, n_tail=6, labels=LIGHT),
        prompt_of(n_head=20, n_stable=2, n_tail=5, first=1),
    ]
    found = limits(runtime(max_query_tokens=8, max_batch=1), set_of(prompts, [4, 2]), 0)
    # fast: 4 - 3 + 8 + 6 + 1 and 2 - 2 + 8 + 5; slow: 10 + 4 + 8 + 6 + 1 and 20 + 2 + 8 + 5
    assert found == Limits(n_ctx=256, n_batch=35, n_seq_max=4, n_outputs_max=4, n_leaf_seqs=2)


def test_equal_prefixes_are_held_once() -> None:
    config = runtime(max_query_tokens=1, max_batch=1)
    alike = [prompt_of(n_head=200), prompt_of(n_head=200)]
    different = [prompt_of(n_head=200), prompt_of(n_head=200, first=1)]
    assert limits(config, set_of(alike, [0, 0]), 0) == Limits(
        n_ctx=512, n_batch=201, n_seq_max=3, n_outputs_max=3, n_leaf_seqs=2
    )
    assert limits(config, set_of(different, [0, 0]), 0) == Limits(
        n_ctx=768, n_batch=201, n_seq_max=4, n_outputs_max=4, n_leaf_seqs=2
    )


def test_the_batch_holds_all_that_a_full_request_reads() -> None:
    found = limits(runtime(max_query_tokens=1, max_batch=4), set_of([prompt_of(labels=forks(40))], [0]), 0)
    assert (found.n_seq_max, found.n_outputs_max, found.n_batch) == (161, 164, 164)


def test_sequences_are_capped_where_one_request_could_use_more() -> None:
    found = limits(runtime(max_query_tokens=1, max_batch=1000), set_of([prompt_of(labels=forks(40))], [0]), 0)
    assert (found.n_seq_max, found.n_outputs_max) == (MAX_SEQ, 7 * 41)


def test_a_cache_that_changes_the_rope_factors_is_refused() -> None:
    config, prompts = (
        runtime(max_query_tokens=1, max_batch=1),
        [prompt_of(n_head=200), prompt_of(n_head=200, first=1)],
    )
    assert limits(config, set_of(prompts, [0, 0]), 0, 768).n_ctx == 768
    assert (
        limits(config, set_of(prompts, [0, 0]), 0, 200).n_ctx == 768
    )  # one prompt alone is past it: the long ones are right
    with pytest.raises(ConfigError, match=r"cache of 768 cells .* longer than 512"):
        limits(config, set_of(prompts, [0, 0]), 0, 512)


def test_too_many_sequences_are_refused() -> None:
    config = runtime(max_query_tokens=1)
    prompts = [prompt_of(), prompt_of(name="colour", first=1, n_head=1, labels=forks(MAX_SEQ - 2))]
    assert limits(config, set_of(prompts, [0, 0]), 0).n_seq_max == MAX_SEQ
    prompts[1] = prompt_of(name="colour", first=1, n_head=1, labels=forks(MAX_SEQ - 1))
    message = "prompts.colour: its labels need 255 sequences and the prefixes 2, more than runtime.n_seq_max: 256:"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)} raise it, .*scoring: first_token$"):
        limits(config, set_of(prompts, [0, 0]), 0)


def test_a_prompt_longer_than_the_training_context_is_refused() -> None:
    prompts = [prompt_of(), prompt_of(name="colour", n_head=10, n_stable=3, n_tail=6, labels=LIGHT)]
    config = runtime(max_query_tokens=8)
    assert limits(config, set_of(prompts, [0, 4]), 29).n_batch >= 29
    assert limits(config, set_of(prompts, [0, 4]), 0)
    assert limits(config, set_of(prompts, [0, 4]), -1)
    message = "prompts.colour: with a query of runtime.max_query_tokens (8) it has 29 tokens, and the model was trained"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)} for 28: lower max_query_tokens"):
        limits(config, set_of(prompts, [0, 4]), 28)


def test_a_batch_too_small_for_one_prompt_is_refused() -> None:
    prompts = [prompt_of(n_head=20, n_tail=5), prompt_of(n_head=30, n_tail=5, first=1)]
    for n_batch in (43, 60):
        assert limits(runtime(max_query_tokens=8, n_batch=n_batch), set_of(prompts, [0, 0]), 0).n_batch == n_batch
    with pytest.raises(ConfigError, match=r"^runtime\.n_batch: 42 is less than the 43 that"):
        limits(runtime(max_query_tokens=8, n_batch=42), set_of(prompts, [0, 0]), 0)


def test_a_batch_too_small_for_the_outputs_is_refused() -> None:
    prompts = [prompt_of(labels=forks(40))]
    assert limits(runtime(max_query_tokens=1, n_batch=164), set_of(prompts, [0]), 0).n_batch == 164
    with pytest.raises(ConfigError, match=r"^runtime\.n_batch: 163 is less than the 164 that"):
        limits(runtime(max_query_tokens=1, n_batch=163), set_of(prompts, [0]), 0)


def test_a_context_too_small_for_prefixes_and_batch_is_refused() -> None:
    prompts = [prompt_of(n_head=20, n_stable=1, n_tail=5)]
    assert limits(runtime(max_query_tokens=8, n_ctx=56), set_of(prompts, [2]), 0).n_ctx == 56
    message = "runtime.n_ctx: 55 is less than the 56 cells that the prefixes (21) and a batch (35) need: raise it"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}, or lower n_batch or max_query_tokens$"):
        limits(runtime(max_query_tokens=8, n_ctx=55), set_of(prompts, [2]), 0)


def test_a_given_batch_sizes_the_context() -> None:
    prompts = [prompt_of(n_head=20)]
    assert limits(runtime(n_batch=1024), set_of(prompts, [0]), 0).n_ctx == 1280
    with pytest.raises(ConfigError, match=r"^runtime\.n_ctx: 1043 is less than the 1044 cells"):
        limits(runtime(n_batch=1024, n_ctx=1043), set_of(prompts, [0]), 0)


def weights(gib: int) -> Weights:
    """36 layers, and a head as large as one."""
    return Weights(layer_bytes=(gib * GIB // 37,) * 36, head_bytes=gib * GIB // 37)


def gpus_of(*free_bytes: int) -> list[Device]:
    return [Device(kind="GPU", name="", free_bytes=free, total_bytes=free) for free in free_bytes]


@pytest.mark.parametrize(("given_layers", "layers"), [(0, 0), (1, 1), (37, 37), (38, 37), (99, 37), ("all", 37)])
def test_given_gpu_layers_are_taken_up_to_all(given_layers: int | Literal["all"], layers: int) -> None:
    config = RuntimeConfig(n_gpu_layers=given_layers)
    assert placement(config, weights(1), gpus_of(0)).n_gpu_layers == layers
    assert placement(config, weights(1), []).n_gpu_layers == 0


@pytest.mark.parametrize(
    ("free_gib", "layers"),
    [
        ((), 0),
        ((0,), 0),
        ((1,), 0),
        ((1.2,), 0),
        ((1.25,), 2),
        ((3,), 18),
        ((2, 2), 18),
        ((2, 1), 9),
        ((4.99,), 36),
        ((5,), 37),
        ((4, 2), 36),
        ((4, 2.1), 37),
        ((80,), 37),
    ],
)
def test_automatic_gpu_layers_fit_the_free_memory(free_gib: tuple[float, ...], layers: int) -> None:
    gpus = gpus_of(*(round(gib * GIB) for gib in free_gib))
    assert placement(RuntimeConfig(), weights(4), gpus).n_gpu_layers == layers


@pytest.mark.parametrize(
    ("given_layers", "free_gib", "layers", "n_gpus"),
    [
        ("auto", (5, 5), 37, 1),
        ("auto", (4.9, 5), 37, 2),
        ("auto", (0.5, 80), 37, 2),
        ("auto", (2, 2, 2), 27, 3),
        ("auto", (1, 0.5), 0, 0),
        ("all", (5, 5), 37, 1),
        ("all", (3, 1), 37, 2),
        ("all", (3,), 37, 1),
        (9, (2, 5), 9, 1),
        (10, (2, 5), 10, 2),
        (0, (5, 5), 0, 0),
    ],
)
def test_layers_are_divided_where_the_first_gpu_has_no_room(
    given_layers: int | Literal["auto", "all"], free_gib: tuple[float, ...], layers: int, n_gpus: int
) -> None:
    gpus = gpus_of(*(round(gib * GIB) for gib in free_gib))
    found = placement(RuntimeConfig(n_gpu_layers=given_layers), weights(4), gpus)
    assert (found.n_gpu_layers, found.n_gpus) == (layers, n_gpus)


@pytest.mark.parametrize(
    ("given_layers", "free_gib", "layers", "n_gpus"),
    [
        ("auto", (9.5,), 37, 1),
        ("auto", (9.4,), 36, 1),
        ("auto", (5.5,), 18, 1),
        ("auto", (1.5,), 0, 0),
        ("auto", (5.5, 5.5), 36, 2),
        ("auto", (5.5, 5.6), 37, 2),
        ("auto", (5.5, 1.2), 18, 1),
        ("all", (9.5, 80), 37, 1),
        ("all", (9.4, 80), 37, 2),
        ("all", (5,), 37, 1),
        (0, (80,), 0, 0),
    ],
)
def test_layers_make_room_for_the_context_where_it_is_known(
    given_layers: int | Literal["auto", "all"], free_gib: tuple[float, ...], layers: int, n_gpus: int
) -> None:
    """4 GiB of weights and as much of cache go where the layers go; 1 GiB of buffers and 0.5 are on each GPU."""
    gpus = gpus_of(*(round(gib * GIB) for gib in free_gib))
    context = ContextMemory(cache_bytes=4 * GIB, compute_bytes=GIB)
    found = placement(RuntimeConfig(n_gpu_layers=given_layers), weights(4), gpus, context)
    assert (found.n_gpu_layers, found.n_gpus) == (layers, n_gpus)


def test_what_is_read_before_the_layers_needs_no_gpu() -> None:
    def tensors(**n_bytes: int) -> dict[str, TensorInfo]:
        names = {name.replace("__", "."): each for name, each in n_bytes.items()}
        return {
            name: TensorInfo(name=name, shape=(1,), ggml_type=0, offset=0, n_bytes=each) for name, each in names.items()
        }

    untied = tensors(token_embd__weight=1000, blk__0__a=1, blk__1__a=2, output_norm__weight=10, output__weight=20)
    assert weights_of(untied, 2) == Weights(layer_bytes=(1, 2), head_bytes=30)
    tied = tensors(token_embd__weight=1000, per_layer_token_embd__weight=5000, blk__0__a=1, output_norm__weight=10)
    assert weights_of(tied, 1) == Weights(layer_bytes=(1,), head_bytes=1010)


@pytest.mark.parametrize(
    ("given_layers", "free_gib", "wanted"),
    [
        ("auto", (15,), True),
        ("auto", (16,), False),
        ("auto", (15, 80), True),
        ("auto", (), False),
        ("all", (5,), False),
        ("all", (5, 5), True),
        (9, (5, 5), True),
        (0, (5, 5), False),
    ],
)
def test_the_context_is_measured_where_layers_depend_on_it(
    given_layers: int | Literal["auto", "all"], free_gib: tuple[float, ...], wanted: bool
) -> None:
    gpus = gpus_of(*(round(gib * GIB) for gib in free_gib))
    assert is_scarce(RuntimeConfig(n_gpu_layers=given_layers), 4 * GIB, gpus) == wanted


@pytest.mark.parametrize(("free_gib", "room_gib"), [((), 0), ((3,), 2), ((3, 0.5, 2), 3)])
def test_each_gpu_keeps_memory_beside_weights(free_gib: tuple[float, ...], room_gib: int) -> None:
    assert room_bytes(gpus_of(*(round(gib * GIB) for gib in free_gib))) == room_gib * GIB


@pytest.mark.parametrize(
    ("runtime", "n_gpu_layers", "wanted"),
    [
        (RuntimeConfig(), 0, (16, 0)),
        (RuntimeConfig(), 37, (24, 16)),
        (RuntimeConfig(max_query_tokens=5), 37, (16, 5)),
        (RuntimeConfig(warm_query_tokens=0), 37, (16, 0)),
        (RuntimeConfig(warm_query_tokens=30, n_shapes=4), 0, (4, 30)),
        (RuntimeConfig(n_shapes=0), 0, (0, 0)),
    ],
)
def test_shapes(runtime: RuntimeConfig, n_gpu_layers: int, wanted: tuple[int, int]) -> None:
    assert shapes(runtime, n_gpu_layers) == wanted


@pytest.mark.parametrize(
    ("n_gpu_layers", "n_prefixes", "wanted"), [(0, 2, False), (0, 1, True), (37, 2, True), (1, 8, True)]
)
def test_callers_share_a_decode_where_it_pays(n_gpu_layers: int, n_prefixes: int, wanted: bool) -> None:
    assert pays_to_share(n_gpu_layers, n_prefixes) == wanted


def test_questions_get_room_beside_the_prompts() -> None:
    prompts = set_of([prompt_of(n_head=20)], [0])
    without = limits(runtime(n_batch=1024), prompts, 0)
    auto = limits(RuntimeConfig(n_batch=1024), prompts, 0)
    assert (auto.n_ctx, auto.n_seq_max) == (without.n_ctx + 1024, without.n_seq_max + 16)
    assert auto.n_leaf_seqs == without.n_leaf_seqs == 4
    given_room = limits(RuntimeConfig(n_batch=1024, question_cells=3000, question_prefixes=40), prompts, 0)
    assert (given_room.n_ctx, given_room.n_seq_max) == (4096, 45)  # 1,044 + 3,000 cells, in steps of 256
    # a cache that would change the RoPE factors takes less by itself
    assert limits(RuntimeConfig(n_batch=1024), prompts, 0, 1500).n_ctx == 1500


def test_questions_take_no_sequence_from_the_prompts() -> None:
    prompts = set_of([prompt_of(labels=forks(40))], [0])
    found = limits(RuntimeConfig(max_query_tokens=1, max_batch=1000, n_seq_max=MAX_SEQ), prompts, 0)
    assert (found.n_seq_max, found.n_leaf_seqs) == (MAX_SEQ, 255)
    reserved = limits(
        RuntimeConfig(max_query_tokens=1, max_batch=1000, question_prefixes=100, n_seq_max=MAX_SEQ), prompts, 0
    )
    assert (reserved.n_seq_max, reserved.n_leaf_seqs) == (MAX_SEQ, 155)
    small = limits(RuntimeConfig(max_query_tokens=1, n_seq_max=60), prompts, 0)
    assert (small.n_seq_max, small.n_leaf_seqs) == (60, 59)
    message = (
        "prompts.category: its labels need 40 sequences and the prefixes 1, more than runtime.n_seq_max: 40: raise it"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        limits(RuntimeConfig(max_query_tokens=1, n_seq_max=40), prompts, 0)


def test_question_prefixes_need_a_batch_as_large() -> None:
    prompts = set_of([prompt_of(n_head=20)], [0])
    found = limits(RuntimeConfig(max_query_tokens=1, question_prefixes=200), prompts, 0)
    assert (found.n_seq_max, found.n_batch) == (205, 205)
    with pytest.raises(ConfigError, match=r"^runtime\.n_batch: 204 is less than the 205 that"):
        limits(RuntimeConfig(max_query_tokens=1, n_batch=204, question_prefixes=200), prompts, 0)


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        (Capacity(n_seqs=39, n_tokens=99, n_rows=99), "needs 40 label branches in one decode, and this engine .* 39"),
        (Capacity(n_seqs=40, n_tokens=60, n_rows=99), "needs 61 tokens in one decode, .* runtime.n_batch"),
        (Capacity(n_seqs=40, n_tokens=61, n_rows=40), "needs 41 hidden states in one decode, .* 40"),
    ],
)
def test_prompts_that_an_open_engine_cannot_hold_are_refused(capacity: Capacity, message: str) -> None:
    prompts = set_of([prompt_of(n_head=20, labels=forks(40))], [0])
    check_capacity(prompts, Capacity(n_seqs=40, n_tokens=61, n_rows=41), 1, 0)
    with pytest.raises(ConfigError, match=rf"^prompts\.category: {message}"):
        check_capacity(prompts, capacity, 1, 0)
