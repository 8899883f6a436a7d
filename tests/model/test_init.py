"""`init` as its users run it, and the answer cues that it and `eval` try."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from chat_templates import CHATS
from commands import invoked, write_rows
from conftest import MakeModel
from evaluations import evaluated

from qcls_gguf import Classifier, ConfigError, load_config
from qcls_gguf.cli.app import schema_text
from qcls_gguf.config.heads_file import Head, heads_content
from qcls_gguf.data.labelled import LabelledColumns
from qcls_gguf.evaluation.cues import CUES, best_cue
from qcls_gguf.evaluation.records import CueTrial


def init(*arguments: object) -> tuple[int, str]:
    done = invoked("init", *arguments)
    return done.exit_code, done.stderr


def labels(path: Path, query: str) -> dict[str, str]:
    """What a configuration answers; warnings are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Classifier.from_config(path) as classifier:
            assert classifier.warnings == ()
            return classifier.classify(query).labels


MODELS = {"qwen3": "qwen3", "gemma": "llama", "qwen35": "qwen35", "gemma4": "gemma4", "granite4": "granitehybrid"}
"""chat templates, and small models of the architecture that comes with them"""


@pytest.fixture(params=[*MODELS, "lfm2", "none"])
def model(request: pytest.FixtureRequest, make_model: MakeModel) -> Path:
    if request.param == "none":
        return make_model()
    chat, name = CHATS[request.param], MODELS.get(request.param, request.param)
    return make_model(name, chat_template=chat.template, control_tokens=chat.control_tokens, add_bos=chat.add_bos)


