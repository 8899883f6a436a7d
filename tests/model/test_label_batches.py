"""Batches of queries in few shapes: the answers of `classify`, and graphs that serve many of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from labelled_tables import CLOSE, CONFIG

from qcls_gguf import Classifier, Result, load_config
from qcls_gguf.labelling import batches
from qcls_gguf.labelling.batches import BatchLabeller, measure_batches, with_room

SIZE = 4
HELDOUT = Path(__file__).parents[2] / "models" / "tiny" / "heldout.jsonl"
QUERIES = [json.loads(line)["query"] for line in HELDOUT.read_text(encoding="utf-8").splitlines()[:60]]
LONG = [" ".join(["wool coat"] * n) for n in (30, 60, 100)]
"""of which several do not fit one decode"""


@pytest.fixture(scope="module")
def classifier() -> Iterator[Classifier]:
    with Classifier.from_config(with_room(load_config(CONFIG), SIZE)) as opened:
        yield opened


def label(classifier: Classifier, queries: list[str], *, padded: bool) -> tuple[list[Result], int, float]:
    """The results in the order of the queries, the number of decodes, and which part of these found its graph."""
    before = classifier.engine.context.counters().n_graphs_reused
    made = list(BatchLabeller(classifier.configured, SIZE, padded=padded).label(queries))
    found = {place: result for batch in made for place, result in batch if isinstance(result, Result)}
    n_reused = classifier.engine.context.counters().n_graphs_reused - before
    return [found[place] for place in range(len(queries))], len(made), n_reused / len(made)


def test_few_shapes_come_again_and_nothing_else_changes(classifier: Classifier) -> None:
    plain, n_plain, reused_plain = label(classifier, QUERIES, padded=False)
    filled, n_filled, reused = label(classifier, QUERIES, padded=True)
    assert n_plain == n_filled
    assert reused > 0.6 > 0.4 > reused_plain
    for query, one, other in zip(QUERIES, plain, filled, strict=True):
        assert other.counts.n_tokens_new % 8 == 0
        for ours, filled_up in zip(one.results, other.results, strict=True):
            assert ours.label == filled_up.label, query
            assert abs(ours.probability - filled_up.probability) < CLOSE


def test_queries_too_long_for_one_decode_go_by_halves(classifier: Classifier) -> None:
    queries = [f"{text} {n}" for n in range(3) for text in LONG]
    answers, n_decodes, _ = label(classifier, queries, padded=True)
    assert n_decodes > len(queries) / SIZE
    for query, answer in zip(queries, answers, strict=True):
        assert answer.labels == classifier.classify(query).labels
        assert answer.counts.n_queries in (4, 2, 1)
        assert answer.counts.n_tokens_new <= classifier.engine.capacity.n_tokens


def test_only_decodes_of_known_shapes_are_timed_where_graphs_are_captured(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = measure_batches(classifier.configured, QUERIES[:8], SIZE)
    monkeypatch.setattr(batches, "pays_to_pad", lambda prompts: True)
    counters = classifier.engine.context.counters()
    found = measure_batches(classifier.configured, QUERIES[:8], SIZE)
    assert [each.size for each in found] == [each.size for each in before] == [1, 2, 4]
    assert all(each.n_tokens % 8 == 0 for each in found if each.size > 1)
    timed = sum(each.n_queries // each.size for each in found)
    assert classifier.engine.context.counters().n_graphs_reused - counters.n_graphs_reused >= timed
