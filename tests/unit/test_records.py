"""Records as JSON, their JSON Schemas, and the page that describes them."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from qcls_gguf.cli.records import RECORDS, records_page
from qcls_gguf.report.record import Record, left_out_if_none, records_markdown

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where it was."""

    path: Path | None = None
    """a | file"""


class Sample(Record):
    """A sample."""

    n: int
    """its size"""
    place: Place
    pair: tuple[float, float] | None
    """both ends"""
    note: str | None = left_out_if_none()
    """only sometimes"""


SAMPLE = Sample(n=1, place=Place(path=Path("x")), pair=(0.5, 1.0))


def test_a_field_without_a_value_is_null_or_left_out() -> None:
    assert json.loads(SAMPLE.to_json()) == {"n": 1, "place": {"path": "x"}, "pair": [0.5, 1.0]}
    other = Sample(n=2, place=Place(), pair=None, note="é")
    assert json.loads(other.to_json()) == {"n": 2, "place": {"path": None}, "pair": None, "note": "é"}
    assert "é" in other.to_json()
    for record in (SAMPLE, other):
        assert Sample.model_validate_json(record.to_json()) == record


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        SAMPLE.model_copy(update={"pair": (0.0, value)}).to_json()


def test_a_page_has_a_table_for_each_type() -> None:
    page = records_markdown({"`one`": Sample, "`two`": Sample})
    assert page.count("## `one`\n\nA sample.\n\n| field | type | meaning |\n") == 1
    for row in (
        "| `n` | integer | its size |",
        "| `place` | [Place](#place) | Where it was. |",
        "| `pair` | [number, number] or null | both ends |",
        "| `note` | string | only sometimes; left out where there is none |",
        "| `path` | string or null | a \\| file |",
    ):
        assert row in page
    assert page.count("### Place\n\nWhere it was.\n\n| field |") == 1


@pytest.mark.parametrize("command", RECORDS)
def test_every_field_has_a_meaning(command: str) -> None:
    page = records_markdown({f"## {command}": RECORDS[command]})
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.MULTILINE)
    assert rows
    assert [name for name, meaning in rows if not meaning] == []
    assert all(re.findall(r"^###? .*\n\n(.*)\n", page, re.MULTILINE))


def test_the_page_is_what_the_types_say() -> None:
    page = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    assert page == records_page(), "run: python -m qcls_gguf.cli.records > docs/records.md"
