"""Inputs of `label`: which files they are, what is wrong with them, and how they are cut into shards."""

import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import cases, written

from qcls_gguf.data.lines import REMEDY
from qcls_gguf.data.rows import Reading
from qcls_gguf.errors import ConfigError
from qcls_gguf.labelling.arrow import reader_of
from qcls_gguf.labelling.blocks import Block, column_at, distinct_queries, read_block, rows_of
from qcls_gguf.labelling.inputs import Input, find_inputs, read_input, texts_of
from qcls_gguf.labelling.output import OutputFolder


def plan(path: Path, n: int = 3) -> Input:
    return read_input(path, Reading(), n)


def blocks(planned: Input) -> list[Block]:
    return [read_block(planned, shard, Reading(), ()) for shard in planned.shards]


def queries(planned: Input) -> list[str | None]:
    """Row by row its query, or the reason why it has none."""
    found: list[str | None] = []
    for block in blocks(planned):
        own = block.queries
        found += [own.texts[at] if at >= 0 else own.reasons[row] for row, at in enumerate(own.index.tolist())]
    return found


def test_inputs_are_files_patterns_and_folders_each_once(tmp_path: Path) -> None:
    for name in ("b.csv", "a.parquet", "sub/c.jsonl", "sub/.hidden.csv", "notes.md", "d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [path.name for path in find_inputs([str(tmp_path), str(tmp_path / "*.csv"), str(tmp_path / "notes.md")])]
    assert names == ["a.parquet", "b.csv", "d.txt", "c.jsonl", "notes.md"]
    assert [path.name for path in find_inputs([str(tmp_path / "**/*.jsonl")])] == ["c.jsonl"]


@cases(
    ("*.parquet", "no such file"),
    ("empty", "the folder has no file that ends in .parquet, .csv"),
    ("pipe", "is no plain file"),
)
def test_what_is_no_input_is_refused(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=words) as refused:
        find_inputs([str(tmp_path / name)])
    assert name in str(refused.value)


def test_parquet_that_breaks_off_is_told_with_its_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"query": [f"{n} dress" for n in range(1000)]}), path, row_group_size=500)
    planned = plan(path, 500)
    content, n = path.read_bytes(), path.stat().st_size // 3
    path.write_bytes(content[:4] + b"\xff" * (n - 4) + content[n:])
    with pytest.raises(ConfigError, match=r"a\.parquet: row group 0 cannot be read"):
        blocks(planned)


def test_shards_of_csv_count_lines_inside_quotes(tmp_path: Path) -> None:
    rows = b'1;"red\r\ndress"\r\n2;b\r\n\r\n3;"c"x"\r\n4;d;e\r\n5;f\xff\r\n6;"g\n\n"\r\n7;h'
    planned = plan(written(tmp_path / "a.csv", b"\xef\xbb\xbfn;query\r\n" + rows), 2)
    assert queries(planned) == [
        "red\r\ndress",
        "b",
        "line 5: the query is blank",
        "line 6 is not valid CSV: ';' expected after '\"': double the quotes that are part of a quoted field",
        "line 7 has 3 fields, the header 2: quote those with a ';'",
        f"line 8 is not valid UTF-8 at byte 3: {REMEDY}",
        "g\n\n",
        "h",
    ]
    assert [list(row) for block in blocks(planned) for row in rows_of(block.table)][5] == ["5", "f\\xff"]


def test_a_query_of_ten_megabytes_is_one_row(tmp_path: Path) -> None:
    long = "x" * (10 << 20)
    assert queries(plan(written(tmp_path / "a.txt", f"a\n{long}\nb\n"))) == ["a", long, "b"]
    too_long = "line 2 has more than 16777216 bytes: give shorter queries, one a line"
    assert queries(plan(written(tmp_path / "b.txt", f"a\n{long}{long}\nb\n"))) == ["a", too_long, "b"]


TEXTS = ["red", None, "red", "blue"]
TYPES = [pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]
ENCODED = [pa.dictionary(pa.int32(), kind) for kind in (pa.string(), pa.large_string(), pa.large_binary())]


def texts_read(given: Any, column: str = "query") -> list[str | None]:
    return texts_of(column_at(reader_of(given, column).read_all(), column))


@pytest.mark.parametrize("kind", [*TYPES, *ENCODED], ids=str)
def test_any_type_of_text_has_queries(kind: pa.DataType) -> None:
    chunk = pa.array(TEXTS, kind) if kind in TYPES else pa.array(TEXTS, kind.value_type).dictionary_encode()
    column = pa.chunked_array([chunk, chunk])
    assert distinct_queries(texts_of(column), "row", range(1, 9)).index.tolist() == [0, -1, 0, 1] * 2
    assert texts_read(pa.table({"query": column})) == TEXTS * 2


def test_bytes_that_are_no_text_are_told_row_by_row(tmp_path: Path) -> None:
    assert texts_of(pa.nulls(2)) == [None, None]
    bad = pa.array([b"red", b"\xff\xfe", None, b"red"], pa.binary())
    for column in (bad, bad.view(pa.string()), bad.dictionary_encode()):
        pq.write_table(pa.table({"query": column}), tmp_path / "a.parquet")
        wrong = ["row 2: the query is not valid UTF-8", "row 3: the query is null"]
        assert queries(plan(tmp_path / "a.parquet", 9)) == ["red", *wrong, "red"]


