"""Reading queries and labelled rows: lines, JSON lines and tables as people save them, and what is wrong with them."""

import csv
import gzip
import io
import json
import re
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import cases, written
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.data.labelled import BadRow, LabelledColumns, LabelledData, LabelledQuery, read_labelled
from qcls_gguf.data.rows import Reading, Row, all_queries, check_queries, open_rows, read_queries
from qcls_gguf.errors import ConfigError


def read(folder: Path, data: bytes, *, blank: bool = False) -> list[Row]:
    return list(read_queries(str(written(folder / "queries.txt", data)), blank=blank))


@cases(
    (b"one\ntwo \r\n\n  \n\xe4\xb8\x89", [("one", 1), ("two ", 2), ("三", 5)]),
    (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", [("one", 1), ("\ufefftwo", 2)]),
    ("a\u2028b\x0bc\x00d\n".encode(), [("a\u2028b\x0bc\x00d", 1)]),
)
def test_lines_without_breaks_and_no_blank_ones(data: bytes, found: list[tuple[str, int]], tmp_path: Path) -> None:
    assert [(row.text, row.number) for row in read(tmp_path, data)] == found


def test_invalid_text_is_reported_with_its_place_and_the_rest_follows(tmp_path: Path) -> None:
    rows = read(tmp_path, b"one\nab\xff\n \ntwo", blank=True)
    assert [(row.text, row.number, row.is_blank) for row in rows] == [
        *(("one", 1, False), ("ab\\xff", 2, False), (" ", 3, True), ("two", 4, False))
    ]
    halves = read(tmp_path, b"\xff\xfe" + "one\nx".encode("utf-16-le") + b"\x00\xd8\n\x00t\x00")
    assert [halves[0].text, halves[2].text] == ["one", "t"]
    for row, words in ((rows[1], "line 2 is not valid UTF-8 at byte 2"), (halves[1], "line 2 is not valid UTF-8")):
        assert words in (row.error or "")
    with pytest.raises(ConfigError, match="begins as UTF-16-LE and is not"):
        read(tmp_path, b"\xff\xfeo")


@cases(
    ("missing.txt", "no such file"),
    ("", "cannot be read: Is a directory"),
    ("a.json", "is one JSON document: write an object a line, in a file named .jsonl"),
)
def test_what_has_no_rows_is_refused_before_and_while_reading(name: str, words: str, tmp_path: Path) -> None:
    written(tmp_path / "a.json", '[{"query": "red dress"}]\n')
    for read_ in (check_queries, all_queries):
        with pytest.raises(ConfigError, match=words):
            read_(str(tmp_path / name))
    check_queries("-")


@pytest.mark.parametrize("delimiter", [",", ";", "|"])
def test_a_space_after_every_delimiter_is_no_part_of_a_field(delimiter: str, tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv", 'id, query\n1, "red, dress"\n2, blue\n3,"a\nb"\n'.replace(",", delimiter))
    assert all_queries(str(path)) == [f"red{delimiter} dress", "blue", "a\nb"]
    path.write_text(f"id{delimiter}query\n1{delimiter} red\n")
    assert all_queries(str(path)) == [" red"]


LABELS = {"category": ("dress", "jeans", "a|b"), "user": ("boy", "girl", "none")}


def labelled(folder: Path, text: str | bytes, name: str = "rows.jsonl") -> LabelledData:
    return read_labelled(written(folder / name, text), LABELS)


def test_json_lines(tmp_path: Path) -> None:
    row = '\ufeff{"query": "红 dress", "labels": {"category": "dress", "user": ["girl", "none", "girl"]}, "id": 7}\r\n'
    found = labelled(tmp_path, row + '\n{"query": "", "labels": {"category": "a|b", "user": null}}')
    assert found.rows == (
        LabelledQuery(line=1, query="红 dress", labels={"category": ("dress",), "user": ("girl", "none")}),
        LabelledQuery(line=3, query="", labels={"category": ("a|b",)}),
    )
    assert (found.bad, len(found.sha256)) == ((), 64)


def test_a_list_that_a_program_wrote_into_a_cell_has_several_labels(tmp_path: Path) -> None:
    found = labelled(tmp_path, """query,user\nx," ['boy' 'girl']"\ny,"[""none"", 'boy']"\nz,[]\n""", "rows.csv")
    assert [row.labels["user"] for row in found.rows] == [("boy", "girl"), ("none", "boy")]
    assert found.bad == (BadRow(4, "has no label of any prompt"),)


@cases(
    (b"{", "is not valid JSON: Expecting property name"),
    (b'{"query": "\\ud800", "labels": {"user": "boy"}}', "query: is not valid UTF-8"),
    (b'{"query": "x"}', "has no 'labels': write them"),
    (b'{"query": "x", "labels": "boy"}', "labels: 'boy' is not an object"),
    (b'{"query": "x", "labels": {"usr": "boy"}}', "'usr' is no prompt, did you mean user?"),
    (b'{"query": "x", "labels": {"user": "boys"}}', "'boys' is no label of this prompt, did you mean boy?"),
    (b'{"query": "x", "labels": {"user": []}}', "labels.user: is an empty list"),
    (b'{"query": "x", "labels": {"user": "boy", "user": "girl"}}', "has the key 'user' twice: keep one of them"),
    (b"x,boy|", "'' is no label of this prompt"),
)
def test_bad_rows_have_a_place_and_a_reason(line: bytes, reason: str, tmp_path: Path) -> None:
    is_json = line[:1] == b"{"
    first, good = (b"", b'{"query": "x", "labels": {"user": "boy"}}') if is_json else (b"query,user", b"x,boy")
    found = labelled(tmp_path, b"\n".join([first, good, line, good]), "rows.jsonl" if is_json else "rows.csv")
    assert ([row.line for row in found.rows], [row.line for row in found.bad]) == ([2, 4], [3])
    assert reason in found.bad[0].reason


@cases(
    ("rows.jsonl", "\n \n", "has no rows"), ("rows.csv", "query,usr\nx,boy\n", "'usr' is no prompt, did you mean user?")
)
def test_files_that_cannot_be_used(name: str, text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        labelled(tmp_path, text, name)


@pytest.mark.parametrize("ignored", [("sku", "seen at"), ("all",)])
@pytest.mark.parametrize(("delimiter", "encoding"), [(",", "utf-8"), (";", "utf-16"), ("\t", "utf-8-sig")])
def test_columns_stand_beside_them(tmp_path: Path, delimiter: str, encoding: str, ignored: tuple[str, ...]) -> None:
    text = "sku,title,user,seen at\n7,red dress, girl | none,noon\n\n8,jeans, ,\n".replace(",", delimiter)
    path = written(tmp_path / "rows.csv", text, encoding)
    data = read_labelled(path, LABELS, LabelledColumns(query="title", ignored=ignored))
    assert data.rows == (LabelledQuery(line=2, query="red dress", labels={"user": ("girl", "none")}),)
    assert data.bad == (BadRow(4, "has no label of any prompt"),)
    with pytest.raises(ConfigError, match="'seen at' is no prompt, known are category, user; or leave it out"):
        read_labelled(path, LABELS, LabelledColumns(query="title", ignored=("sku",)))


@cases(
    ("rows.csv", "query,category,user,sku\nx,dress,no such label,7\n"),
    ("rows.jsonl", '{"query": "x", "labels": {"category": "dress", "user": "no such label", "sku": "7"}}'),
)
def test_columns_of_labels_may_be_named(name: str, text: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, text)
    for columns in (LabelledColumns(labels=("category",)), LabelledColumns(ignored=("user", "sku"))):
        assert dict(read_labelled(path, LABELS, columns).rows[0].labels) == {"category": ("dress",)}
    with pytest.raises(ConfigError, match="has no column 'kind': the columns are 'category', 'user'"):
        read_labelled(path, LABELS, LabelledColumns(labels=("kind",)))


# What people save: any delimiter, encoding, packing and ending, and fields that have some of their characters.

CHARACTERS = "aä裙👗é\u0301 ,;|^\t\"'\n\\x.:{}[]=\u2028"
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be", "gb18030", "windows-1252"]
PACKINGS = {"": None, ".gz": "gzip", ".zst": "zstd"}


def saved(folder: Path, name: str, text: str, encoding: str, packing: str) -> Path:
    path = folder / f"{name}{packing}"
    with pa.output_stream(path, compression=PACKINGS[packing]) as file:
        file.write(text.encode(encoding))
    return path


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_rows_in_are_rows_out(drawn: st.DataObject) -> None:
    """As they are read at once, and part by part from where the part before ended."""
    delimiter = drawn.draw(st.sampled_from(",;|^\t"))
    encoding, packing = drawn.draw(st.sampled_from(ENCODINGS)), drawn.draw(st.sampled_from(sorted(PACKINGS)))
    texts = st.text([c for c in CHARACTERS if encoding != "windows-1252" or ord(c) < 256])
    rows = drawn.draw(st.lists(st.tuples(texts, texts.filter(str.strip)), min_size=1, max_size=6))
    with TemporaryDirectory() as folder:
        text = io.StringIO()
        quoting = drawn.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        line_end = drawn.draw(st.sampled_from(["\n", "\r\n"]))
        writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=line_end)  # type: ignore[arg-type]
        writer.writerows([("sku", "query"), *rows])
        name = drawn.draw(st.sampled_from(["a.csv", "a.CSV", "a.tsv", "a.TAB", "a.psv", "a", "part-00000", "a.txt"]))
        blank = "".join(drawn.draw(st.lists(st.sampled_from([line_end, delimiter + line_end]), max_size=2)))
        path = saved(Path(folder), name, blank + text.getvalue(), encoding, packing)
        named = encoding if encoding in ENCODINGS[6:] else None
        is_over_lines = any("\n" in text for row in rows for text in row)  # which may look like rows, unless it is CSV
        reading = Reading(query="query", encoding=named, format="csv" if is_over_lines else None)
        found = list(read_queries(str(path), reading, blank=True))
        assert [(row.text, row.error) for row in found] == [(query, None) for _, query in rows]
        place = 0, 1
        for row in rows:
            with open_rows(str(path), "", reading, at=place) as opened:
                assert list(next(iter(opened)).fields) == list(row)
                place = opened.offset, opened.next_line


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_quote_that_is_not_closed_takes_no_row_along(drawn: st.DataObject) -> None:
    """One begins a field, one may stand anywhere after it: rows stay rows, or the line of the first one is told."""
    delimiter, n = drawn.draw(st.sampled_from(",;|^\t")), drawn.draw(st.integers(2, 8))
    rows = [[f"{row}", f"text {row}", f"{row} cm"] for row in range(n)]
    inside = drawn.draw(st.integers(0, n - 1))
    where = drawn.draw(st.integers(0, n - 1)), drawn.draw(st.integers(0, 2))
    last = drawn.draw(st.integers(where[0], n)), drawn.draw(st.integers(0, 2))
    rows[where[0]][where[1]] = '"' + rows[where[0]][where[1]]
    if where[0] < inside < last[0]:  # the delimiter is part of a text there, too
        rows[inside][1] += delimiter
    if last[0] < n and last != where:
        rows[last[0]][last[1]] += drawn.draw(st.sampled_from(['"', '" more', '"more"']))
    with TemporaryDirectory() as folder:
        lines = [f"{delimiter.join(row)}\n" for row in [["id", "query", "size"], *rows]]
        try:
            found = list(read_queries(str(written(Path(folder, "a.csv"), "".join(lines)))))
        except ConfigError as e:
            assert re.search(rf"line {where[0] + 2}: .* or give `input_format` csv", str(e))  # noqa: PT017
            return
    others = [f"text {row}" for row in range(n) if row not in (where[0], last[0], inside)]
    assert [row.text for row in found if row.text in others] == others
    assert len(found) == n or any(f"line {where[0] + 2}" in (row.error or "") for row in found)


def test_commas_of_a_sentence_divide_no_rows(tmp_path: Path) -> None:
    """It goes on in the next line, which is like a row, too."""
    path = written(
        tmp_path / "rows.csv", 'query,kind\na coat,coat\n"I want a dress, but it is red\n.",dress\nblue jeans,jeans'
    )
    assert [row.text for row in read_queries(str(path))] == ["a coat", "I want a dress, but it is red\n.", "blue jeans"]


def test_a_quote_may_be_a_character_between_tabs(tmp_path: Path) -> None:
    """Many such files know no quotes; texts over several lines stay texts."""
    texts = ['"Oh" he said', 'never "closed', '"never closed', 'one "more"', "last"]
    lines = [f"{text}\tham" for text in texts]
    path = written(tmp_path / "rows.tsv", "\n".join(["query\tkind", *lines, '"red\ndress"\tham']))
    assert all_queries(str(path)) == [*texts, "red\ndress"]
    path.write_bytes(b'query\tkind\n"open\tham\n\xff\tham\nlast" x\tham\n')
    assert [row.error is None for row in read_queries(str(path))] == [True, False, True]


def test_other_scripts_show_that_a_line_is_utf_8(tmp_path: Path) -> None:
    assert all_queries(str(written(tmp_path / "a.txt", "好 ~{AB~} +AOk-\n"))) == ["好 ~{AB~} +AOk-"]


@cases(("csv", ","), ("tsv", "\t"))
def test_a_text_over_lines_like_rows_is_one_where_the_format_is_named(kind: Any, between: str, tmp_path: Path) -> None:
    path = written(tmp_path / f"rows.{kind}", 'id,query\n1,"red,\n2,dress"\n3,blue jeans'.replace(",", between))
    if kind == "csv":
        with pytest.raises(ConfigError, match="line 2: a field in quotes runs on to line 3, over lines that look like"):
            all_queries(str(path))
    else:
        assert [row.error is None for row in read_queries(str(path))] == [False, True, True]
    assert all_queries(str(path), Reading(format=kind)) == [f"red{between}\n2{between}dress", "blue jeans"]
    path.write_text('id,query\n1,"red,\nlong, dress"'.replace(",", between))  # no number: a text of several lines
    assert all_queries(str(path)) == [f"red{between}\nlong{between} dress"]


OBJECTS = '{"id": 1, "title": "red dress"}\n{"id": 2, "title": "blue jeans"}\n'
TABLE = "id,title\n1,red dress\n2,blue jeans\n"


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("ending", ["", ".txt", ".log", ".jl", ".jsonlines", ".NDJSON", ".json", ".csv", ".tab"])
@pytest.mark.parametrize("text", [OBJECTS, TABLE, TABLE.replace(",", "\t"), TABLE.replace(",", "|")])
def test_a_column_is_never_left_unread(text: str, ending: str, packing: str, tmp_path: Path) -> None:
    """What the name does not say, the content says; where the two differ, it is an error, or the format is named."""
    path = saved(tmp_path, f"rows{ending}", text, "utf-8", packing)
    is_json, is_named_json = text == OBJECTS, ending in (".jl", ".jsonlines", ".NDJSON", ".json")
    right = ["red dress", "blue jeans"]
    if is_json == is_named_json or ending in ("", ".txt", ".log"):
        assert all_queries(str(path), Reading(query="title")) == right
    else:
        with pytest.raises(ConfigError):
            all_queries(str(path), Reading(query="title"))
    assert all_queries(str(path), Reading(query="title", format="jsonl" if is_json else "csv")) == right
    assert len(all_queries(str(path), Reading(format="text"))) == 2 + (not is_json)
    with pytest.raises(ConfigError, match="has no column 'title'"):
        all_queries(str(written(tmp_path / "lines.txt", "red dress\n")), Reading(query="title"))


@cases(
    (b"sku,title\n", Reading(), "has no column 'query': the columns are 'sku', 'title'; name the one"),
    (b"\n", Reading(), "has no header"),
    (b"query,,\n", Reading(), "column '' is given twice: name each column, or remove those that are empty"),
    (b'query,"size; in\nmm"\n', Reading(), "the first line, which names all columns, .*: a quoted field has no end"),
    (b"query,\xb1\xe0\n", Reading(), "the header is not valid UTF-8 at byte 6: save it as UTF-8, or name its enc"),
    (b"sep=;\nquery;title\n", Reading(), "the first line, sep=, is a note for spreadsheets and no header: remove it"),
    (b"query,x\ra,b\rc,d\n", Reading(), "a carriage return stands within a field: .* the file with other line ends"),
    (b"id~query\n", Reading(), "or what stands between the fields with `delimiter`"),
    (b"id,query\n", Reading(delimiter="||"), "`delimiter` '||': give one character, or tab"),
    (b"query\n", Reading(encoding="klingon"), "`encoding` klingon: is no known encoding: name one such as utf-8"),
    (b"query\n", Reading(encoding="cp037"), "`encoding` cp037: is no known encoding"),
    (b"\xef\xbb\xbfquery\n", Reading(encoding="latin-1"), "begins with the mark of UTF-8: leave `encoding` out"),
    (b"query\rred dress\r", Reading(), "its lines end in carriage returns alone"),
    (gzip.compress(b"query\n" * 99, mtime=0)[:-9], Reading(), "is packed with gzip and cannot be unpacked"),
    (b"query\n", Reading(format="text", query="query"), "`query_column` is for tables, and `input_format` is text"),
    (b"query\n", Reading(format="parquet"), "is no sound Parquet file"),
    (b"PK\x03\x04", Reading(), "is a spreadsheet or packed"),
    (b"7z\xbc\xaf\x27\x1c", Reading(), "is packed"),
    (b"FEA1\x00\x00", Reading(), "is a file of Arrow"),
    (b"SQLite format 3\0", Reading(), "is neither text nor a table that is read"),
    (b"query,id\nred,1\r\nblue,2\rgreen,3\n", Reading(), "line 3 is not valid CSV: a carriage return stands within"),
    *(("query\n赤い服\n红色\n".encode(name), Reading(), "looks like ISO-2022") for name in ("iso2022_jp_2", "hz")),
)
def test_what_must_not_be_guessed_is_named(content: bytes, reading: Reading, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words.replace("|", r"\|")):
        all_queries(str(written(tmp_path / "rows.csv", content)), reading)


@cases(
    *(("iso2022_jp", ["赤い服", "a"]), ("iso2022_jp_2004", ["赤い服", "a"])),
    *(("hz", ["红色", "~{a}"]), ("utf-7", ["déjà", "10+2-1"])),
)
def test_texts_in_ascii_that_stand_for_others_are_told(name: str, texts: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "rows.txt", "\n".join(texts).encode(name))
    first, second = read_queries(str(path))
    assert ("name its encoding" in (first.error or ""), second.error) == (True, None)
    assert [row.text for row in read_queries(str(path), Reading(encoding=name))] == texts
    path.write_text(plain := "google+pro-edition, C+Plus-, +12345678, +ABC-, ~{x~}, \x1b[31mred")
    assert all_queries(str(path)) == [plain]


def test_long_fields_and_other_encodings_are_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv", f"query,notes\nred dress,{'x' * 140_000}\nrobe d\xe9t\xe9,\n", "latin-1")
    first, second = read_queries(str(path))
    assert (first.error, len(first.fields[1])) == (None, 140_000)
    assert (second.text, second.is_blank) == ("robe d\\xe9t\\xe9", False)
    assert "name its encoding with `encoding`" in (second.error or "")
    assert all_queries(str(path), Reading(encoding="latin-1"))[1] == "robe d\xe9t\xe9"


def test_queries_stand_in_objects_within_objects_and_in_parquet(tmp_path: Path) -> None:
    objects = ({"data": {"text": "red"}}, {"data.text": "blue"}, *({"data": x} for x in ({"text": 5}, "none", None)))
    path = written(tmp_path / "a.jl", "\n".join(map(json.dumps, objects)))
    errors = [row.error for row in read_queries(str(path), Reading(query="data.text"))]
    assert errors[:2] == [None, None]
    assert "line 3: 'data.text' is a number, not text" in str(errors[2])
    assert all("has no text 'data.text'" in str(error) for error in errors[3:])
    path.write_text('{"m": [{"content": "red"}]}')
    assert all_queries(str(path), Reading(query="m.0.content")) == ["red"]
    table = pa.table({"data": pa.array([{"text": "red"}, {"text": None}]), "raw": pa.array([b"red", b"\xff"])})
    pq.write_table(table, tmp_path / "c")
    for column, fault in (("data.text", "null"), ("raw", "not valid UTF-8")):
        first, second = read_queries(str(tmp_path / "c"), Reading(query=column))
        assert (first.text, second.error) == ("red", f"row 2: the query is {fault}")


def test_a_refused_file_of_wide_characters_is_let_go(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'query'"):
        labelled(tmp_path, "red,blue\nx,y\n".encode("utf-16"), "rows.csv")


@given(st.data())
def test_a_label_is_the_value_that_stands_for_it(drawn: st.DataObject) -> None:
    """Numbers, truth values and texts of them in JSON lines, flat or not, in CSV and in Parquet."""
    several = [("1", "2", "3"), ("1", "2.5"), ("1.0", "2.5"), ("true", "false"), ("True", "no"), ("1e3", "7")]
    labels = drawn.draw(st.sampled_from(several))
    label = drawn.draw(st.sampled_from(labels))
    value: Any = {"true": True, "false": False, "True": True, "no": "no"}.get(label, label)
    if value == label and label != "no":
        number = float(label)
        value = drawn.draw(st.sampled_from([label, number, int(number) if number.is_integer() else label]))
    form = drawn.draw(st.sampled_from(["labels", "list", "flat", "csv", "parquet"]))
    is_parquet, is_nested = form == "parquet" or drawn.draw(st.booleans()), form != "csv" and drawn.draw(st.booleans())
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.csv" if form == "csv" else "rows")
        labelled = {"stars": [value] if form == "list" else value}
        row: dict[str, Any] = {"labels": labelled} if form in ("labels", "list") else labelled
        row |= {"data": {"query": "x"}} if is_nested else {"query": "x"}
        if form == "csv":
            path.write_text(f"query,stars\nx,{value}\n")
        elif is_parquet:
            if label.replace(".", "").isdecimal() and form != "list":
                labelled["stars"] = drawn.draw(st.sampled_from([value, Decimal(label), label.encode()]))
            table = pa.Table.from_pylist([row])
            if form in ("labels", "list") and drawn.draw(st.booleans()):
                kind = pa.map_(pa.string(), table.schema.field("labels").type.field(0).type)
                table = table.set_column(0, "labels", pa.array([list(labelled.items())], kind))
            pq.write_table(table, path)
        else:
            path.write_text(json.dumps(row))
        found = read_labelled(path, {"stars": labels}, LabelledColumns(query="data.query" if is_nested else None))
    assert [dict(row.labels) for row in found.rows] == [{"stars": (label,)}], found.bad


def test_a_column_without_a_name_is_an_index_of_rows(tmp_path: Path) -> None:
    found = labelled(tmp_path, ",query,user\n0,x,boy\n", "rows.csv")
    assert [dict(row.labels) for row in found.rows] == [{"user": ("boy",)}]


def test_a_null_is_not_taken_for_the_label_null(tmp_path: Path) -> None:
    path = written(tmp_path / "rows", '{"query": "x", "labels": {"user": null}}')
    assert "write the label null in quotes" in read_labelled(path, {"user": ["null", "boy"]}).bad[0].reason


@pytest.mark.parametrize(
    "value", [None, float("nan"), "", [], 9, pytest.param(10**400, id="large"), True, {"a": 1}, ["1", None]]
)
def test_values_that_are_no_label_are_none_or_told(value: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "rows", json.dumps({"query": "x", "labels": {"stars": value, "user": "boy"}}))
    found = read_labelled(path, {"stars": ("1", "2"), "user": ("boy",)})
    is_missing = value is None or value == "" or value != value
    assert [dict(row.labels) for row in found.rows] == ([{"user": ("boy",)}] if is_missing else [])
    assert all("labels.stars: " in row.reason for row in found.bad)
