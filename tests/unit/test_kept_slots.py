"""Which slots keep which queries of a turn, and where these go on; the cells are plain lists here."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.plan.kept_queries import Continuation, KeptQueries, Layout, SlotUpdate
from qcls_gguf.plan.tree import Root
from qcls_gguf.statistics import Int32Array

END = 9
"""the token after each query"""
LAYOUT = Layout(
    roots=(Root(holder=0, n_cached=3), Root(holder=1, n_cached=5)),
    fragments=(("", ""),) * 2,
    fragment_of=(0, 0),
    n_after=(1,),
)
OTHER = Layout(roots=LAYOUT.roots[:1], fragments=LAYOUT.fragments[:1], fragment_of=(0,), n_after=(1,))
TURNS = st.lists(
    st.lists(
        st.tuples(st.sampled_from([LAYOUT, LAYOUT, LAYOUT, OTHER]), st.lists(st.integers(0, 1), max_size=6)),
        min_size=1,
        max_size=6,
    ),
    max_size=12,
)


def after(query: list[int]) -> list[Int32Array]:
    return [np.array([*query, END], np.int32)]


def slots(n: int, *, have_states: bool = False) -> KeptQueries:
    kept = KeptQueries(range(100, 100 + 2 * n), 2, have_states=have_states)
    kept.use_layout(LAYOUT)
    return kept


def done(left: list[list[SlotUpdate]]) -> None:
    """Note what decodes leave in slots, as the engine does."""
    for each in [each for of_decode in left for each in of_decode]:
        each.slot.fragments, each.slot.n_tokens = each.fragments, each.n_tokens


def ask(kept: KeptQueries, *queries: list[int]) -> list[Continuation]:
    """A turn of some queries whose decode is made."""
    found = [each for each in kept.find([(LAYOUT, after(query)) for query in queries]) if each]
    for each in found:
        done(each.slot_updates([{0: 0, 1: 0}]))
    return found


@settings(derandomize=False)
@given(turns=TURNS, n_slots=st.integers(1, 4), have_states=st.booleans())
def test_what_is_read_is_there_and_no_slot_is_written_twice(
    turns: list[list[tuple[Layout, list[int]]]], n_slots: int, have_states: bool
) -> None:
    """With states, they are those of the tokens, no slot is read and written in a turn, and no state is kept twice."""
    kept = slots(n_slots, have_states=have_states)
    cells: dict[int, list[int]] = {}  # sequence: the tokens after its root
    for turn in turns:
        found = kept.find([(layout, after(query)) for layout, query in turn])
        written: dict[int, list[int]] = {}
        for (layout, query), each in zip(turn, found, strict=True):
            assert (each is not None) == (layout is LAYOUT)
            if each is None:
                continue
            tokens = [*query, END]
            assert each.n_kept < len(tokens)
            assert [root.prefix for root in each.roots] == (list(LAYOUT.roots) if each.n_kept else [])
            for root in each.roots:
                assert (cells[root.seq] if have_states else cells[root.seq][: each.n_kept]) == tokens[: each.n_kept]
                assert root.n_cached == root.prefix.n_cached + each.n_kept
            left = each.slot_updates([{0: 7, 1: 8}])
            for leaf, seq, start, end in [cells for each in left[0] for cells in each.cells]:
                assert leaf == {3: 7, 5: 8}[start]
                assert seq not in written
                written[seq] = tokens[: end - start]
            done(left)
        if have_states:
            assert not {root.seq for each in found if each for root in each.roots} & set(written)
            states = [tuple(tokens) for seq, tokens in written.items() if seq % 2 == 0]
            assert len(set(states)) == len(states)
            cells.update(written)
            continue
        queries = {tuple(query) for layout, query in turn if layout is LAYOUT}
        assert len(written) == 2 * min(n_slots, len(queries))  # as many as there are slots, each query once
        cells.update(written)


def test_a_slot_counts_when_the_last_decode_of_its_query_is_made() -> None:
    kept = slots(1)
    ask(kept, [1, 1])
    (found,) = [each for each in kept.find([(LAYOUT, after([1, 1, 1]))]) if each]
    of_decodes = found.slot_updates([{0: 4}, {}, {0: 5, 1: 6}])
    assert [[each.cells for each in left] for left in of_decodes] == [
        [[(4, 100, 3, 7)]],
        [],
        [[(5, 100, 3, 7), (6, 101, 5, 9)]],
    ]
    done(of_decodes[:1])  # the second one fails
    assert [each.n_kept for each in ask(kept, [1, 1, 1])] == [0]
    done(of_decodes)
    assert [each.n_kept for each in ask(kept, [1, 1, 1])] == [3]


def test_where_states_are_kept() -> None:
    """Before the last word, which may be typed further; then after what two queries share. A slot that a query goes on
    from is the next to be written."""
    kept = slots(3, have_states=True)
    found = [
        (each.n_kept, each.n_to_keep)
        for query in ([1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 5], [1, 2, 4, 5], [1, 2, 4, 5], [1, 2], [7, 1], [8], [])
        for each in ask(kept, query)
    ]
    assert found == [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 0), (2, 0), (0, 1), (0, 1), (0, 0)]
