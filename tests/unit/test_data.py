"""Reading queries and labelled rows: lines, JSON lines and tables as they come, and what is wrong with them."""

from pathlib import Path
from typing import Any

import pytest

from qcls_gguf.data.labelled import BadRow, LabelledColumns, LabelledData, LabelledQuery, read_labelled
from qcls_gguf.data.rows import Reading, Row, check_queries, read_queries
from qcls_gguf.errors import ConfigError


def read(folder: Path, data: bytes, *, blank: bool = False) -> list[Row]:
    path = folder / "queries.txt"
    path.write_bytes(data)
    return list(read_queries(str(path), blank=blank))


def said(row: Row) -> tuple[str, str | None, int | None]:
    return row.text, row.error, row.number


def texts(folder: Path, data: bytes) -> list[tuple[str, int | None]]:
    return [(line.text, line.number) for line in read(folder, data)]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"one\ntwo \r\n\n  \n\xe4\xb8\x89", [("one", 1), ("two ", 2), ("三", 5)]),
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", [("one", 1), ("\ufefftwo", 2)]),
        ("a\u2028b\x0bc\x00d\n".encode(), [("a\u2028b\x0bc\x00d", 1)]),
    ],
)
def test_lines_without_their_breaks_and_no_blank_ones(
    data: bytes, found: list[tuple[str, int]], tmp_path: Path
) -> None:
    assert texts(tmp_path, data) == found


