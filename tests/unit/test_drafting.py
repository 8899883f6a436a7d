"""New configurations: from labels, from labelled rows; which model they name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import cases, written
from commands import write_rows

from qcls_gguf import Config, ConfigError, load_config
from qcls_gguf.config.words import ALIKE
from qcls_gguf.data.labelled import LabelledColumns
from qcls_gguf.drafting.draft import LARGEST_FIRST, Draft, choose, draft_text, fitting_model, given_model, labels_of
from qcls_gguf.drafting.rows import find_labels
from qcls_gguf.model import find_model
from qcls_gguf.report.environment import FreeMemory

TINY = Path(__file__).parents[2] / "models" / "fashion-tiny-Q8_0.gguf"
CHAT = given_model(None, "a/b")
GB = 10**9


def draft(*options: str, model: Any = CHAT) -> Draft:
    return Draft(prompts=labels_of(options), model=model, about="a shop's text: new", source="labels")


def loaded(draft: Draft, folder: Path) -> Config:
    return load_config(written(folder / "config.yaml", draft_text(draft, folder)))


def test_labels_become_prompts_with_one_text(tmp_path: Path) -> None:
    config = loaded(draft("category= dress, no,", "on sale?=yes,1e3,孕妇 'x'"), tmp_path)
    found = [(prompt.name, prompt.labels) for prompt in config.prompts]
    assert found == [("category", ("dress", "no")), ("on sale?", ("yes", "1e3", "孕妇 'x'"))]
    assert {prompt.cue for prompt in config.prompts} == {"{name}:"}
    assert "Label a shop's text: new. For each attribute output" in (config.prompts[0].system or "")
    assert config.model.hf_repo == "a/b"


def test_a_model_without_a_chat_template_gets_the_whole_text(tmp_path: Path) -> None:
    model = given_model(str(TINY), None)
    assert model
    assert not model.has_chat_template
    config = loaded(draft("category=dress,none", model=model), tmp_path)
    (prompt,) = config.prompts
    assert prompt.expanded_template.endswith("category: [dress, none]\n\ntext: {query}\ncategory:")
    assert config.model.path == TINY


@cases(
    *(([option], "is not NAME=LABEL,LABEL") for option in ("category", "=a,b", "  =a,b")),
    (["category=a"], r"prompts\.category\.labels: .* should have at least 2 items, not 1"),
    *(
        ([f"size=S,{label}"], r"stands in quotes, as in 'size=S,\"M, L\"'")
        for label in ("'M, L'", "M\\, L", "“M, L”", '"M, L', '"M" x, L')
    ),
    (["category=a,a"], "'a' is given twice"),
    (["category=a,{query}"], "^no configuration can be made of that: .*slot"),
    (["x=a,b", "x=a,b"], "'x' is given twice"),
)
def test_what_no_configuration_can_have_is_refused(options: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        draft_text(draft(*options), tmp_path)


def test_several_prompts_may_have_texts_of_their_own(tmp_path: Path) -> None:
    config = loaded(replace(draft("a=p,none", "b=q,r"), is_common=False, with_prior=("b",)), tmp_path)
    assert [prompt.system for prompt in config.prompts] == [
        "Label a shop's text: new. Output exactly one label from the list. Use 'none' if none is mentioned.\n"
        "{name}: [{labels}]"
    ] * 2
    assert [prompt.prior for prompt in config.prompts] == ["none", "content_free"]


ROWS = [
    ("id", "what was said", "topic", "urgency"),
    *[(f"A{i}", f"where is parcel {i}", "delivery", "high") for i in range(9)],
    *[(f"B{i}", f"send the money for {i} back", "refund|delivery", "low") for i in range(6)],
    ("C", "hello there", "Refund", "low"),
    ("D", "what is this", "other", ""),
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_columns_of_few_values_are_labels(encoding: str, tmp_path: Path) -> None:
    found = find_labels(written(tmp_path / "tickets.csv", "".join(f"{';'.join(row)}\n" for row in ROWS), encoding))
    assert (found.query, found.ignored, found.n_rows) == ("what was said", ("id",), 17)
    prompts = [(prompt.name, prompt.labels) for prompt in found.prompts]
    assert prompts == [("topic", ("delivery", "refund", "Refund", "other")), ("urgency", ("high", "low"))]
    assert found.prompts[0].note == "labels given 23 times in the data; rare: Refund (1), other (1)"
    rare, alike = found.remarks
    assert "topic: rare labels" in rare
    assert alike == f"topic: 'refund' and 'Refund' {ALIKE}: correct the data"


def test_numbers_that_came_through_other_programs_are_noticed(tmp_path: Path) -> None:
    rows = "".join(f"text {n},{label}\n" for n, label in enumerate(["-1", "1", "-1.0", "1.5", "nan"] * 3))
    missing, alike = find_labels(written(tmp_path / "rows.csv", f"text,stars\n{rows}")).remarks
    assert missing == "stars: nan is no number: leave such rows out"
    assert alike == f"stars: '-1' and '-1.0' {ALIKE}: correct the data"


@cases(
    (["Home | Garden", "Toys"], ["Home | Garden", "Toys"]),
    (["a|b", "b"], ["a", "b"]),
    (["a|b", "b| c"], ["a", "b", "c"]),
    (["['a', \"it's\"]", "['b']"], ["a", "b", "it's"]),
    (["['a' 'b c']", '["\\u4f53\\u80b2", "\\ud83d\\ude00"]'], ["a", "b c", "体育", "😀"]),
    (["[27]", "[2 14]"], ["14", "2", "27"]),
    (["[a]", "[2026-11-29, 1.5]"], ["[2026-11-29, 1.5]", "[a]"]),
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_lists_and_bars_divide(cells: list[str], labels: list[str], ending: str, tmp_path: Path) -> None:
    table = pa.table({"query": [f"text {n}" for n in range(12)], "topic": [cells[n % 2] for n in range(12)]})
    path = tmp_path / f"rows.{ending}"
    pq.write_table(table, path) if ending == "parquet" else table.to_pandas().to_csv(path, index=False)
    assert sorted(find_labels(path).prompts[0].labels) == labels


def test_json_lines_say_their_labels(tmp_path: Path) -> None:
    text = '{"query": "a", "labels": {"x": "p", "y": ["q", "r"]}}\n\n{"query": "b", "labels": {"x": "s"}}\n'
    path = written(tmp_path / "rows.jsonl", text)
    found = {prompt.name: prompt.labels for prompt in find_labels(path).prompts}
    assert found == {"x": ("p", "s"), "y": ("q", "r")}
    path.write_text("nope\n")
    with pytest.raises(ConfigError, match="line 1 is not valid JSON"):
        find_labels(path)


@pytest.mark.parametrize("form", ["labels", "flat", "nested", "csv", "tab"])
@pytest.mark.parametrize("values", [[1, 2, 3], [True, False], [1.0, 2.5]])
def test_labels_may_be_numbers_and_truth_values(form: str, values: list[object], tmp_path: Path) -> None:
    objects: dict[str, Callable[[object], object]] = {
        "labels": lambda value: {"query": "a", "labels": {"stars": value}},
        "flat": lambda value: {"text": "a", "stars": value},
        "nested": lambda value: {"data": {"text": "a"}, "stars": value},
    }
    separator = "," if form == "csv" else "\t"
    lines = [json.dumps(objects[form](value)) if form in objects else f"a{separator}{value}" for value in values * 4]
    path = written(tmp_path / "rows", "\n".join(lines if form in objects else [f"text{separator}stars", *lines]))
    (prompt,) = find_labels(path, LabelledColumns(query="data.text" if form == "nested" else None)).prompts
    right = json.dumps(values).replace("1.0", "1")[1:-1].split(", ") if form in objects else list(map(str, values))
    assert (prompt.name, sorted(prompt.labels)) == ("stars", sorted(right))


def test_numbers_and_dates_are_no_texts(tmp_path: Path) -> None:
    rows = "".join(f"{n % 28 + 1}/6/1930 {n}:00,a light {n},{'no' if n % 2 else 'yes'}\n" for n in range(24))
    assert find_labels(written(tmp_path / "rows.csv", f"time,seen,y\n{rows}")).query == "seen"
    sizes = "".join(f"coat {n},{n % 13}.{n % 2},a\njeans {n},{n % 13}.{n % 2},b\n" for n in range(99))
    assert [p.name for p in find_labels(written(tmp_path / "a.csv", f"text,size,y\n{sizes}")).prompts] == ["y"]


@cases(
    ("", "has no header"),
    ("query,x\n", "has no rows"),
    ('query,x\n"a,1\nb,2\n', "line 2 is not valid CSV: .*close its quotes"),
    ("query,x\na,1\nb,2\n", "has no column of labels"),
    (
        "it is good,x\n" + "".join(f"it is {n} bad,y\nit was good,x\n" for n in range(3)),
        "first line is no header: 'x' is",
    ),
    (
        "age,job,y\n" + "".join(f"{n},cook,no\n{n + 90},clerk,yes\n" for n in range(50)),
        "has no column of texts: name it",
    ),
)
def test_rows_without_labels_are_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        find_labels(written(tmp_path / "rows.csv", text))


@cases(
    *((80, True, 0), (15, True, 0), (9, True, 1), (4, True, 2), (3, True, 3), (2, True, 4), (0.1, True, 4)),
    *((64, False, 3), (2, False, 4)),
)
def test_the_largest_model_that_fits_is_chosen(free_gb: float, on_gpu: bool, wanted: int) -> None:
    """1 GiB of the free memory is not for the model."""
    assert choose(int(free_gb * GB) - (1 << 30), on_gpu=on_gpu) == LARGEST_FIRST[wanted]


def test_a_model_that_fits_becomes_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [n_bytes for _, n_bytes in LARGEST_FIRST]
    assert sizes == sorted(sizes, reverse=True)
    monkeypatch.setattr("qcls_gguf.report.environment.free_memory", lambda: FreeMemory(True, 15 * GB, 14 * GB))
    config = loaded(draft("a=p,q", model=fitting_model()), tmp_path)
    assert config.model.hf_repo == LARGEST_FIRST[0][0]
    assert config.prompts[0].is_chat


def test_a_model_below_the_configuration_is_named_from_there(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "configs").mkdir()
    within, home, other = (tmp_path / name for name in ("models/小 model.gguf", "~model.gguf", "ollama:model.gguf"))
    for path, folder, named in (
        (within, tmp_path, "models/小 model.gguf"),
        (within, tmp_path / "configs", str(within)),
        (home, tmp_path, str(home)),
        (other, tmp_path, "./ollama:model.gguf"),
    ):
        if not path.exists():
            path.symlink_to(TINY)
        model = given_model(str(path), None, folder)
        assert model
        assert model.settings == {"path": named}
        assert find_model(loaded(draft("a=p,q", model=model), folder).model, offline=True) == path


@cases(
    *((label, "if none is mentioned") for label in ("none", "None", "N/A", "<none>", "not applicable", "ninguna")),
    *((label, "only if no other label fits") for label in ("other", "Others", "misc", "sonstige", "autre", "其他")),
    *((label, "if the text does not tell") for label in ("unknown", "unclear", "unbekannt", "desconocido")),
    *((label, "if the text takes no side") for label in ("neutral", "Neutre", "neutro")),
    *((label, "") for label in ("no", "dress", "another", "nonesuch", "unknown author")),
)
def test_labels_that_say_nothing_get_their_sentence(label: str, sentence: str, tmp_path: Path) -> None:
    (prompt,) = loaded(draft(f"topic=dress2,{label},jeans2"), tmp_path).prompts
    text = prompt.system or ""
    assert (f" Use '{label}' {sentence}." in text, text.count("Use '")) == (bool(sentence), bool(sentence))
    assert prompt.prior == "none"


@cases(
    (["红色连衣裙", "nike 女跑鞋", "dress"], "zh"),
    (["red dress", "jeans", "红色连衣裙"], "en"),
    (["赤いドレス", "青いジーンズ"], "en"),
    (["vestido rojo", "rotes Kleid", "платье"], "en"),
    (["123", "!!"], "en"),
)
def test_rows_are_asked_about_in_their_language(texts: list[str], language: str, tmp_path: Path) -> None:
    rows = [(text, label) for text in texts for label in ("a", "无") * 3]
    table = written(tmp_path / "rows.csv", "\n".join(["query,topic", *map(",".join, rows)]))
    objects = [{"query": text, "labels": {"topic": label}} for text, label in rows]
    for data in (table, write_rows(tmp_path / "rows.jsonl", objects)):
        found = find_labels(data)
        assert found.language == language
        new = replace(draft(), prompts=found.prompts, language=found.language)
        text = loaded(new, tmp_path).prompts[0].system or ""
        assert ("只输出列表中的一个标签。如果没有提到，输出“无”。" in text) == (language == "zh")
        assert ("Use '无' if none is mentioned." in text) == (language == "en")
