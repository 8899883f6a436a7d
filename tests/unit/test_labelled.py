"""Files of labelled queries: JSON lines and CSV, and what is wrong with their rows."""

from pathlib import Path
from typing import Any

import pytest

from qcls_gguf.data.labelled import BadRow, Labelled, LabelledColumns, LabelledQuery, read_labelled
from qcls_gguf.errors import ConfigError

LABELS = {"category": ("dress", "jeans", "a|b"), "user": ("boy", "girl", "none")}


def read(folder: Path, text: str | bytes, name: str = "rows.jsonl") -> Labelled:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_labelled(path, LABELS)


def rows(found: Labelled) -> list[tuple[int, str, dict[str, Any]]]:
    return [(row.line, row.query, dict(row.labels)) for row in found.rows]


def test_json_lines(tmp_path: Path) -> None:
    found = read(
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
    found = read(
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
        (b'{"query": "x"}', "has no 'labels'"),
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
    found = read(tmp_path, b"\n".join([*header, good, line, good]), "rows.jsonl" if is_json else "rows.csv")
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
        read(tmp_path, text, name)


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