def test_invalid_utf8_is_reported_with_its_place_and_the_rest_follows(tmp_path: Path) -> None:
    first, bad, blank, last = read(tmp_path, b"one\nab\xff\n \ntwo", blank=True)
    assert (said(first), said(last)) == (("one", None, 1), ("two", None, 4))
    assert (bad.text, bad.is_blank, blank.is_blank) == ("ab\\xff", False, True)
    assert "line 2 is not valid UTF-8 at byte 2" in (bad.error or "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.txt", "no such file"),
        ("", "is a folder"),
        ("a.json", "is one JSON document: write an object a line, in a file named .jsonl"),
        ("a.XLSX", "is a spreadsheet: save it as .csv"),
    ],
)
def test_what_has_no_rows_is_refused_before_and_while_reading(name: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if words.startswith("is ") and name:
        path.write_text('[{"query": "red dress"}]\n')
    for read_ in (check_queries, lambda source: list(read_queries(source))):
        with pytest.raises(ConfigError, match=words):
            read_(str(path))
    check_queries("-")


def test_half_a_character_of_utf16_is_told_of_its_line(tmp_path: Path) -> None:
    first, bad, last = read(tmp_path, b"\xff\xfe" + "one\nx".encode("utf-16-le") + b"\x00\xd8\n\x00t\x00")
    assert (first.text, last.text) == ("one", "t")
    assert "line 2 is not valid UTF-8" in (bad.error or "")
    with pytest.raises(ConfigError, match="begins as UTF-16-LE and is not"):
        read(tmp_path, b"\xff\xfeo")


def table(folder: Path, name: str, text: str, column: str | None = None) -> list[Row]:
    path = folder / name
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return list(read_queries(str(path), Reading(query=column), blank=True))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_keeps_its_lines(delimiter: str, tmp_path: Path) -> None:
    text = 'sku,title,x\nA1,"red ""dress"", long",1\n"A\n2",blue jeans,2\n\nA3,,3\nA4,short\n'
    text = text.replace('dress"", long', 'dress""; long').replace(",", delimiter)
    first, second, blank, no_query, short = table(tmp_path, "items.csv", text, "title")
    assert said(first) == ('red "dress"; long', None, 2)
    assert said(second) == ("blue jeans", None, 3)
    assert blank.is_blank
    assert no_query.is_blank
    assert said(short) == ("short", "line 7 has 2 fields, the header 3: write empty ones, too", 7)


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("names", [["sku", "query"], ["query", "a, b; c\td"], ["query"]])
def test_names_of_columns_may_all_be_quoted(delimiter: str, names: list[str], tmp_path: Path) -> None:
    rows = [names, ["red dress"] * len(names)]
    text = "".join(delimiter.join(f'"{field}"' for field in row) + "\r\n" for row in rows)
    (line,) = table(tmp_path, "items.csv", text)
    assert (line.text, line.error) == ("red dress", None)


def test_json_lines_are_told_apart(tmp_path: Path) -> None:
    text = '{"query": "red dress", "n": 7}\n\n{"query": 3}\nnope\n'
    good, blank, number, broken = table(tmp_path, "items.jsonl", text)
    assert said(good) == ("red dress", None, 1)
    assert blank.is_blank
    assert number.error == "line 3: 'query' is a number, not text: write it in quotes"
    assert "line 4 is not valid JSON" in (broken.error or "")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("sku,title", "has no column 'query': the columns are 'sku', 'title'; name the one"),
        ("", "has no header"),
        ("query,,", "column '' is given twice: name each column, or remove those that are empty"),
        ('query,"size; in\nmm"', "the first line, which names all columns, .*: a quoted field has no end"),
        (
            "query,\udcb1\udce0",
            "the header is not valid UTF-8 at byte 6: save it as UTF-8, or name its encoding with `encoding`",
        ),
        ("sep=;\nquery;title", "the first line, sep=, is a note for spreadsheets and no header: remove it"),
        ("query,x\ra,b\rc,d", "a carriage return stands within a field: .* save the file with other line ends"),
    ],
)
def test_a_table_without_its_columns_is_refused(header: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        table(tmp_path, "items.csv", f"{header}\n")


LABELS = {"category": ("dress", "jeans", "a|b"), "user": ("boy", "girl", "none")}


def labelled(folder: Path, text: str | bytes, name: str = "rows.jsonl") -> LabelledData:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_labelled(path, LABELS)


def rows(found: LabelledData) -> list[tuple[int, str, dict[str, Any]]]:
    return [(row.line, row.query, dict(row.labels)) for row in found.rows]


def test_json_lines(tmp_path: Path) -> None:
    found = labelled(
        tmp_path,
        '\ufeff{"query": "红 dress", "labels": {"category": "dress", "user": ["girl", "none", "girl"]}, "id": 7}\r\n'
        '\n{"query": "", "labels": {"category": "a|b", "user": null}}',
    )
    assert found.bad == ()
    assert rows(found) == [
        (1, "红 dress", {"category": ("dress",), "user": ("girl", "none")}),
        (3, "", {"category": ("a|b",)}),
    ]
    assert len(found.sha256) == 64


def test_csv(tmp_path: Path) -> None:
    found = labelled(
        tmp_path,
        '\ufeffcategory,query,user\r\ndress,"red, ""new""\ndress",girl|none\r\n\r\na|b,x,\r\n,y,boy\r\n',
        "rows.CSV",
    )
    assert found.bad == ()
    assert rows(found) == [
        (2, 'red, "new"\ndress', {"category": ("dress",), "user": ("girl", "none")}),
        (5, "x", {"category": ("a|b",)}),
        (6, "y", {"user": ("boy",)}),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "is not valid JSON: Expecting property name"),
        (b'{"query": "\\ud800", "labels": {"user": "boy"}}', "query: is not valid UTF-8"),
        (b'{"query": "x"}', "has no 'labels': write them"),
        (b'{"query": "x", "labels": "boy"}', "labels: 'boy' is not an object"),
        (b'{"query": "x", "labels": {"usr": "boy"}}', "'usr' is no prompt, did you mean user?"),
        (b'{"query": "x", "labels": {"user": "boys"}}', "'boys' is no label of this prompt, did you mean boy?"),
        (b'{"query": "x", "labels": {"user": []}}', "labels.user: is an empty list"),
        (b'{"query": "x", "labels": {"user": "boy", "user": "girl"}}', "key 'user' is given twice"),
        (b"x,boy|", "'' is no label of this prompt"),
        (b"x,", "has no label of any prompt"),
    ],
)
def test_bad_rows_have_a_place_and_a_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    is_json = line[:1] in b'{"'
    good = b'{"query": "x", "labels": {"user": "boy"}}' if is_json else b"x,boy"
    header = [] if is_json else [b"query,user"]
    found = labelled(tmp_path, b"\n".join([*header, good, line, good]), "rows.jsonl" if is_json else "rows.csv")
    n = len(header)
    assert [row.line for row in found.rows] == [n + 1, n + 3]
    assert [row.line for row in found.bad] == [n + 2]
    assert reason in found.bad[0].reason


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("rows.jsonl", "\n \n", "has no rows"),
        ("rows.csv", "query,usr\nx,boy\n", "'usr' is no prompt, did you mean user?"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        labelled(tmp_path, text, name)


@pytest.mark.parametrize("ignored", [("sku", "seen at"), ("all",)])
@pytest.mark.parametrize(("delimiter", "encoding"), [(",", "utf-8"), (";", "utf-16"), ("\t", "utf-8-sig")])
def test_other_columns_stand_beside_queries_and_labels(
    tmp_path: Path, delimiter: str, encoding: str, ignored: tuple[str, ...]
) -> None:
    path = tmp_path / "rows.csv"
    text = "sku,title,user,seen at\n7,red dress, girl | none,noon\n\n8,jeans, ,\n".replace(",", delimiter)
    path.write_text(text, encoding=encoding)
    data = read_labelled(path, LABELS, LabelledColumns(query="title", ignored=ignored))
    assert data.rows == (LabelledQuery(line=2, query="red dress", labels={"user": ("girl", "none")}),)
    assert data.bad == (BadRow(4, "has no label of any prompt"),)
    with pytest.raises(ConfigError, match="'seen at' is no prompt, known are category, user; or leave it out"):
        read_labelled(path, LABELS, LabelledColumns(query="title", ignored=("sku",)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", "query,category,user,sku\nx,dress,no such label,7\n"),
        ("rows.jsonl", '{"query": "x", "labels": {"category": "dress", "user": "no such label", "sku": "7"}}'),
    ],
)
def test_columns_of_labels_may_be_named(tmp_path: Path, name: str, text: str) -> None:
    (path := tmp_path / name).write_text(text)
    for columns in (LabelledColumns(labels=("category",)), LabelledColumns(ignored=("user", "sku"))):
        assert dict(read_labelled(path, LABELS, columns).rows[0].labels) == {"category": ("dress",)}
    with pytest.raises(ConfigError, match="has no column 'kind': the columns are 'category', 'user'"):
        read_labelled(path, LABELS, LabelledColumns(labels=("kind",)))
