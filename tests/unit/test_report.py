"""Records as JSON, their schemas and page; documents and answers on a terminal, as pages and in every format."""

import csv
import io
import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from records_page import RECORDS, RunRecord, records_page
from rich.cells import cell_len
from rich.console import Console, RenderableType

from qcls_gguf.data.rows import Row
from qcls_gguf.report.answers import AnswerWriter, result_table
from qcls_gguf.report.document import TEXT, Document, Paragraph, Section, Table, document_page, facts
from qcls_gguf.report.record import Record, left_out_if_none
from qcls_gguf.score.result import Audit, Counts, LabelScore, ModelInfo, PromptResult, Result


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


def test_the_page_of_records_names_all_and_every_field_has_a_meaning() -> None:
    page = records_page()
    assert set(RECORDS) == set(re.findall(r"^\| `qcls-gguf ([^`]+)` \|", page, re.MULTILINE))
    code = "\n".join(
        path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "qcls_gguf").rglob("*.py")
    )
    described = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    assert set(re.findall(r"^class (\w+Record)\(", code, re.MULTILINE)) - {"FittedRecord"} <= described
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert [name for name, kind, meaning in rows if not meaning and "](#" not in kind] == []
    for name, kind, meaning in [
        ("n_chars_cut", "integer", "characters that `long_queries` had cut"),
        ("ratio_range", "[number, number]", "10 % and 90 % quantile"),
        ("model", "[ModelInfo](#modelinfo)", ""),
    ]:
        assert f"| `{name}` | {kind} | {meaning}" in page


TABLE = Table(
    title="Modes",
    columns={"mode": TEXT, "rows": "d", "accuracy (95 %)": "", "macro-F1": ".3f", "log-loss": ".4f", "Brier": ".3f"},
    rows=[
        ["first_token", 6400, "94.6% (94.0%–95.1%)", 0.9123, 0.22261, None],
        ["another with a <long> name\x1b", 6400, "94.6% (94.0%–95.1%)", 0.9123, 0.22261, 0.0812],
    ],
    bold=[1],
    note="Brier: the squared error",
)
EMPTY = Table(columns={"nothing": TEXT}, rows=[])
DOCUMENT = Document(
    title="A report",
    parts=[
        facts({"model": "tiny"}),
        Section(title="Numbers", parts=[TABLE, None, EMPTY]),
        Section(title="Not measured", parts=[EMPTY]),
        Section(title="More", parts=[Paragraph("b: 2")], on_terminal=False),
        Paragraph("a & b", "warning"),
    ],
)


def on_terminal(shown: RenderableType, width: int) -> str:
    out = io.StringIO()
    Console(width=width, file=out, color_system=None).print(shown)
    return out.getvalue()


@pytest.mark.parametrize(("width", "n_tables"), [(100, 1), (60, 2), (40, 4), (30, 5)])
def test_numbers_of_a_wide_table_stay_whole_in_several(width: int, n_tables: int) -> None:
    text = on_terminal(Document(title="", parts=[TABLE]), width)
    assert all(cell_len(line.rstrip()) <= width for line in text.splitlines())
    assert text.split().count("mode") == n_tables
    for column, cell in zip(TABLE.columns, TABLE.cells()[0], strict=True):
        assert column in text
        assert cell in text


def test_a_terminal_shows_the_parts_that_have_something_in_them() -> None:
    text = on_terminal(DOCUMENT, 100)
    for shown in ("model  tiny", "Numbers", "0.912", "a & b", "<long> name\\x1b"):
        assert shown in text
    for left_out in ("A report", "Not measured", "nothing", "More", "b: 2", "squared error"):
        assert left_out not in text


def test_a_page_shows_all_of_them_escaped() -> None:
    page = document_page(DOCUMENT)
    for shown in ("<title>A report", "<h2>Numbers", "<h3>Modes", "squared error", "&lt;long&gt; name", "a &amp; b"):
        assert shown in page
    assert '<tr class="strong"><td class="text">another' in page
    assert '<h2>More</h2>\n<p class="plain">b: 2</p>' in page
    assert page.count("<table>") == 2
    assert "Not measured" not in page


MODEL = ModelInfo(
    path="m.gguf", sha256="ab" * 32, quantization="Q8_0", description="qwen3 8.39M Q8_0", size_bytes=1, n_gpu_layers=0,
    device="CPU", llama_cpp_commit="c", source_digest="d", backend="CPU", package_version="0",
)  # fmt: skip


def prompt(name: str, *probabilities: float, audit: Audit | None = None) -> PromptResult:
    scores = tuple(LabelScore(f"{name} label {i}", -1.0, p, 1) for i, p in enumerate(probabilities))
    best = max(scores, key=lambda each: each.probability)
    return PromptResult(name, best.label, best.probability, False, True, scores, audit)