PANDAS = pd.Series(["red", None], name="x", index=[4, 7])
TABLES: dict[str, Callable[[], Any]] = {
    "categorical": lambda: pl.DataFrame({"query": pl.Series(["red", None], dtype=pl.Categorical)}),
    "enum": lambda: pl.DataFrame({"query": pl.Series(["red", None], dtype=pl.Enum(["red"]))}),
    "series of polars": lambda: pl.Series("x", ["red", None]),
    "lazy frame": lambda: pl.LazyFrame({"query": ["red", None]}),
    "bytes of polars": lambda: pl.DataFrame({"query": [b"red", None]}),
    "series of pandas": lambda: PANDAS,
    "category of pandas": lambda: pd.DataFrame({"query": PANDAS.astype("category")}),
    "string of pandas": lambda: pd.DataFrame({"query": PANDAS.astype("string")}),
    "objects of pandas": lambda: pd.DataFrame({"query": pd.Series(["red", float("nan")], dtype=object)}),
    "dictionaries": lambda: [{"query": "red"}, {"n": 1}],
    "texts": lambda: ["red", None],
    "numpy": lambda: np.array(["red", None], dtype=object),
    "columns": lambda: {"query": ["red", None]},
    "array": lambda: pa.array([b"red", None], pa.large_binary()),
    "duckdb": lambda: duckdb.sql("SELECT unnest(['red', NULL]) AS query"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_in_memory_have_queries(name: str) -> None:
    assert texts_read(TABLES[name]()) == ["red", None]


def test_what_pandas_makes_of_no_text_at_all_is_null_and_its_index_stays() -> None:
    assert texts_read(pd.DataFrame({"query": []})) == []
    for values in ([float("nan")] * 2, [pd.NaT] * 2, pd.array([None] * 2, dtype="Int64"), [None] * 2):
        assert texts_read(pd.DataFrame({"query": values})) == [None, None]
    assert texts_read(pl.DataFrame({"data": [{"text": "red"}]}), "data.text") == ["red"]
    assert reader_of(PANDAS, "query").read_all().to_pandas().index.tolist() == [4, 7]


@cases(
    (lambda: pd.DataFrame({"query": [1]}), "column 'query' is int64, not text"),
    (lambda: pl.DataFrame({"query": [date.today()]}), "column 'query' is date32"),
    (lambda: pd.DataFrame({"query": ["red", 501, None]}), "column 'query' has 501 in row 2, .*; a column has one type"),
    (lambda: pd.Series(["red", 501, None]), "column 'query' has 501 in row 2"),
    (lambda: pd.DataFrame({"query": ["a", "b"], "sku": [1, "x"]}), "Could not convert 'x' .* column sku"),
    (lambda: [{"query": "red"}, {"query": 5}], "column 'query' has 5 in row 2"),
    (lambda: pd.DataFrame([["a", "b"]], columns=["query", "query"]), "Duplicate column names"),
    (lambda: pl.DataFrame({"o": pl.Series([object()], dtype=pl.Object)}), "did not recognize Python value type"),
    (lambda: pd.DataFrame({"query": ["a", "b"]}, index=["x", 1]), "got a 'int' object"),
    (lambda: pd.DataFrame({"query": ["a", "b"], "o": [np.ones(2), np.ones((1, 2))]}), "column o"),
    (lambda: "red dress", "is text: give an Arrow table, a frame of pandas or Polars, or a list of dict"),
    (lambda: {"query": "red dress"}, "is a mapping: give an Arrow table"),
    (lambda: (text for text in "ab"), "cannot be read: .*: give an Arrow table"),
    (lambda: None, "cannot be read: .*: give an Arrow table"),
    (lambda: np.array([["a"]]), "only handle 1-dimensional arrays"),
)
def test_what_is_no_table_in_memory_is_told(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        texts_read(make())


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_folders_of_partitions_are_columns(ending: str, tmp_path: Path) -> None:
    folder = tmp_path / "rows" / "country=d%2Fe" / "year=__HIVE_DEFAULT_PARTITION__"
    folder.mkdir(parents=True)
    if ending == "parquet":
        pq.write_table(pa.table({"query": ["red dress"], "n": [1]}), folder / "part-0.parquet")
    else:
        (folder / f"part-0.{ending}").write_text("query\nred\n" if ending == "csv" else '{"query": "red"}')
    (found,) = find_inputs([str(tmp_path / "rows")])
    assert read_input(found, Reading(), 5).partition == {"country": "d/e", "year": None}
    pq.write_table(pa.table({"query": ["red dress"], "year": [2023]}), found.with_name("own.parquet"))
    assert list(read_input(found.with_name("own.parquet"), Reading(), 5).partition) == ["country"]


def test_empty_files_have_one_shard_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"query": pa.array([], pa.string())}), tmp_path / "a.parquet")
    for path in (tmp_path / "a.parquet", written(tmp_path / "b.csv", "query\n"), written(tmp_path / "c.txt", "")):
        planned = plan(path)
        assert ([shard.n_rows for shard in planned.shards], queries(planned)) == ([0], [])


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "a\nb\n")
    planned = plan(path)
    planned.check_unchanged()
    path.write_text("a\nbc\n")
    with pytest.raises(ConfigError, match=r"was changed since its shards were found \(4 bytes then, 5 now\)"):
        planned.check_unchanged()
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        planned.check_unchanged()


def test_a_folder_of_others_is_not_written_to(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path, None)
    done = written(tmp_path / "done.jsonl", "{}\n")
    with pytest.raises(ConfigError, match=r"has files and no manifest\.json, such as done\.jsonl"), folder:
        pass
    done.rename(tmp_path / "manifest.json")
    with pytest.raises(ConfigError, match="is damaged"), folder:
        pass
