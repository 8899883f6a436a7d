"""`qcls-gguf label` on files of every format: a row for a row, equal to `classify`, and stopped runs that go on."""

import csv
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import invoked, printed, write_rows
from labelled_tables import CLOSE, CONFIG, HELD_OUT, QUERIES, check_like_classify, outputs, parquet, rows_of

from qcls_gguf import Classifier, ConfigError, Result, load_config
from qcls_gguf.config.schema import variant_of
from qcls_gguf.data.rows import Reading
from qcls_gguf.labelling import label_table
from qcls_gguf.labelling.answers import Answer, BatchLabeller, KeptAnswers
from qcls_gguf.labelling.output import OutputFolder
from qcls_gguf.labelling.records import LabellingRecord
from qcls_gguf.labelling.run import LabelSettings, label_files
from qcls_gguf.opening import ClassifierOpener, OnProgress

ODD = ["", " ", "x" * 9000, "red\ndress", 'a "quoted" one, with; all\t', "</s><|im_end|>"]


@pytest.fixture(scope="module")
def opener() -> Iterator[ClassifierOpener]:
    with ClassifierOpener() as opened:
        yield opened


Run = Callable[..., LabellingRecord]


@pytest.fixture
def run(opener: ClassifierOpener, notes: list[str]) -> Run:
    """Labels inputs into an output, with settings as keywords."""

    def label(
        *inputs: Path, out: Path, on_progress: OnProgress = lambda part, done, total: None, **options: Any
    ) -> LabellingRecord:
        chosen = {"config": load_config(CONFIG), "batch": 4, **options}
        settings = LabelSettings(inputs=tuple(map(str, inputs)), out=out, **chosen)
        opener.on_progress = on_progress
        return label_files(settings, opener, on_note=notes.append)

    return label


@pytest.fixture
def notes() -> list[str]:
    return []


def test_parquet_keeps_types_order_and_rows(run: Run, classifier: Classifier, tmp_path: Path) -> None:
    queries = [*QUERIES, None, *ODD, *QUERIES[:5]]
    record = run(parquet(tmp_path / "in.parquet", queries, row_group_size=16), out=tmp_path / "out", shard_rows=10)
    names = outputs(tmp_path / "out")
    assert names == [f"in-{number:05}.parquet" for number in range(5)]  # 16 rows are 10 and 6
    found = pa.concat_tables([pq.read_table(tmp_path / "out" / name) for name in names])
    assert (found.schema.field("id").type, found.schema.field("query").type) == (pa.int16(), pa.large_string())
    assert found.column("query").to_pylist() == queries
    check_like_classify(classifier, found.to_pylist())
    assert (record.n_rows, record.n_null, record.n_bad, record.n_shards) == (len(queries), 3, 1, 5)
    errors = {row["id"]: row["error"] for row in found.to_pylist() if row["error"]}
    assert (errors[30], errors[31]) == ("row 31: the query is null", "row 32: the query is blank")
    assert "32 for each of runtime.max_query_tokens" in errors[33]


def test_one_by_one_probabilities_are_those_of_classify(run: Run, classifier: Classifier, tmp_path: Path) -> None:
    run(parquet(tmp_path / "in.parquet", list(QUERIES)), out=tmp_path / "out.parquet", batch=1)
    for row in pq.read_table(tmp_path / "out.parquet").to_pylist():
        for answer in classifier.classify(row["query"]).results:
            assert row[f"{answer.prompt}_probability"] == answer.probability


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "txt"])
def test_text_comes_back_in_its_own_format(ending: str, run: Run, classifier: Classifier, tmp_path: Path) -> None:
    path = tmp_path / f"in.{ending}"
    queries = [*QUERIES[:6], "", "nul\x00l", QUERIES[0]]
    if ending == "jsonl":
        lines = [json.dumps({"n": 1.50, "query": query, "deep": {"a": [1, None]}}) for query in queries]
        path.write_text("\n".join([*lines, "{broken", "[1]", '{"query": "a", "query": "b"}']) + "\n", encoding="utf-8")
    elif ending == "txt":
        path.write_text("\r\n".join(queries), encoding="utf-16")
    else:
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file, delimiter="," if ending == "csv" else "\t")
            writer.writerows([["sku", "query"], *[[f"00{n}", query] for n, query in enumerate(queries)]])
            file.write('"not closed')
    out = tmp_path / "out"
    record = run(path, out=out, shard_rows=4)
    rows = [row for name in outputs(out) for row in rows_of(out / name)]
    if ending == "jsonl":
        assert '"n": 1.5, ' in (out / "in-00000.jsonl").read_text()
        assert rows[0]["deep"] == {"a": [1, None]}
        said = "line 10 is not valid JSON: ", "line 11 has no text 'query'", "line 12 has the key 'query' twice"
        assert all(row["error"].startswith(what) for row, what in zip(rows[-3:], said, strict=True))
        whole = "".join(map(Path.read_text, sorted(out.glob("*.jsonl"))))
        assert '{"query": "a", "query": "b", "category": null' in whole
    elif ending != "txt":
        assert [row["sku"] for row in rows[:9]] == [f"00{n}" for n in range(9)]
        assert rows[-1]["error"].startswith("line 11 is not valid CSV: ")
    labelled = rows[: len(queries)]
    assert [row["query"] for row in labelled] == queries
    check_like_classify(classifier, labelled, digits=6)
    assert (record.n_rows, record.n_null) == (len(rows), 1)


