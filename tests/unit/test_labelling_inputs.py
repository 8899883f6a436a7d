"""Inputs of `label`: which files they are, what is wrong with them, and how they are cut into shards."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qcls_gguf.data.lines import REMEDY
from qcls_gguf.data.rows import Reading
from qcls_gguf.errors import ConfigError
from qcls_gguf.labelling.blocks import Block, distinct_queries, read_block
from qcls_gguf.labelling.inputs import Input, find_inputs, read_input
from qcls_gguf.labelling.output import OutputFolder
from qcls_gguf.labelling.values import texts_of


def plan(path: Path, n: int = 3, *, column: str | None = None) -> Input:
    return read_input(path, Reading(query=column), n)


def blocks(planned: Input, column: str | None = None) -> list[Block]:
    return [read_block(planned, shard, Reading(query=column), ()) for shard in planned.shards]


def queries(planned: Input, column: str | None = None) -> list[str | None]:
    """Row by row its query, or the reason why it has none."""
    found: list[str | None] = []
    for block in blocks(planned, column):
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("*.parquet", "no such file"),
        ("empty", "the folder has no file that ends in .parquet, .csv"),
        ("a.csv.zip", "is packed: unpack it"),
        ("pipe", "is no plain file"),
    ],
)
def test_what_is_no_input_is_refused(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv.zip").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=words) as refused:
        find_inputs([str(tmp_path / name)])
    assert name in str(refused.value)


def test_parquet_that_breaks_off_is_told_with_its_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"query": [f"{n} dress" for n in range(1000)]}), path, row_group_size=500)
    planned = plan(path, 500)
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 3] = b"\xff" * (len(content) // 3 - 4)
    path.write_bytes(bytes(content))
    with pytest.raises(ConfigError, match=r"a\.parquet: row group 0 cannot be read"):
        blocks(planned)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_shards_of_lines_begin_where_the_one_before_ended(encoding: str, line_break: str, tmp_path: Path) -> None:
    lines = ["red dress", "孕妇 jeans 👗", "", "a", "wool\tcoat", "ünïcode", "last one"]
    path = tmp_path / "a.txt"
    path.write_bytes(line_break.join(lines).encode(encoding))
    planned = plan(path)
    assert [(shard.first_row, shard.n_rows) for shard in planned.shards] == [(0, 3), (3, 3), (6, 1)]
    assert queries(planned) == [line or "line 3: the query is blank" for line in lines]


def test_shards_of_csv_count_lines_inside_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'\xef\xbb\xbfn;query\r\n1;"red\r\ndress"\r\n2;b\r\n\r\n3;"c"x"\r\n4;d;e\r\n5;f\xff\r\n6;"g\n\n"\r\n7;h'
    )
    planned = plan(path, 2)
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
    assert [list(row) for block in blocks(planned) for row in block.values()][5] == ["5", "f\\xff"]


def test_a_query_of_ten_megabytes_is_one_row(tmp_path: Path) -> None:
    long = "x" * (10 << 20)
    (tmp_path / "a.txt").write_text(f"a\n{long}\nb\n")
    assert [len(each or "") for each in queries(plan(tmp_path / "a.txt"))] == [1, len(long), 1]
    (tmp_path / "b.txt").write_text(f"a\n{long}{long}\nb\n")
    assert queries(plan(tmp_path / "b.txt"))[1:] == [
        "line 2 has more than 16777216 bytes: give shorter queries, one a line",
        "b",
    ]


def test_any_type_of_text_has_queries(tmp_path: Path) -> None:
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        texts = texts_of(pa.chunked_array([pa.array(["a", None, "a", "b"]).cast(kind)]))
        assert distinct_queries(texts, "row", range(1, 9)).index.tolist() == [0, -1, 0, 1]
    assert texts_of(pa.nulls(2)) == [None, None]
    bad = pa.array([b"red", b"\xff\xfe", None, b"red"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"query": bad}), tmp_path / "a.parquet")
    wrong = ["row 2: the query is not valid UTF-8", "row 3: the query is null"]
    assert queries(plan(tmp_path / "a.parquet", 9)) == ["red", *wrong, "red"]


def test_empty_files_have_one_shard_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"query": pa.array([], pa.string())}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("query\n")
    (tmp_path / "c.txt").touch()
    for name in ("a.parquet", "b.csv", "c.txt"):
        planned = plan(tmp_path / name)
        assert [shard.n_rows for shard in planned.shards] == [0]
        assert queries(planned) == []


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n")
    planned = plan(path)
    planned.check_unchanged()
    planned.model_copy(update={"stamp": ("/of/another/machine", *planned.stamp[1:])}).check_unchanged()
    path.write_text("a\nbc\n")
    with pytest.raises(ConfigError, match=r"was changed while it was labelled \(4 bytes before, 5 now\)"):
        planned.check_unchanged()
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        planned.check_unchanged()


def test_a_folder_of_others_is_not_written_to(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path, None)
    done = tmp_path / "done.jsonl"
    done.touch()  # as of a run on a full disk, which still takes the empty list of shards: it can be started again
    with folder:
        pass
    done.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"has files and no manifest\.json, such as done\.jsonl"), folder:
        pass
    done.rename(tmp_path / "manifest.json")
    with pytest.raises(ConfigError, match="is damaged"), folder:
        pass
