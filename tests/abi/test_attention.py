"""This project's attention on plain arrays: of the built library, or compiled here for other instruction sets.

Attention that reads only visible cells, on plain arrays, against its definition, in every variant that runs here.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int32, c_void_p
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from cpu_kernels import built_library, compiled_kernel, why_not
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Cells = tuple[Int32Array, Int32Array]
"""A sequence's positions, ascending, and cells."""
Attention = Callable[..., Float32Array]

VARIANTS = {"AVX-512": "-mavx512f -mfma -mf16c", "AVX2": "-mavx2 -mfma -mf16c", "plain": ""}
"""What the kernels are written for, and the compiler's flags for it."""


_POINTERS = ("token_seq", "token_pos", "list_start", "list_pos", "list_cell", "q", "k", "v", "out")


class _Arrays(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, c_int32) for name in ["n_threads", "n_tokens", "n_seqs", "window", "n_head", "n_head_kv"]),
        *((name, c_int32) for name in ["head_size_k", "head_size_v", "is_f16"]),
        ("scale", c_float),
        *((name, c_void_p) for name in _POINTERS),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What attention is asked for; cells of k and v that no list names belong to others."""

    q: Float32Array
    """(n_tokens, n_head, head_size_k)"""
    k: npt.NDArray[Any]
    """(n_cells, n_head_kv, head_size_k), float16 or float32 as v is"""
    v: npt.NDArray[Any]
    """(n_cells, n_head_kv, head_size_v)"""
    token_seq: Int32Array
    token_pos: Int32Array
    lists: Sequence[Cells]
    window: int = 0

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)


def attention_by(compute: Any, attend: c_void_p, case: Case, *, n_threads: int = 1) -> Float32Array:
    """(n_tokens, n_head, head_size_v), by `compute_attention` of attention.cpp and the kernel that it runs."""
    start = np.cumsum([0, *(len(pos) for pos, _ in case.lists)], dtype=np.int32)
    none = np.empty(0, np.int32)
    pos, cell = (np.concatenate([none, *(part[i] for part in case.lists)]) for i in range(2))
    (n_tokens, n_head, size_k), (_, n_head_kv, size_v) = case.q.shape, case.v.shape
    out = np.full((n_tokens, n_head, size_v), np.nan, np.float32)
    arrays = case.token_seq, case.token_pos, start, pos, cell, case.q, case.k, case.v, out
    assert all(array.flags.c_contiguous for array in arrays)
    is_f16 = case.k.dtype == np.float16
    numbers = n_threads, n_tokens, len(case.lists), case.window, n_head, n_head_kv, size_k, size_v, is_f16, case.scale
    compute(byref(_Arrays(*numbers, *(array.ctypes.data for array in arrays))), attend)
    return out


def plain_attention(case: Case) -> npt.NDArray[np.float64]:
    """The same by the definition, in double precision: zeros for a token that sees no cell."""
    n_tokens, n_head, _ = case.q.shape
    out = np.zeros((n_tokens, n_head, case.v.shape[2]))
    for i in range(n_tokens):
        pos, cell = case.lists[case.token_seq[i]]
        distance = case.token_pos[i] - pos
        seen = cell[(distance >= 0) & ((case.window == 0) | (distance < case.window))]
        for h in range(n_head if len(seen) else 0):
            head_kv = h // (n_head // case.k.shape[1])
            score = case.k[seen, head_kv].astype(np.float64) @ case.q[i, h].astype(np.float64) * case.scale
            weight = np.exp(score - score.max())
            out[i, h] = weight / weight.sum() @ case.v[seen, head_kv].astype(np.float64)
    return out


LARGEST_DIFFERENCE = 5e-6
"""Of values with a spread of 1, against double precision. Measured: 1.1e-6."""
HEADS = [(64, 4, 2), (80, 3, 3), (96, 8, 1), (128, 16, 8), (256, 4, 4), (112, 7, 1), (40, 10, 2), (7, 2, 1)]
"""Head size, query heads, heads of keys and values."""


@pytest.fixture(scope="module", params=["built", *VARIANTS])
def attention(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Attention:
    """A variant of the kernel; `built`: the package's own."""
    flags = VARIANTS.get(request.param, "")
    if reason := why_not(flags):
        pytest.skip(reason)
    compiled = compiled_kernel("attention", tmp_path_factory.mktemp("attention"), flags)
    kernels = built_library() if request.param == "built" else compiled
    return partial(attention_by, compiled.compute_attention, ctypes.cast(kernels.qcls_attend, c_void_p))


def random_lists(random: np.random.Generator, n_seqs: int, longest: int, n_cells: int) -> list[Cells]:
    """Sequences that branch off each other, in cells scattered over the cache; some are empty."""
    free = random.permutation(n_cells).astype(np.int32).tolist()
    paths: list[list[int]] = [[]]
    for _ in range(n_seqs):
        parent = paths[random.integers(len(paths))]
        path = parent[: random.integers(len(parent) + 1)]
        n_new = min(int(random.integers(longest - len(path) + 1)), len(free))
        paths.append(path + [free.pop() for _ in range(n_new)])
    return [(np.arange(len(path), dtype=np.int32), np.array(path, np.int32)) for path in paths]