def test_scores_are_a_struct_of_every_label(run: Run, classifier: Classifier, tmp_path: Path) -> None:
    query = "red dress for girls"
    large = 2**60
    good = {"query": query, "n": 1, "long": 1, "mixed": 1, "list": [1]}
    null = {"query": None, "n": 2.5, "long": large, "mixed": "x"}
    write_rows(tmp_path / "in.jsonl", [good, null])
    run(tmp_path / "in.jsonl", out=tmp_path / "all.parquet", scores=True)
    table = pq.read_table(tmp_path / "all.parquet")
    texts = table.select(["n", "long", "mixed", "list"]).to_pydict()
    assert texts == {"n": ["1", "2.5"], "long": ["1", str(large)], "mixed": ["1", "x"], "list": ["[1]", None]}
    given = {score.label: score.probability for score in classifier.classify(query).results[0].scores}
    assert table.column("category_scores").to_pylist() == [pytest.approx(given, abs=CLOSE), None]
    run(tmp_path / "in.jsonl", out=tmp_path / "out.jsonl", scores=True, prefix="m_")
    first, second = rows_of(tmp_path / "out.jsonl")
    assert max(first["m_category_scores"].values()) == first["m_category_probability"]
    assert first["m_category"] == "dress"
    assert second["m_category_scores"] is None
    assert second["m_error"] == "line 2: the query is null"


def test_a_second_run_does_what_is_missing_and_says_so(run: Run, notes: list[str], tmp_path: Path) -> None:
    path, out = parquet(tmp_path / "in.parquet", QUERIES[:20]), tmp_path / "out"
    run(path, out=out, shard_rows=5)
    whole = {name: (out / name).read_bytes() for name in outputs(out)}
    (out / "in-00001.parquet").unlink()
    (out / "in-00002.parquet").write_bytes(b"half")
    log = (out / "done.jsonl").read_bytes().splitlines(keepends=True)
    (out / "done.jsonl").write_bytes(b"".join(log[:3]) + log[3][:40])  # a kill in the middle of a line
    (out / ".in-00003.parquet.1.part").write_bytes(b"left")
    record = run(path, out=out, shard_rows=5)
    assert "1 of 4 shards done already: labelling the other 3" in notes
    assert record.n_shards_before == 1
    assert {name: (out / name).read_bytes() for name in outputs(out)} == whole
    assert not list(out.glob(".*.part"))
    record = run(path, out=out, shard_rows=5)
    assert "4 of 4 shards done already: nothing is left to do" in notes
    assert record.speed.n_computed == 0
    more = parquet(tmp_path / "more.parquet", QUERIES[20:])
    assert run(path, more, out=out, shard_rows=5).n_shards_before == 4
    manifest = json.loads((out / "manifest.json").read_text())
    assert (len(manifest["inputs"]), manifest["settings"]["model_sha256"]) == (2, record.model.sha256)


def test_one_file_is_joined_in_the_end_and_not_again(run: Run, tmp_path: Path) -> None:
    path, out = parquet(tmp_path / "in.parquet", QUERIES[:12]), tmp_path / "out.csv"
    record = run(path, out=out, shard_rows=5)
    rows = rows_of(out)
    assert ([row["query"] for row in rows], record.n_bytes) == (QUERIES[:12], out.stat().st_size)
    assert sorted(tmp_path.iterdir()) == [path, out]
    with pytest.raises(ConfigError, match="is there already: name another output, or replace it with `overwrite`"):
        run(path, out=out, shard_rows=5)
    assert rows_of(out) == rows
    run(path, out=out, shard_rows=5, overwrite=True)
    assert rows_of(out) == rows


