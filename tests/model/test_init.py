"""`init` as its users run it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import cases, written
from chat_templates import CHATS
from commands import invoked
from conftest import MakeModel

from qcls_gguf import Classifier
from qcls_gguf.config.load import config_json_schema, parse_config
from qcls_gguf.data.labelled import PLAIN_COLUMNS
from qcls_gguf.drafting.draft import Draft, DraftModel, DraftPrompt, draft_text
from qcls_gguf.learning.search import search
from qcls_gguf.opening import ClassifierOpener

LABELS = ("red", "blue", "none")


def init(*arguments: object) -> tuple[int, str]:
    done = invoked("init", *arguments)
    return done.exit_code, done.stderr


MODELS = {"qwen3": "qwen3", "gemma": "llama", "qwen35": "qwen35", "gemma4": "gemma4", "granite4": "granitehybrid"}
"""chat templates, and small models of the architecture that comes with them"""


@pytest.fixture(params=[*MODELS, "lfm2", "none"])
def model(request: pytest.FixtureRequest, make_model: MakeModel) -> Path:
    if request.param == "none":
        return make_model()
    return make_model(MODELS.get(request.param, request.param), **CHATS[request.param].options)


def test_labels_to_a_configuration_that_labels(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--labels", "topic=delivery,refund,none", "--labels", "who=boy,girl", "-m", str(model)]
    code, said = init(*options)
    assert code == 0, said
    with Classifier.from_config("config.yaml") as classifier:  # without a warning, which would be an error here
        assert classifier.warnings == ()
        found = classifier.classify("where is my parcel").labels
    assert list(found) == ["topic", "who"]
    schema = (tmp_path / "config.yaml").read_text().partition("\n")[0].partition("$schema=")[2]
    assert json.loads((tmp_path / schema).read_bytes()) == config_json_schema()
    assert found["who"] in ("boy", "girl")
    before = (tmp_path / "config.yaml").read_text()
    code, said = init(*options)
    assert code == 2
    assert "--out config.yaml: is there already: name another file, or overwrite it with --force" in said
    assert ((tmp_path / "config.yaml").read_text(), init(*options, "--force")[0]) == (before, 0)


@pytest.fixture
def chat_model(make_model: MakeModel) -> Path:
    return make_model("llama", **CHATS["qwen3"].options)


@pytest.mark.parametrize(("small_bytes", "n_copies"), [(0, 1), (2_000_000_000, 2)], ids=["large", "small"])
def test_several_prompts_share_all_but_their_last_words_with_a_large_model(
    small_bytes: int, n_copies: int, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qcls_gguf.drafting.draft._SMALL_BYTES", small_bytes)
    out = tmp_path / "joint.yaml"
    assert init("--labels", "a=p,q", "--labels", "b=p,q", "-m", chat_model, "-o", out)[0] == 0
    with Classifier.from_config(out) as classifier:
        fed = classifier.check("red dress").n_tokens_new
        longer = classifier.check("red dress red dress").n_tokens_new
        single = len(classifier.engine.model.tokenize(" red dress", parse_special=False))
    assert longer - fed == n_copies * single, "a query is fed once for both prompts, or for each"


@cases(
    ({}, LABELS),
    ({"cue": "Answer:"}, LABELS),
    ({"has_rules": False}, LABELS[::-1]),
    ({"with_prior": ("color",)}, LABELS),
    ({"with_prior": ("color",)}, ("blue", "none", "red")),
)
def test_rows_choose_the_wording_that_answers_them(
    change: dict[str, Any], labels: tuple[str, ...], chat_model: Path, tmp_path: Path
) -> None:
    """The rows' labels are the answers of one wording, but for every tenth row."""
    queries = [f"{word} dress {i}" for i in range(40) for word in ("red", "blue", "plain")]
    model, prompt = DraftModel(settings={"path": str(chat_model)}, why=""), DraftPrompt(name="color", labels=LABELS)
    draft = Draft(prompts=(prompt,), model=model, source="")
    taught = replace(draft, prompts=(replace(prompt, labels=labels),), **change)

    def answers(draft: Draft) -> list[str]:
        with Classifier.from_config(parse_config(draft_text(draft, tmp_path), folder=tmp_path)) as classifier:
            return [classifier.classify(query).labels["color"] for query in queries]

    given = [("none" if place % 10 == 0 else label) for place, label in enumerate(answers(taught))]
    data = written(tmp_path / "rows.csv", "\n".join(["query,color", *map(",".join, zip(queries, given, strict=True))]))
    with ClassifierOpener() as opener:
        chosen, remarks = search(draft, tmp_path, data, PLAIN_COLUMNS, opener)
    n_right, n_taught = (sum(map(str.__eq__, answers(d), given)) for d in (chosen, taught))
    assert n_right >= n_taught - 6, remarks  # within a standard error of the best
    stated = re.search(r"([0-9.]+)% of rows expected right", chosen.prompts[0].note)
    assert stated
    assert abs(float(stated[1]) / 100 - n_taught / 120) < 0.12


def test_init_writes_what_rows_say(chat_model: Path, tmp_path: Path) -> None:
    """--quick loads no model; too few rows choose nothing. Long texts get a higher limit."""
    out, data = tmp_path / "c.yaml", tmp_path / "rows.csv"
    options = ("--data", data, "-m", chat_model, "-o", out, "--force")
    for n, words in ((20, "of rows expected right ("), (19, "57 rows can be used: too few to choose a wording by")):
        rows = [f"{word} {i}{' so' * 300 * (n < 20)},{word}" for i in range(n) for word in ("red", "blue", "none")]
        data.write_text("\n".join(["query,color", *rows, "a coat,"]))
        code, said = init(*options)
        assert (code, words in said, "1 row cannot be used, as line" in said) == (0, True, True)
        assert f"qcls-gguf learn -c {out} --data" in said, "rows that chose a wording do not measure it"
        written = " ".join(out.read_text().replace("#", "").split())
        assert ("expected right" in said) == ("expected right" in written) == (n == 20)
        assert ("max_query_tokens: 256 long_queries: middle" in written) == (n < 20)
        quick = init(*options, "--quick")[1]
        assert "expected right" not in quick
        assert f"qcls-gguf eval -c {out} --data" in quick
