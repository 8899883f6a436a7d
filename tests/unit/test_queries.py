"""Reading queries: lines as they come, whatever bytes they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from qcls_gguf.data.queries import Line, check_source, read_queries
from qcls_gguf.errors import ConfigError


def read(folder: Path, data: bytes) -> list[Line]:
    path = folder / "queries.txt"
    path.write_bytes(data)
    return list(read_queries(str(path)))


def test_lines_without_their_breaks_and_no_blank_ones(tmp_path: Path) -> None:
    assert read(tmp_path, b"one\ntwo \r\n\n  \n\xe4\xb8\x89") == [Line("one"), Line("two "), Line("三")]


def test_byte_order_mark_is_no_part_of_the_first_query(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n") == [Line("one"), Line("\ufefftwo")]


def test_other_line_separators_stay_in_the_query(tmp_path: Path) -> None:
    assert read(tmp_path, "a\u2028b\x0bc\x00d\n".encode()) == [Line("a\u2028b\x0bc\x00d")]


def test_invalid_utf8_is_reported_with_its_place_and_the_rest_follows(tmp_path: Path) -> None:
    first, bad, last = read(tmp_path, b"one\nab\xff\ntwo")
    assert (first, last) == (Line("one"), Line("two"))
    assert bad.text == "ab\\xff"
    assert bad.error is not None
    assert "line 2 is not valid UTF-8 at byte 2" in bad.error


def test_unreadable_input_is_named_before_and_while_reading(tmp_path: Path) -> None:
    for name, words in (("missing.txt", "no such file"), ("", "cannot be read")):
        with pytest.raises(ConfigError, match=words):
            check_source(str(tmp_path / name))
        with pytest.raises(ConfigError, match="cannot be read"):
            list(read_queries(str(tmp_path / name)))
    check_source("-")