def random_case(
    seed: int,
    *,
    heads: tuple[int, int, int] = (64, 4, 2),
    dtype: type[np.generic] = np.float16,
    n_tokens: int = 40,
    n_seqs: int = 6,
    longest: int = 150,
    n_cells: int = 500,
    window: int = 0,
    start: int = 0,
    value_size: int | None = None,
) -> Case:
    """start: the first position of every sequence; value_size: of a head of values, if not that of keys."""
    random = np.random.default_rng(seed)
    head_size, n_head, n_head_kv = heads
    lists = [(pos + start, cell) for pos, cell in random_lists(random, n_seqs, longest, n_cells)]
    return Case(
        q=random.normal(size=(n_tokens, n_head, head_size)).astype(np.float32),
        k=random.normal(size=(n_cells, n_head_kv, head_size)).astype(dtype),
        v=random.normal(size=(n_cells, n_head_kv, value_size or head_size)).astype(dtype),
        token_seq=random.integers(len(lists), size=n_tokens).astype(np.int32),
        token_pos=random.integers(start, start + longest, size=n_tokens).astype(np.int32),
        lists=lists,
        window=window,
    )


def assert_right(attention: Attention, case: Case, **options: int) -> None:
    found = attention(case, **options)
    np.testing.assert_allclose(found, plain_attention(case), rtol=0, atol=LARGEST_DIFFERENCE)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_every_kind_of_head(attention: Attention, heads: tuple[int, int, int], dtype: type[np.generic]) -> None:
    for seed in range(3):
        assert_right(attention, random_case(seed, heads=heads, dtype=dtype))


@settings(max_examples=60, derandomize=False, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    n_tokens=st.integers(0, 70),
    n_seqs=st.integers(0, 12),
    longest=st.integers(1, 400),
    window=st.sampled_from([0, 0, 1, 7, 128, 200]),
    heads=st.sampled_from([(64, 4, 2), (16, 5, 1), (20, 6, 2)]),
    start=st.sampled_from([0, 1000]),
    value_size=st.sampled_from([None, 13, 32, 128]),
    n_threads=st.integers(1, 9),
)
def test_random_trees(attention: Attention, **drawn: Any) -> None:
    n_threads = drawn.pop("n_threads")
    assert_right(attention, random_case(drawn.pop("seed"), **drawn), n_threads=n_threads)


@pytest.mark.parametrize("n_tokens", [1, 2048])
def test_one_sequence(attention: Attention, n_tokens: int) -> None:
    case = random_case(2, n_tokens=n_tokens, heads=(64, 2, 1), n_cells=2100)
    path = np.random.default_rng(3).permutation(2100)[:2048].astype(np.int32)
    pos = np.arange(2048, dtype=np.int32)
    case = replace(case, lists=[(pos, path)], token_seq=np.zeros(n_tokens, np.int32), token_pos=pos[-n_tokens:])
    assert_right(attention, case, n_threads=2)


def test_a_token_that_sees_nothing_gets_zeros(attention: Attention) -> None:
    case = random_case(5, n_tokens=30)
    none = np.empty(0, np.int32)
    assert not attention(replace(case, lists=[(none, none)] * len(case.lists))).any()
    assert not attention(replace(case, token_pos=np.zeros(30, np.int32), lists=[(none + 1, none)] * 7)).any()


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_scores_may_be_far_apart(attention: Attention, scale: float) -> None:
    case = random_case(6, dtype=np.float32)
    found = attention(replace(case, q=case.q * np.float32(scale)))
    wanted = plain_attention(replace(case, q=case.q * np.float32(scale)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=LARGEST_DIFFERENCE * max(1, scale))


def taken(case: Case, tokens: Int32Array) -> Case:
    return replace(case, q=case.q[tokens], token_seq=case.token_seq[tokens], token_pos=case.token_pos[tokens])


@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("heads", [(64, 4, 2), (128, 7, 1), (80, 3, 3)], ids=str)
def test_nothing_but_visible_cells_matters(attention: Attention, heads: tuple[int, int, int], window: int) -> None:
    case = random_case(7, heads=heads, n_tokens=60, window=window, longest=300)
    random = np.random.default_rng(8)
    wanted = attention(case)
    for n_threads in (2, 3, 16):
        np.testing.assert_array_equal(attention(case, n_threads=n_threads), wanted)
    for n in (1, 2, 3, 17, 60):  # among other tokens, in another order
        tokens = random.permutation(60)[:n].astype(np.int32)
        np.testing.assert_array_equal(attention(taken(case, tokens)), wanted[tokens])
    # in a larger cache, elsewhere, among cells that hold no number
    place = random.permutation(1700)[: len(case.k)].astype(np.int32)
    k, v = (np.full((1700, *cells.shape[1:]), np.nan, cells.dtype) for cells in (case.k, case.v))
    k[place], v[place] = case.k, case.v
    moved = replace(case, k=k, v=v, lists=[(pos, place[cell]) for pos, cell in case.lists])
    np.testing.assert_array_equal(attention(moved), wanted)


def test_what_is_not_a_number_spoils_only_those_who_see_it(attention: Attention) -> None:
    case = random_case(9, n_tokens=150, longest=150)
    pos = np.arange(150, dtype=np.int32)
    lists = [(pos, pos[::-1].copy())]
    case = replace(case, lists=lists, token_seq=np.zeros(150, np.int32), token_pos=pos)
    wanted = attention(case)
    for array in (case.k, case.v):
        kept = array.copy()
        array[149 - 77] = np.inf
        found = attention(case)
        array[:] = kept
        np.testing.assert_array_equal(found[:77], wanted[:77])
        assert not np.isfinite(found[77:]).all(axis=(1, 2)).any()


def test_every_half_is_read_as_the_number_it_is(attention: Attention) -> None:
    """A token that sees one cell gets this cell's values: all 65,536, small ones, infinite ones and NaN among them."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 1, 256)
    case = Case(
        q=np.ones((256, 1, 256), np.float32),
        k=np.zeros_like(values),
        v=values,
        token_seq=np.arange(256, dtype=np.int32),
        token_pos=np.zeros(256, np.int32),
        lists=[(np.zeros(1, np.int32), np.array([cell], np.int32)) for cell in range(256)],
    )
    np.testing.assert_array_equal(attention(case), values.astype(np.float32))
