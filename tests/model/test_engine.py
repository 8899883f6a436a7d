"""The engine: stored prefixes, shared cells, cleaning, and what an error leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier, OpenContext
from oracle import Float32Array, PromptSpec, decode_sequence

from qcls_gguf.engine.engine import Engine, Root
from qcls_gguf.errors import DecodeError, PlanError
from qcls_gguf.native import NativeModel
from qcls_gguf.plan.tree import TokenTree

EXACT: dict[str, Any] = {"flash_attn": False, "kv_type": "f32"}
LARGEST_DIFFERENCE = 2e-5
"""Between a row of the tree and that of a sequence of its own, with EXACT contexts; measured: 1.9e-6."""


def alone(model: NativeModel, open_context: OpenContext, tokens: Sequence[int]) -> Float32Array:
    """The hidden states of a whole sequence in a context of its own."""
    context = open_context(model, **EXACT, n_batch=256, n_outputs_max=256)
    rows = decode_sequence(context, tokens)
    context.close()
    return rows


def branch(engine: Engine, prefix: tuple[int, ...], paths: Sequence[Sequence[int]], n_cached: int = -1) -> Float32Array:
    """Hidden states at the ends of paths behind a stored prefix, in their order."""
    n_cached = len(prefix) if n_cached < 0 else n_cached
    tree = TokenTree()
    root = tree.add_root(n_cached)
    ends = [tree.add_path(root, path) for path in paths]
    for end in ends:
        tree.read(end)
    plan = tree.finish(engine.leaf_seqs(tree.n_leaves()))
    branch_point = Root(holder=engine.holder(prefix), n_cached=n_cached)
    decoded = engine.decode(plan, [branch_point] * plan.n_leaves)
    return decoded.hidden[plan.node_row[ends]].copy()


def long_prefix(n: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, 500, n))


@pytest.mark.parametrize(
    "prefixes",
    [
        [(1, 2, 3)],
        [(1, 2, 3), (1, 2, 3)],
        [(1, 2, 3), (1, 2)],
        [(1, 2), (1, 2, 3), (1, 2, 4), (1,)],
        [(), (1, 2)],
        [()],
        [(), ()],
        [(5,), (6,), (7, 8, 9)],
        [long_prefix(150), (*long_prefix(150)[:70], 3, 4), (*long_prefix(150)[:64], 9), long_prefix(64)],
    ],
    ids=[
        "one",
        "equal",
        "beginning",
        "beginnings",
        "empty too",
        "empty",
        "empty twice",
        "apart",
        "longer than a batch",
    ],
)
def test_branches_behind_stored_prefixes(
    prefixes: list[tuple[int, ...]], model: NativeModel, open_context: OpenContext
) -> None:
    engine = Engine(model, open_context(model, **EXACT), prefixes)
    assert engine.n_holders == len(set(prefixes))
    assert engine.n_cached == len({prefix[:n] for prefix in prefixes for n in range(1, len(prefix) + 1)})
    paths = [[10], [10, 11], [12, 13, 14]]
    for prefix in prefixes * 2:  # the second time each leaf sequence holds another prefix
        rows = branch(engine, prefix, paths)
        for row, path in zip(rows, paths, strict=True):
            wanted = alone(model, open_context, [*prefix, *path])[-1]
            np.testing.assert_allclose(row, wanted, rtol=0, atol=LARGEST_DIFFERENCE)


def test_part_of_a_prefix_can_be_branched_from(model: NativeModel, open_context: OpenContext) -> None:
    prefix = long_prefix(20)
    engine = Engine(model, open_context(model, **EXACT), [prefix])
    for n_cached in (19, 20, 0, 7, 20):
        row = branch(engine, prefix, [[30, 31]], n_cached)[0]
        wanted = alone(model, open_context, [*prefix[:n_cached], 30, 31])[-1]
        np.testing.assert_allclose(row, wanted, rtol=0, atol=LARGEST_DIFFERENCE)


def test_several_roots_in_one_decode(model: NativeModel, open_context: OpenContext) -> None:
    prefixes = [(1, 2, 3), (4, 5), ()]
    engine = Engine(model, open_context(model, **EXACT), prefixes)
    tree = TokenTree()
    ends = [tree.add_path(tree.add_root(len(prefix)), [20, 21]) for prefix in prefixes]
    for end in ends:
        tree.read(end)
    plan = tree.finish(engine.leaf_seqs(3))
    roots = [Root(holder=engine.holder(prefix), n_cached=len(prefix)) for prefix in prefixes]
    hidden = engine.decode(plan, roots).hidden
    for end, prefix in zip(ends, prefixes, strict=True):
        wanted = alone(model, open_context, [*prefix, 20, 21])[-1]
        np.testing.assert_allclose(hidden[plan.node_row[end]], wanted, rtol=0, atol=LARGEST_DIFFERENCE)


def test_prefixes_need_a_sequence_each_and_one_to_spare(model: NativeModel, open_context: OpenContext) -> None:
    with pytest.raises(PlanError, match="8 prefixes leave no sequence of 8"):
        Engine(model, open_context(model), [(n,) for n in range(8)])
    assert Engine(model, open_context(model), [(n,) for n in range(7)]).n_free == 1


def test_prefixes_that_do_not_fit(model: NativeModel, open_context: OpenContext) -> None:
    with pytest.raises(DecodeError, match="no free cells"):
        Engine(model, open_context(model), [long_prefix(257)])


def test_a_thousand_requests_leave_no_cells_behind(model: NativeModel, open_context: OpenContext) -> None:
    """256 cells: 40 of the prefix, and up to 60 of each request."""
    prefix = long_prefix(40)
    engine = Engine(model, open_context(model), [prefix])
    first = branch(engine, prefix, [[1, 2, 3], [1, 4]])
    rng = np.random.default_rng(0)
    for _ in range(1000):
        n_branches = int(rng.integers(1, 7))
        branch(engine, prefix, rng.integers(0, 500, (n_branches, int(rng.integers(1, 10)))).tolist())
    assert (branch(engine, prefix, [[1, 2, 3], [1, 4]]) == first).all()


def test_an_error_in_the_middle_changes_nothing(model: NativeModel, open_context: OpenContext) -> None:
    prefix = long_prefix(200)
    engine = Engine(model, open_context(model), [prefix])
    before = branch(engine, prefix, [[1, 2], [3]])
    for n, error in ((57, DecodeError), (65, PlanError)):  # 56 cells are free, a batch has 64 tokens
        with pytest.raises(error):
            branch(engine, prefix, [list(range(n))])
        with pytest.raises(PlanError):
            branch(engine, prefix, [[1, 10**6]])
        assert (branch(engine, prefix, [[1, 2], [3]]) == before).all()


def test_closing_frees_context_and_model(make_model: MakeModel, open_context: OpenContext) -> None:
    model = NativeModel(make_model())
    with Engine(model, open_context(model), [(1, 2)]) as engine:
        pass
    engine.close()
    with pytest.raises(DecodeError, match="closed"):
        branch(engine, (1, 2), [[3]])


@pytest.mark.parametrize("place", ["trim", "share", "decode", "clear"])
def test_an_interrupt_anywhere_leaves_right_answers(
    place: str, make_model: MakeModel, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The native call is made, then the interrupt comes, at each call of a request that moves every prefix."""
    specs = [
        PromptSpec(name=name, template=f"analyze the {name}: {{query}}\nlabel:", labels=("boy", "girl", "none"))
        for name in ("user", "category", "item")
    ]
    classifier = open_classifier(make_model(), specs)
    wanted = [answer.scores for answer in classifier.classify("red dress").results]
    context = classifier.parts.engine.context
    call = getattr(context, place)
    for n in range(1, 8):
        left = n

        def interrupted(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            answer = call(*arguments, **options)
            if left == 0:
                raise KeyboardInterrupt
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(context, place, interrupted)
            with suppress(KeyboardInterrupt):
                classifier.parts.engine.restore()
                classifier.classify("x y z")
        assert [answer.scores for answer in classifier.classify("red dress").results] == wanted