def result(*prompts: PromptResult) -> Result:
    counts = Counts(n_queries=1, n_decodes=1, n_tokens_new=18, n_tokens_cached=93, n_positions=1)
    stages = dict.fromkeys(("tokenize", "plan", "batch", "decode", "score", "cleanup"), 1.25)
    return Result(query="red dress", total_ms=7.5, stage_ms=stages, counts=counts, results=prompts, model=MODEL)


PROMPTS = ["category", "audience"]
ANSWER = result(prompt("category", 0.1, 0.2, 0.7)._replace(depth=18), prompt("audience", 0.75, 0.25))


def printed(writer: AnswerWriter, capsys: pytest.CaptureFixture[str]) -> str:
    writer.write(Row("red dress", None, 1), ANSWER)
    writer.write(Row("", None, 2), None)
    writer.write(Row("bad", "not UTF-8", 3), "line 3: not UTF-8")
    writer.close()
    return capsys.readouterr().out


def test_labels_are_a_line_for_each_line_and_blank_ones_stand_among_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(line 2 is blank)" in printed(AnswerWriter("table", PROMPTS, n_top=3), capsys)
    assert printed(AnswerWriter("labels", PROMPTS), capsys) == "category label 2\taudience label 0\n\n\n"


@pytest.mark.parametrize(("kind", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_csv_has_a_row_for_each_line(kind: Any, delimiter: str, capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = csv.reader(io.StringIO(printed(AnswerWriter(kind, PROMPTS), capsys)), delimiter=delimiter)
    assert header == ["line", "query", *(name + end for name in PROMPTS for end in ("", "_probability")), "error"]
    assert [dict(zip(header, row, strict=True)).get("error") for row in rows] == ["", "blank line", "line 3: not UTF-8"]
    assert [row[:2] for row in rows] == [["1", "red dress"], ["2", ""], ["3", "bad"]]
    assert rows[0][2:6] == ["category label 2", "0.700000", "audience label 0", "0.750000"]


@pytest.mark.parametrize("n_scores", [None, 2])
def test_json_lines_have_the_hash_of_the_model(n_scores: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    answer, blank, bad = map(json.loads, printed(AnswerWriter("jsonl", PROMPTS, n_top=n_scores), capsys).splitlines())
    assert (answer["line"], answer["model_sha256"]) == (1, MODEL.sha256)
    assert RunRecord.model_validate(answer).to_dict() == answer
    assert "model" not in answer
    found = [score["label"] for score in answer["results"][0]["scores"]]
    assert found == [f"category label {i}" for i in ((0, 1, 2) if n_scores is None else (2, 1))]
    assert blank == {"line": 2, "query": "", "blank": True}
    assert bad == {"line": 3, "query": "bad", "error": "line 3: not UTF-8"}


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert [value.get("line") for value in json.loads(printed(AnswerWriter("json", PROMPTS), capsys))] == [1, 2, 3]
    AnswerWriter("json", PROMPTS).close()
    assert json.loads(capsys.readouterr().out) == []
    writer = AnswerWriter("json", PROMPTS, only_one=True)
    writer.write(Row("red dress"), ANSWER)
    writer.close()
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(ANSWER.to_dict()))


AUDIT = Audit(joint=(-1.0, -2.0, -3.0), label_mass=0.123)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_no_number_is_cut_on_any_terminal(width: int) -> None:
    answer = result(prompt("孕妇 category", 0.123, 0.2, 0.677, audit=AUDIT), prompt("a" * 60, 0.75, 0.25))
    text = on_terminal(result_table(answer, 0), width)
    assert all(cell_len(line.rstrip()) <= width for line in text.splitlines())
    assert sorted(re.findall(r"[\d.]+%", text)) == sorted(["67.7%", "20.0%", "12.3%", "12.3%", "75.0%", "25.0%"])
    for stage in answer.stage_ms:
        assert re.search(rf"{stage}\s+1.25", text)
    assert re.search(r"joint\s+picks", text)
    assert re.search(r"1\s+decode,", text)


def test_an_audit_that_agrees_says_so_in_few_words() -> None:
    agreeing = replace(AUDIT, joint=(-3.0, -2.0, -1.0))
    text = on_terminal(result_table(result(prompt("category", 0.1, 0.2, 0.7, audit=agreeing)), 0), 100)
    assert "audit: label mass 12.3%, joint agrees" in text


def test_a_result_is_shown_on_a_line() -> None:
    answers = "category=category label 2 70.0%, audience=audience label 0 75.0%"
    assert repr(ANSWER) == f"Result('red dress': {answers}; 7.50 ms)"
