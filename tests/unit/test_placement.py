"""Where layers go on several GPUs, and which models can be batch invariant."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf import ConfigError, RuntimeConfig
from qcls_gguf.engine.open import check_tensors
from qcls_gguf.model import placement as module
from qcls_gguf.model.header import TensorInfo
from qcls_gguf.model.placement import Placement, fitted_placement, is_scarce, placement, used_gpus, weights_of
from qcls_gguf.native import ContextMemory, Device

Layers = int | Literal["auto", "all"]
MIB, GIB = 1 << 20, 1 << 30
SPARE = 512 * MIB
"""What each GPU keeps free beside what is known."""
SIZES = st.integers(1, 900).map(lambda n: n * MIB)


def gpus_of(*free_bytes: int) -> list[Device]:
    return [Device(kind="GPU", name="", free_bytes=free) for free in free_bytes]


AUTO: list[tuple[tuple[float, ...], int, int]] = [
    *(((), 0, 0), ((0,), 0, 0), ((1.2,), 0, 0), ((1.25,), 2, 1), ((3,), 18, 1), ((4.99,), 36, 1), ((5,), 37, 1)),
    *(((2, 2), 18, 2), ((2, 1), 9, 1), ((4, 2), 36, 2), ((4, 2.1), 37, 2), ((1, 0.5), 0, 0)),
    # they are divided where the first GPU has no room
    *(((5, 5), 37, 1), ((4.9, 5), 37, 2), ((0.5, 80), 37, 2), ((2, 2, 2), 27, 3)),
]
"""GiB free on each GPU, layers and GPUs that are taken, where the context is not known."""
GIVEN: list[tuple[int | Literal["all"], tuple[float, ...], int, int]] = [
    *((1, (9,), 1, 1), (38, (9,), 37, 1), (9, (), 0, 0), (0, (5, 5), 0, 0), (9, (2, 5), 9, 1), (10, (2, 5), 10, 2)),
    *(("all", (), 0, 0), ("all", (5, 5), 37, 1), ("all", (3, 1), 37, 2), ("all", (3,), 37, 1)),
]
WEIGHTS = (4 * GIB // 37,) * 37
"""36 layers, and a head as large as one."""


@cases(*GIVEN, *(("auto", *automatic) for automatic in AUTO))
def test_layers_fit_the_free_memory(
    given_layers: Layers, free_gib: tuple[float, ...], layers: int, n_gpus: int
) -> None:
    free = [round(gib * GIB) for gib in free_gib]
    found = placement(RuntimeConfig(n_gpu_layers=given_layers), WEIGHTS, gpus_of(*free), None)
    assert (found.n_gpu_layers, found.n_gpus) == (layers, n_gpus)


@cases(
    *(("auto", (15,), True), ("auto", (16,), False), ("auto", (15, 80), True), ("auto", (), False)),
    *(("all", (5,), False), ("all", (5, 5), True), (9, (5, 5), True), (0, (5, 5), False)),
)
def test_the_context_is_measured_where_layers_depend_on_it(
    given_layers: Layers, free_gib: tuple[int, ...], wanted: bool
) -> None:
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
    ends = np.cumsum(gpu_layers)
    return [
        room - sum(sizes[end - n : end]) for room, end, n in zip(rooms, ends.tolist(), gpu_layers, strict=False) if n
    ]


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
    weights = (100 * MIB,) * 21
    context = ContextMemory(cache_bytes=0, compute_bytes=0)
    placed = placement(RuntimeConfig(n_gpu_layers="all"), weights, gpus_of(SPARE + 1000 * MIB, SPARE), context)
    assert placed == Placement((10, 11))


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


def test_only_gpus_with_layers_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = Device(kind="CPU", name="", free_bytes=1)
    found = [cpu, *gpus_of(1, 2, 3)]
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