def test_an_output_that_cannot_be_written_is_told_before_anything_is_labelled(run: Run, tmp_path: Path) -> None:
    path = parquet(tmp_path / "in.parquet", QUERIES[:2])
    (tmp_path / "mine.csv").write_text("mine")
    os.mkfifo(tmp_path / "pipe.csv")
    for out, words in (
        (tmp_path / "mine.csv", r"mine\.csv: is there already: name another"),
        (tmp_path / "pipe.csv", r"pipe\.csv: is no plain file"),
        (Path("/dev/null"), r"`out` /dev/null: is no folder: name one, or a file that ends in \.par"),
        (Path("/proc/none"), "`out` /proc/none: cannot be written: No such file"),
        (tmp_path, "all inputs are in it"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(path, out=out)
    assert (tmp_path / "mine.csv").read_text() == "mine"
    with OutputFolder(tmp_path / "out", None), pytest.raises(ConfigError, match="another run is writing there"):
        run(path, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="has no column 'text'"):
        run(path, out=tmp_path / "new" / "out.csv", reading=Reading(query="text"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.parquet", "mine.csv", "pipe.csv"]


def test_an_interrupted_run_goes_on_with_its_own_settings(run: Run, notes: list[str], tmp_path: Path) -> None:
    path, out = parquet(tmp_path / "in.parquet", QUERIES[:12]), tmp_path / "out.jsonl"

    def interrupt(part: str, done: int, total: int) -> None:
        assert (part, total) == ("label", 12)
        if (tmp_path / "out.jsonl.shards" / "done.jsonl").read_text().count("\n") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, out=out, shard_rows=2, on_progress=interrupt)
    assert notes[-1].endswith(" of 12 rows are labelled, 2 of 6 shards done: repeat the same command to resume")
    said = r"2 shards of a run with other settings \(limit was not given, is 4\): keep these settings"
    with pytest.raises(ConfigError, match=said):
        run(path, out=out, shard_rows=2, limit=4)
    assert run(path, out=out, shard_rows=2).n_shards_before == 2
    assert [row["query"] for row in rows_of(out)] == QUERIES[:12]
    record = run(path, out=out, prefix="x_", overwrite=True)
    assert record.n_shards_before == 0
    assert "x_category" in rows_of(out)[0]


def test_a_stopped_run_goes_on_within_a_shard(run: Run, notes: list[str], tmp_path: Path) -> None:
    path, out = parquet(tmp_path / "in.parquet", [None, *QUERIES[:12], *QUERIES[:12]]), tmp_path / "out"

    def interrupt(part: str, done: int, total: int) -> None:
        if (part, done, total) == ("label", 12, 25):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, out=out, batch=2, on_progress=interrupt)
    assert notes[-1] == "12 of 25 rows are labelled, 0 of 1 shard done: repeat the same command to resume"
    assert list(out.glob(".*.answers"))
    record = run(path, out=out, batch=2)
    assert f"{path}: resumes after 12 of 25 rows" in notes
    assert (record.n_found, record.speed.n_computed) == (6, 6)
    run(path, out=tmp_path / "whole", batch=2)
    assert rows_of(out / "in-00000.parquet") == rows_of(tmp_path / "whole" / "in-00000.parquet")
    assert not list(out.glob(".*.answers*"))


def test_kept_answers_that_are_not_whole_or_of_other_queries_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    answers = {place: Answer(np.array([0.25, 0.5, place]), [place == 1], is_cut=place == 2) for place in range(4)}
    with KeptAnswers(path, b"these queries") as kept:
        kept.add(answers)
    content = bytearray(path.read_bytes())
    content[len(content) // 4 + 2] ^= 1
    path.write_bytes(content[:-1])
    with KeptAnswers(path, b"these queries") as kept:
        assert sorted(kept.known) == [0, 2]
        kept.add({3: answers[3]})
    with KeptAnswers(path, b"these queries") as kept:
        for place in (0, 2, 3):
            found, answer = kept.known[place], answers[place]
            assert (found.abstained, found.is_cut) == (answer.abstained, answer.is_cut)
            np.testing.assert_array_equal(found.probabilities, answer.probabilities)
    with KeptAnswers(path, b"other queries") as kept:
        assert not kept.known
    assert not path.read_bytes()


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl"])
def test_halves_of_pairs_in_json_are_one_bad_row_and_escapes_elsewhere(ending: str, run: Run, tmp_path: Path) -> None:
    lines = ['{"query": "red dress", "a": "\\ud800x", "\\udc80": 1}', '{"query": "\\ud800", "a": ["\\udfff"]}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    record = run(tmp_path / "in.jsonl", out=tmp_path / f"out.{ending}")
    first, second = rows_of(tmp_path / f"out.{ending}")
    assert (record.n_labelled, record.n_bad, first["category"]) == (1, 1, "dress")
    assert first["a"] == ("\ud800x" if ending == "jsonl" else "\\ud800x")
    assert second["error"] == "line 2: the query is not valid UTF-8"


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_lines_none_of_which_is_an_object_are_bad_rows(ending: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{broken\n[1]\n")
    record = run(tmp_path / "in.jsonl", out=tmp_path / f"out.{ending}")
    assert (record.n_rows, record.n_bad) == (2, 2)
    errors = [row["error"] for row in rows_of(tmp_path / f"out.{ending}")]
    assert [error[:7] for error in errors] == ["line 1 ", "line 2 "]


def test_an_input_that_changed_is_refused(run: Run, tmp_path: Path) -> None:
    first, second = parquet(tmp_path / "a.parquet", QUERIES[:6]), parquet(tmp_path / "b.parquet", QUERIES[6:9])
    out = tmp_path / "out"
    run(first, second, out=out, shard_rows=2)
    assert run(first, second, out=out, shard_rows=2).n_shards_before == 5
    parquet(first, QUERIES[:3])
    with pytest.raises(ConfigError, match=r"a\.parquet: was changed since its .* `overwrite`"):
        run(first, second, out=out, shard_rows=2)
    assert len(outputs(out)) == 5
    assert run(first, second, out=out, shard_rows=2, overwrite=True).n_shards_before == 0
    assert outputs(out) == ["a-00000.parquet", "a-00001.parquet", "b-00000.parquet", "b-00001.parquet"]


def test_equal_queries_are_computed_once_in_a_run(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    queries = [*QUERIES[:4], *QUERIES[:4], "Red Dress", "red dress ", "red dress"]
    path = parquet(tmp_path / "in.parquet", queries)
    record = run(path, out=tmp_path / "one", shard_rows=20)
    assert (record.n_distinct, record.speed.n_computed) == (7, 7)  # whoever writes another case asks another query
    record = run(path, out=tmp_path / "two", shard_rows=4)
    assert (record.n_distinct, record.n_found, record.speed.n_computed) == (11, 4, 7)
    first, second = (rows_of(tmp_path / "two" / f"in-0000{n}.parquet") for n in range(2))
    for row, again in zip(first, second, strict=True):
        assert again == row | {"id": again["id"]}
    monkeypatch.setattr("qcls_gguf.labelling.run._KNOWN_BYTES", 0)
    assert run(path, out=tmp_path / "three", shard_rows=4).speed.n_computed == 11


def test_a_limit_is_of_all_inputs_and_parts_are_all_shards_together(run: Run, tmp_path: Path) -> None:
    one, two = parquet(tmp_path / "a.parquet", QUERIES[:10]), parquet(tmp_path / "b.parquet", QUERIES[10:20])

    def labelled(name: str, **options: Any) -> list[str]:
        run(one, two, out=tmp_path / name, **options)
        return [row["query"] for row in rows_of(tmp_path / name)]

    assert labelled("first.jsonl", limit=13, shard_rows=4) == QUERIES[:13]
    assert labelled("second.csv", part=(2, 2), shard_rows=4) == [*QUERIES[4:8], *QUERIES[10:14], *QUERIES[18:20]]
    for k in (1, 2, 3):
        run(one, two, out=tmp_path / f"part {k}", part=(k, 3), shard_rows=4)
    run(one, two, out=tmp_path / "all", shard_rows=4)
    parts = {name: tmp_path / f"part {k}" / name for k in (1, 2, 3) for name in outputs(tmp_path / f"part {k}")}
    assert sorted(parts) == outputs(tmp_path / "all")
    for name, path in parts.items():
        assert rows_of(path) == rows_of(tmp_path / "all" / name)
    with pytest.raises(ConfigError, match="part was 3/3, is 2/3"):
        run(one, two, out=tmp_path / "part 3", part=(2, 3), shard_rows=4)
    with pytest.raises(ConfigError, match="`part` 7/9: the inputs have 6 shards only: lower `shard_rows`"):
        run(one, two, out=tmp_path / "none", part=(7, 9), shard_rows=4)


def test_a_table_in_memory_is_labelled_chunk_by_chunk(classifier: Classifier) -> None:
    chunks = pa.chunked_array([["red dress", None], ["blue jeans", "red dress"]])
    found = label_table(pa.table({"query": chunks}), classifier)
    assert found.column("category").to_pylist() == ["dress", None, "jeans", "dress"]
    assert found.column("category").num_chunks == 2
    assert found.column("error").to_pylist()[1] == "row 2: the query is null"
    reader = pa.table({"query": chunks}).to_reader()
    streamed = label_table(reader, classifier, prefix="p_")
    assert isinstance(streamed, pa.RecordBatchReader)
    assert streamed.read_all().column("p_audience").to_pylist() == found.column("audience").to_pylist()
    empty = label_table(pa.table({"query": pa.array([], pa.string())}), classifier)
    assert (empty.num_rows, empty.column_names) == (0, found.column_names)
    with pytest.raises(ConfigError, match="has a column 'category' already"):
        label_table(found.drop_columns(["error"]), classifier)
    with pytest.raises(ConfigError, match="column 'query' is given twice: name each column"):
        label_table(pa.table([["x"], ["y"]], names=["query", "query"]), classifier)


# `qcls-gguf label` as a command, and its batches of queries in few shapes.


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
    line = ["label", path, "--out", out, *f"-c {CONFIG} --threads 1 --batch 2 --quiet --format json".split()]
    chosen = ["--limit", 3, "--prefix", "m_", "--scores", "--output-format", "jsonl"]
    chosen += ["--part", "1/2", "--shard-rows", 3]

    def label(*more: object) -> LabellingRecord:
        return LabellingRecord.model_validate_json(printed(*line, *more))

    record = label(*chosen)
    assert (record.n_rows, record.speed.batch, record.speed.n_computed) == (3, 2, 2)
    rows = rows_of(out / "in-00000.jsonl")
    assert [row["m_category"] for row in rows] == ["dress", "jeans", "dress"]
    assert ({len(row["m_category_scores"]) for row in rows}, label("--overwrite").n_rows) == ({10}, 4)


SIZE = 4
LONG = [" ".join(["wool coat"] * n) for n in (30, 60, 100)]
"""of which several do not fit one decode"""


@pytest.fixture(scope="module")
def batching() -> Iterator[Classifier]:
    with Classifier.from_config(variant_of(load_config(CONFIG), max_batch=SIZE)) as opened:
        yield opened


def label(batching: Classifier, queries: list[str]) -> tuple[list[Result], int, float]:
    """The results in the order of the queries, the number of decodes, and which part of these found its graph."""
    before = batching.engine.context.counters().n_graphs_reused
    made = list(BatchLabeller(batching, SIZE).label(queries))
    found = {place: result for batch in made for place, result in batch if isinstance(result, Result)}
    n_reused = batching.engine.context.counters().n_graphs_reused - before
    return [found[place] for place in range(len(queries))], len(made), n_reused / len(made)


def test_few_shapes_come_and_nothing_else_changes(batching: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, n_plain, reused_plain = label(batching, HELD_OUT[:60])
    monkeypatch.setattr("qcls_gguf.labelling.answers.pays_to_pad", lambda handle: True)
    filled, n_filled, reused = label(batching, HELD_OUT[:60])
    assert n_plain == n_filled
    assert reused > 0.6 > 0.4 > reused_plain
    for query, one, other in zip(HELD_OUT[:60], plain, filled, strict=True):
        assert other.counts.n_tokens_new % 8 == 0
        for ours, filled_up in zip(one.results, other.results, strict=True):
            assert ours.label == filled_up.label, query
            assert abs(ours.probability - filled_up.probability) < CLOSE


def test_queries_too_long_for_one_decode_go_by_halves(batching: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcls_gguf.labelling.answers.pays_to_pad", lambda handle: True)
    queries = [f"{text} {n}" for n in range(3) for text in LONG]
    answers, n_decodes, _ = label(batching, queries)
    assert n_decodes > len(queries) / SIZE
    for query, answer in zip(queries, answers, strict=True):
        assert answer.labels == batching.classify(query).labels
        assert answer.counts.n_queries in (4, 2, 1)
        assert answer.counts.n_tokens_new <= batching.engine.capacity.n_tokens
