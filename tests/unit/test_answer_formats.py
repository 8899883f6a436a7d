"""What `run` prints, from made-up answers: every format, and tables on narrow terminals."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from qcls_gguf.data.queries import Line
from qcls_gguf.report.answers import AnswerWriter, JsonDocument, JsonLines, Labels, Rows, Tables, result_table
from qcls_gguf.report.run_record import RunRecord
from qcls_gguf.score.result import Audit, Counts, LabelScore, ModelInfo, PromptResult, Result

MODEL = ModelInfo(
    path="m.gguf", sha256="ab" * 32, quantization="Q8_0", description="qwen3 8.39M Q8_0", size_bytes=1, n_gpu_layers=0,
    device="CPU", llama_cpp_commit="c", source_digest="d", backend="CPU", package_version="0",
)  # fmt: skip
LINES = [Line("red dress", None, 1), Line("", None, 2), Line("bad", "not UTF-8", 3)]


def prompt(name: str, *probabilities: float, audit: Audit | None = None) -> PromptResult:
    scores = tuple(LabelScore(f"{name} label {i}", -1.0, p, 1) for i, p in enumerate(probabilities))
    best = max(scores, key=lambda each: each.probability)
    return PromptResult(name, best.label, best.probability, False, True, scores, audit)


def result(*prompts: PromptResult) -> Result:
    counts = Counts(n_queries=1, n_decodes=1, n_tokens_new=18, n_tokens_cached=93, n_positions=1)
    stages = dict.fromkeys(("tokenize", "plan", "batch", "decode", "score", "cleanup"), 1.25)
    return Result(query="red dress", total_ms=7.5, stage_ms=stages, counts=counts, results=prompts, model=MODEL)


ANSWER = result(prompt("category", 0.1, 0.2, 0.7)._replace(depth=18), prompt("audience", 0.75, 0.25))


def printed(writer: AnswerWriter, capsys: pytest.CaptureFixture[str]) -> str:
    answered, blank, bad = LINES
    writer.write(answered, ANSWER)
    writer.write(blank, None)
    writer.write(bad, bad.error)
    writer.close()
    return capsys.readouterr().out


def test_labels_are_a_line_for_each_line_and_blank_ones_stand_among_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(line 2 is blank)" in printed(Tables(3), capsys)
    assert printed(Labels(), capsys) == "category label 2\taudience label 0\n\n\n"


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_csv_has_a_row_for_each_line(delimiter: str, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Rows(["category", "audience"], delimiter=delimiter)
    header, *rows = csv.reader(io.StringIO(printed(writer, capsys)), delimiter=delimiter)
    assert [dict(zip(header, row, strict=True)).get("error") for row in rows] == ["", "blank line", "not UTF-8"]
    assert [row[:2] for row in rows] == [["1", "red dress"], ["2", ""], ["3", "bad"]]
    assert rows[0][2:6] == ["category label 2", "0.700000", "audience label 0", "0.750000"]


@pytest.mark.parametrize("n_scores", [None, 2])
def test_json_lines_have_the_hash_of_the_model(n_scores: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    answer, blank, bad = map(json.loads, printed(JsonLines(n_scores), capsys).splitlines())
    assert (answer["line"], answer["model_sha256"]) == (1, MODEL.sha256)
    assert RunRecord.model_validate(answer).to_dict() == answer
    assert "model" not in answer
    found = [score["label"] for score in answer["results"][0]["scores"]]
    assert found == [f"category label {i}" for i in ((0, 1, 2) if n_scores is None else (2, 1))]
    assert blank == {"line": 2, "query": "", "blank": True}
    assert bad == {"line": 3, "query": "bad", "error": "not UTF-8"}


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert [value.get("line") for value in json.loads(printed(JsonDocument(None, only_one=False), capsys))] == [1, 2, 3]
    JsonDocument(None, only_one=False).close()
    assert json.loads(capsys.readouterr().out) == []
    writer = JsonDocument(None, only_one=True)
    writer.write(Line("red dress"), ANSWER)
    writer.close()
    assert json.loads(capsys.readouterr().out) == ANSWER.to_dict() | {
        "results": [json.loads(json.dumps(each)) for each in ANSWER.to_dict()["results"]]
    }


AUDIT = Audit(
    joint=(-1.0, -2.0, -3.0), mean=(-1.0, -2.0, -3.0), label_mass=0.123, joint_label="category label 0",
    mean_label="category label 2", changes=True,
)  # fmt: skip


def shown(answer: Result, width: int) -> list[str]:
    screen = Console(width=width, file=io.StringIO(), color_system=None)
    screen.print(result_table(answer, 0, width=width))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 140])
def test_no_number_is_cut_on_any_terminal(width: int) -> None:
    answer = result(prompt("孕妇 category", 0.123, 0.2, 0.677, audit=AUDIT), prompt("a" * 60, 0.75, 0.25))
    lines = shown(answer, width)
    assert all(cell_len(line.rstrip()) <= width for line in lines)
    text = "\n".join(lines)
    assert sorted(re.findall(r"[\d.]+%", text)) == sorted(["67.7%", "20.0%", "12.3%", "12.3%", "75.0%", "25.0%"])
    for stage in answer.stage_ms:
        assert re.search(rf"{stage}\s+1.25", text)
    assert re.search(r"joint\s+picks\s+category\s+label\s+0", text)
    assert re.search(r"1\s+decode,", text)


def test_an_audit_that_agrees_says_so_in_few_words() -> None:
    agreeing = replace(AUDIT, joint_label="category label 2", changes=False)
    text = "\n".join(shown(result(prompt("category", 0.1, 0.2, 0.7, audit=agreeing)), 100))
    assert "audit: label mass 12.3%, joint and mean agree" in text


def test_a_result_is_shown_on_a_line() -> None:
    assert repr(ANSWER) == (
        "Result('red dress': category=category label 2 70.0%, audience=audience label 0 75.0%; 7.50 ms)"
    )
