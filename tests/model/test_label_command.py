"""`qcls-gguf label` as a command, and its batches of queries in few shapes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import invoked, printed
from labelled_tables import CLOSE, CONFIG, HELD_OUT, QUERIES, parquet, rows_of

from qcls_gguf import Classifier, Result, load_config
from qcls_gguf.config.schema import variant_of
from qcls_gguf.labelling.answers import BatchLabeller
from qcls_gguf.labelling.records import LabellingRecord


def test_the_command_prints_a_summary_and_writes_a_page(tmp_path: Path) -> None:
    path = parquet(tmp_path / "in.parquet", list(QUERIES[:12]))
    line = ["label", path, "--out", tmp_path / "out", "--config", CONFIG, "--threads", 1]
    said = printed(*line, "--format", "json", "--html", tmp_path / "look.html")
    record = LabellingRecord.model_validate_json(said)
    assert record.speed.batch == 8
    assert '<th class="text">label</th>' in (tmp_path / "look.html").read_text()
    done = invoked(*line)
    assert "1 of 1 shard done already" in done.stderr
    assert "12 labelled" in done.stdout


def test_the_commands_options_reach_the_run(tmp_path: Path) -> None:
    path, out = tmp_path / "in.csv", tmp_path / "out"
    path.write_text("query\nred dress\nblue jeans\nred dress\nwool coat\n")
    line = ["label", path, "--out", out, "--config", CONFIG, "--threads", 1, "--batch", 2, "--quiet"]
    line += ["--format", "json"]
    chosen = ["--limit", 3, "--prefix", "m_", "--scores", "--output-format", "jsonl"]
    chosen += ["--part", "1/2", "--shard-rows", 3]

    def label(*more: object) -> LabellingRecord:
        return LabellingRecord.model_validate_json(printed(*line, *more))

    record = label(*chosen)
    assert (record.n_rows, record.speed.batch, record.speed.n_computed) == (3, 2, 2)
    rows = rows_of(out / "in-00000.jsonl")
    assert [row["m_category"] for row in rows] == ["dress", "jeans", "dress"]
    assert {len(row["m_category_scores"]) for row in rows} == {10}
    assert label("--overwrite").n_rows == 4


SIZE = 4
LONG = [" ".join(["wool coat"] * n) for n in (30, 60, 100)]
"""of which several do not fit one decode"""


@pytest.fixture(scope="module")
def classifier() -> Iterator[Classifier]:
    with Classifier.from_config(variant_of(load_config(CONFIG), max_batch=SIZE)) as opened:
        yield opened


def label(classifier: Classifier, queries: list[str]) -> tuple[list[Result], int, float]:
    """The results in the order of the queries, the number of decodes, and which part of these found its graph."""
    before = classifier.engine.context.counters().n_graphs_reused
    made = list(BatchLabeller(classifier, SIZE).label(queries))
    found = {place: result for batch in made for place, result in batch if isinstance(result, Result)}
    n_reused = classifier.engine.context.counters().n_graphs_reused - before
    return [found[place] for place in range(len(queries))], len(made), n_reused / len(made)


def test_few_shapes_come_again_and_nothing_else_changes(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, n_plain, reused_plain = label(classifier, HELD_OUT[:60])
    monkeypatch.setattr("qcls_gguf.labelling.answers.pays_to_pad", lambda handle: True)
    filled, n_filled, reused = label(classifier, HELD_OUT[:60])
    assert n_plain == n_filled
    assert reused > 0.6 > 0.4 > reused_plain
    for query, one, other in zip(HELD_OUT[:60], plain, filled, strict=True):
        assert other.counts.n_tokens_new % 8 == 0
        for ours, filled_up in zip(one.results, other.results, strict=True):
            assert ours.label == filled_up.label, query
            assert abs(ours.probability - filled_up.probability) < CLOSE


def test_queries_too_long_for_one_decode_go_by_halves(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcls_gguf.labelling.answers.pays_to_pad", lambda handle: True)
    queries = [f"{text} {n}" for n in range(3) for text in LONG]
    answers, n_decodes, _ = label(classifier, queries)
    assert n_decodes > len(queries) / SIZE
    for query, answer in zip(queries, answers, strict=True):
        assert answer.labels == classifier.classify(query).labels
        assert answer.counts.n_queries in (4, 2, 1)
        assert answer.counts.n_tokens_new <= classifier.engine.capacity.n_tokens