def test_labels_to_a_configuration_that_labels(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--labels", "topic=delivery,refund,none", "--labels", "who=boy,girl", "-m", str(model)]
    code, said = init(*options)
    assert code == 0, said
    found = labels(tmp_path / "config.yaml", "where is my parcel")
    assert list(found) == ["topic", "who"]
    schema = (tmp_path / "config.yaml").read_text().partition("\n")[0].partition("$schema=")[2]
    assert json.loads((tmp_path / schema).read_bytes()) == json.loads(schema_text())
    assert found["who"] in ("boy", "girl")
    before = (tmp_path / "config.yaml").read_text()
    code, said = init(*options)
    assert code == 2
    assert "--out config.yaml: is there already: name another file, or overwrite it with --force" in said
    assert (tmp_path / "config.yaml").read_text() == before
    assert init(*options, "--force")[0] == 0


@pytest.fixture
def chat_model(make_model: MakeModel) -> Path:
    chat = CHATS["qwen3"]
    return make_model("llama", chat_template=chat.template, control_tokens=chat.control_tokens)


def test_several_prompts_share_all_but_their_last_words(chat_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "joint.yaml"
    assert init("--labels", "a=p,q", "--labels", "b=p,q", "-m", chat_model, "-o", out)[0] == 0
    with Classifier.from_config(out) as classifier:
        fed = classifier.plan_counts("red dress").n_tokens_new
        longer = classifier.plan_counts("red dress red dress").n_tokens_new
        single = len(classifier.engine.model.tokenize(" red dress", parse_special=False))
    assert longer - fed == single, "a query is fed once for both prompts"


def test_a_source_is_needed_and_sources_exclude_each_other(tmp_path: Path) -> None:
    out = str(tmp_path / "x.yaml")
    for arguments, words in (
        ([], "give --labels NAME=LABEL,… or --data FILE"),
        (["--labels", "a=b,c", "--data", "rows.csv"], "--labels and --data are both given"),
        (["--from", "mission"], "--from was removed: copy the configuration"),
        (["--labels", "a=b,c", "--label-column", "x"], "--label-column and --ignore-columns are for --data"),
        (["--labels", "a=b,c", "-m", "a", "-hf", "b/c"], "--model and --hf-repo are both given"),
        (["--labels", "a=b,c", "-hf", "b/c", "--family", "lfm2"], "--hf-repo and --family are both given"),
    ):
        code, said = init(*arguments, "--out", out)
        assert code == 2
        assert words in said
    assert not Path(out).exists()


PROMPTS: list[dict[str, Any]] = [
    {"name": "color", "system": "{name}: one of [{labels}]", "user": "{query}", "labels": ["red", "light blue"]},
    {"name": "whole", "prompt_template": "{query} is", "labels": ["new", "old"]},
    {
        "name": "size",
        "user": "{query}?",
        "labels": ["small", "large"],
        "answer_cue": "Answer:",
        "prior": "content_free",
    },
]
ROWS = [
    {"query": f"{word} dress {i}", "labels": {"color": word, **({"size": "small"} if i % 3 else {})}}
    for i in range(10)
    for word in ("red", "light blue")
]


def write(path: Path, model: Path, prompts: list[dict[str, Any]]) -> Path:
    path.write_text(yaml.safe_dump({"model": {"path": str(model)}, "runtime": {"n_threads": 1}, "prompts": prompts}))
    return path


def test_a_tried_cue_is_as_good_as_a_configured_one(chat_model: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", ROWS)
    tried = evaluated(write(tmp_path / "c.yaml", chat_model, PROMPTS), rows, modes=("tree",), cues=True)["cues"]
    ways = {name: [(cue["answer_cue"], cue["prior"]) for cue in found] for name, found in tried.items()}
    every = {(cue, prior) for cue in CUES for prior in ("none", "content_free")}
    assert {name: (found[0], len(found), set(found)) for name, found in ways.items()} == {
        "color": (("{name}:", "none"), 8, every),
        "size": (("Answer:", "content_free"), 8, every),
    }
    for cue, prior in every:
        chosen = {"answer_cue": cue, "label_prefix": " " if cue else "", "prior": prior}
        prompts = [{**prompt, **chosen} for prompt in (PROMPTS[0], PROMPTS[2])]
        modes = evaluated(write(tmp_path / "one.yaml", chat_model, prompts), rows, modes=("tree",))["modes"]
        for name, found in modes["tree" if prior == "none" else "calibrated"]["prompts"].items():
            one = tried[name][ways[name].index((cue, prior))]
            assert (one["n_rows"], one["accuracy"]) == (found["n_rows"], found["accuracy"])
            assert one["accuracy_ci"] == pytest.approx(found["accuracy_ci"])
            assert one["log_loss"] == pytest.approx(found["log_loss"], abs=1e-3)
            assert one["gain"] == pytest.approx(one["accuracy"] - tried[name][0]["accuracy"])
    assert tried["color"][0]["standard_error"] == 0


def test_cues_are_tried_without_the_configured_heads(chat_model: Path, tmp_path: Path) -> None:
    rows, path = write_rows(tmp_path / "rows.jsonl", ROWS), write(tmp_path / "c.yaml", chat_model, PROMPTS)
    before = evaluated(path, rows, modes=("tree",), cues=True)["cues"]
    with Classifier.from_config(path) as classifier:
        prompt, facts = classifier.config.prompts[0], classifier.engine.model.facts
        weight = np.zeros((facts.n_embd, len(prompt.labels)), np.float32)
        head = Head(depth=facts.n_layer, weight=weight, bias=weight[0])
        content = heads_content(classifier.model.sha256, facts.n_layer, facts.n_embd, {prompt.name: (prompt, head)})
    (tmp_path / "heads.npz").write_bytes(content)
    path.write_text(f"{path.read_text()}heads: heads.npz\n")
    assert evaluated(path, rows, modes=("tree",), cues=True)["cues"] == before


def test_prompts_without_cues_have_none_to_try(chat_model: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{"query": "a", "labels": {"whole": "new"}}])
    with pytest.raises(ConfigError, match="`cues`: no prompt has system or user texts"):
        evaluated(write(tmp_path / "c.yaml", chat_model, PROMPTS[1:2]), rows, modes=("tree",), cues=True)


def cue(text: str, accuracy: float, gain: float, standard_error: float) -> CueTrial:
    return CueTrial(
        answer_cue=text,
        label_prefix=" ",
        prior="none",
        n_rows=50,
        accuracy=accuracy,
        accuracy_ci=None,
        log_loss=1.0,
        gain=gain,
        standard_error=standard_error,
    )


@pytest.mark.parametrize(
    ("gains", "standard_error", "best"),
    [((0.1, 0.3), 0.1, "label:"), ((0.1, 0.3), 0.3, "{name}:"), ((-0.1, 0.1), 0.01, "{name}:")],
)
def test_another_cue_is_chosen_for_more_than_a_standard_error(
    gains: tuple[float, float], standard_error: float, best: str
) -> None:
    tried = {str(gain): (cue("{name}:", 0.5, 0, 0), cue("label:", 0.5 + gain, gain, standard_error)) for gain in gains}
    found, prior, why = best_cue(tried)
    assert (found, prior) == (best, "none")
    assert why == f"accuracy on 50 rows: '{{name}}:' 50.0 %, 'label:' {50 + 50 * sum(gains):.1f} %"


def test_init_tries_the_cues_on_the_rows(chat_model: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "c.yaml", tmp_path / "rows.csv"
    rows = [f"{word} dress {i},{word}" for i in range(20) for word in ("red", "blue")]
    data.write_text("\n".join(["text,color", *rows]))
    code, said = init("--data", data, "-m", chat_model, "-o", out, "--cues")
    assert code == 0, said
    tried = evaluated(out, data, modes=("tree",), cues=True, columns=LabelledColumns(query="text"))["cues"]["color"]
    assert re.search(r"# accuracy on 40 rows: '\{name\}:' with the prior \d", out.read_text())
    (prompt,) = load_config(out).prompts
    assert (prompt.cue, prompt.label_prefix) == (tried[0]["answer_cue"], tried[0]["label_prefix"])
    assert max(each["gain"] - each["standard_error"] for each in tried) <= 0, "the best cue is the configured one now"
