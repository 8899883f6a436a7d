"""Likely mistakes in prompts: each is told once, with its place and remedy; the bundled configurations have none."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from cases import cases, written
from chat_templates import CHATML, CHATS
from commands import invoked, printed, write_rows
from conftest import MakeModel
from gguf_parts import put_together, take_apart

from qcls_gguf import ConfigError, Model, ModelConfig, RuntimeConfig, load_config
from qcls_gguf.config.load import parse_config
from qcls_gguf.config.prompt import LikelyMistake, MistakeKind
from qcls_gguf.config.resources import config_names, config_path, embedded_model
from qcls_gguf.config.words import ALIKE
from qcls_gguf.prompts.chat import render_prompts
from qcls_gguf.prompts.likely_mistakes import CHECKS, TRAINED, digest, likely_mistakes
from qcls_gguf.prompts.prompt_set import compile_prompts

RUNTIME = RuntimeConfig(n_gpu_layers=0)
GOOD = "<|im_start|>user\none of [{labels}]: {query}<|im_end|>\n<|im_start|>assistant\ncolor:"


@pytest.fixture
def model(make_model: MakeModel) -> Iterator[Model]:
    with Model.open(ModelConfig(path=make_model()), RUNTIME) as model:
        yield model


def found(model: Model, prompt: dict[str, Any], top: dict[str, Any] | None = None) -> tuple[LikelyMistake, ...]:
    values = {"name": "color", "labels": ["red", "blue", "none"], **prompt}
    text = yaml.safe_dump({"prompts": [values], **(top or {})}, allow_unicode=True)
    config = parse_config(text, folder=Path())
    prompts = compile_prompts(render_prompts(config.prompts, model, config.model).prompts, model)
    return likely_mistakes(config.prompts, prompts, model, config)


def test_a_good_prompt_has_none(model: Model) -> None:
    assert found(model, {"prompt_template": GOOD}) == ()
    chat = {"system": "one of [{labels}]", "user": "{query}", "answer_cue": "{name}:"}
    assert found(model, chat, {"model": {"chat_template": CHATML}}) == ()


def text(old: str, new: str) -> dict[str, Any]:
    return {"prompt_template": GOOD.replace(old, new)}


def labels(*labels: str) -> dict[str, Any]:
    return {"prompt_template": GOOD, "labels": list(labels)}


SAME = f"{ALIKE}, and share their probability"
DECOMPOSED = "has accents as characters of their own (NFD), with other tokens than those of most texts"
OF_LABELS = ("label_ends", "labels_alike", "descriptions")
PLACES = {"space": "label_prefix", **dict.fromkeys(OF_LABELS, "labels")}
"""the settings that mistakes are in, by kind; all others are in the text"""


@cases(
    (text("<|im_start|>user", "<|imstart|>user"), "control_token", "<|imstart|> is no token"),
    (text("<|im_start|>user", "<|start_header_id|>user"), "control_token", "<|start_header_id|> is no token"),
    (text("<|im_start|>user", "◁user▷user"), "control_token", "◁user▷ is no token"),
    (text("{query}", "{query} {text}"), "literal_slot", "has {text}, which is no slot and stays as it is: slots"),
    (text("{query}", "{{query}}"), "literal_slot", "has {{query}}, whose outer braces stay around the query"),
    (text("color:", "color: "), "space", "begins with a space, and the text ends in one: end the text"),
    # one line break is the block scalar's
    (text("color:", "\n"), "space", "begins with a space, and the text ends a line: give label_prefix"),
    ({"prompt_template": GOOD, "label_prefix": ""}, "space", "is empty, so that 'red' follows ':' directly: give"),
    (labels("red", "bl\u200bue"), "label_ends", "'bl\\u200bue' has U+200B, which is not seen, in its tokens"),
    (labels("red", "blue "), "label_ends", "'blue ' has white space at its ends, a part of its tokens"),
    (labels("red", "blue", "re\u200bd"), "labels_alike", f"'red', 're\\u200bd' {SAME}"),
    (labels("1", "2", "1.0"), "labels_alike", f"'1', '1.0' {SAME}"),
    (text("one of", "une\u0301 of"), "decomposed", DECOMPOSED),
    (text("[{labels}]", "[r-ish]"), "labels_not_named", "names none of the 3 labels, so the model cannot know"),
    (
        {"prompt_template": GOOD, "labels": {"red": "like a rose", "blue": None}},
        "descriptions",
        "are described, and the text does not say so: write {labels_described} in place of {labels}",
    ),
)
def test_a_likely_mistake_has_a_place_and_remedy(prompt: dict[str, Any], kind: str, what: str, model: Model) -> None:
    (mistake,) = (each for each in found(model, prompt) if each.kind == kind)
    assert mistake.place == f"prompts.color.{PLACES.get(kind, 'prompt_template')}"
    assert mistake.what.startswith(what)
    assert mistake.prompts == ("color",)
    assert str(mistake) == f"{mistake.place}: {mistake.what} [{kind}]"
    assert found(model, prompt, {"ignore_warnings": ["all"]}) == ()
    assert kind not in {each.kind for each in found(model, prompt, {"ignore_warnings": [kind]})}


def test_a_file_that_names_no_pre_tokeniser_is_told(make_model: MakeModel) -> None:
    with pytest.warns(UserWarning, match="has no tokenizer.ggml.pre: llama.cpp splits text by its default rules"):
        Model.open(ModelConfig(path=make_model(pre="")), RUNTIME).close()


@pytest.mark.parametrize("vocab", ["bpe", "spm"])
@pytest.mark.parametrize("end", [" ", "\n", "  ", ":", "=", "x", " \n", "<|im_end|>", "category: ", "类别：", "7"])
@pytest.mark.parametrize("prefix", ["", " ", "\n"])
def test_what_a_warning_of_spaces_advises_is_accepted(vocab: str, end: str, prefix: str, make_model: MakeModel) -> None:
    prompt = {"prompt_template": "one of [{labels}]: {query}\nlabel" + end, "label_prefix": prefix}
    with Model.open(ModelConfig(path=make_model("llama", vocab=vocab)), RUNTIME) as model:
        try:
            mistakes = found(model, prompt)
        except ConfigError:
            return  # it is refused as it is
        for mistake in mistakes:
            if mistake.kind == "space" and (advice := re.search('give label_prefix: "(.*?)"', mistake.what)):
                assert "space" not in {other.kind for other in found(model, {**prompt, "label_prefix": advice[1]})}


@cases("[/INST]", "<|start_of_role|>", "<turn|>", "[|system|]", "◁user▷", "<bot>", "]~b]", "[e~[")
@pytest.mark.parametrize("texts", [{}, {"system": "One of [{labels}]."}], ids=["user", "system and user"])
def test_marks_of_chats_that_are_no_tokens_are_named(mark: str, texts: dict[str, str], model: Model) -> None:
    top = {"model": {"chat_template": CHATML.replace("<|im_end|>", mark)}}
    told = found(model, {"user": "q: {query}", **texts}, top)
    (mistake,) = (mistake for mistake in told if mistake.kind == "control_token")
    assert mark in mistake.what
    assert "<|im_start|>" not in mistake.what


@pytest.mark.parametrize(("mark", "is_told"), [("[INST]", False), ("[/INST]", False), ("[THINK]", True)])
def test_instruction_marks_are_plain_text_to_old_vocabularies(mark: str, is_told: bool, make_model: MakeModel) -> None:
    top = {"model": {"chat_template": CHATML.replace("<|im_end|>", mark)}}
    with Model.open(ModelConfig(path=make_model("llama", vocab="spm")), RUNTIME) as model:
        told = [mistake.what for mistake in found(model, {"user": "{query}"}, top) if mistake.kind == "control_token"]
    assert any(mark in what for what in told) == is_told, told


def test_white_space_that_a_template_trims_is_told(model: Model) -> None:
    top = {"model": {"chat_template": CHATML.replace("message.content", "message.content | trim")}}
    for user, is_told in ((" {query}", True), ("{query}\n\n", True), ("{query}\n", False)):
        mistakes = [mistake.what for mistake in found(model, {"user": user}, top) if mistake.kind == "chat_template"]
        assert any("trims" in what for what in mistakes) == is_told


@pytest.mark.parametrize("labels", [["red", "red dress", "none"], ["red", "blue", "none"]])
def test_a_text_that_ends_turns_otherwise_than_the_file_is_told(labels: list[str], make_model: MakeModel) -> None:
    with Model.open(ModelConfig(path=make_model(control_tokens=("<|eot_id|>",))), RUNTIME) as model:
        prompt = {"prompt_template": GOOD.replace("<|im_end|>", "<|eot_id|>"), "labels": labels}
        told = [mistake.what for mistake in found(model, prompt) if mistake.kind == "label_end"]
        assert len(told) == (labels[1] == "red dress")
        assert all("<|im_end|>, and turns of the text with <|eot_id|>: set it" in what for what in told)
        assert not any(mistake.kind == "label_end" for mistake in found(model, {**prompt, "label_end": "<|eot_id|>"}))


def test_chatml_for_a_model_with_another_chat_format(make_model: MakeModel) -> None:
    with Model.open(ModelConfig(path=make_model("llama", **CHATS["phi"].options)), RUNTIME) as model:
        (mistake,) = found(model, {"prompt_template": GOOD})
        assert mistake.kind == "chat_format"
        what = "is ChatML (<|im_start|>), and not the chat format of this model, which has <|sys"
        assert mistake.what.startswith(what)
        assert mistake.what.endswith(": write system and user instead")
        assert found(model, {"system": "[{labels}]", "user": "{query}"}) == ()


def test_a_beginning_that_the_chat_template_writes_and_the_text_does_not(make_model: MakeModel) -> None:
    template = "{{ bos_token }}" + CHATML
    for add_bos, kinds in ((False, ["beginning"]), (True, [])):
        with Model.open(ModelConfig(path=make_model(chat_template=template, add_bos=add_bos)), RUNTIME) as model:
            mistakes = found(model, {"prompt_template": GOOD})
            assert [each.kind for each in mistakes] == kinds
            assert found(model, {"prompt_template": f"{model.bos_text}{GOOD}"}) == ()
            assert found(model, {"system": "[{labels}]", "user": "{query}"}) == ()
    assert not mistakes


def test_the_same_mistake_of_several_prompts_is_told_once(model: Model) -> None:
    names = ("a", "b", "c")
    prompts = [{"name": name, "labels": ["red", "blue"]} for name in names]
    config = parse_config(yaml.safe_dump({"prompts": prompts, "prompt_template": GOOD + "{x}:"}), folder=Path())
    (mistake,) = likely_mistakes(config.prompts, compile_prompts(config.prompts, model), model, config)
    assert mistake.prompts == names
    assert mistake.place == "prompts.a.prompt_template (and of 2 more)"


def test_the_embedded_model_knows_its_own_prompts_only() -> None:
    with Model.open(ModelConfig(path=embedded_model()), RUNTIME) as model:
        for name in config_names():
            config = load_config(config_path(name))
            compiled = compile_prompts(config.prompts, model)
            assert likely_mistakes(config.prompts, compiled, model, config) == (), name
        (mistake,) = found(model, {"prompt_template": GOOD})
    assert (mistake.kind, mistake.place) == ("untrained", "prompts.color")


def test_the_digests_of_the_trained_prompts() -> None:
    prompts = [prompt for name in ("fashion-8", "fashion-8-joint") for prompt in load_config(config_path(name)).prompts]
    assert {digest(prompt) for prompt in prompts} == TRAINED
    assert len(TRAINED) == 16
    assert digest(prompts[0].changed(label_prefix="")) not in TRAINED


def test_every_kind_has_a_check() -> None:
    kinds = {kind for check in CHECKS for kind in get_args(MistakeKind) if f'"{kind}"' in inspect.getsource(check)}
    assert kinds == {*get_args(MistakeKind)}
    with pytest.raises(ConfigError, match=r"ignore_warnings\[0\]: 'untraind' should be 'all', 'control_token'"):
        parse_config("prompts: []\nignore_warnings: [untraind]", folder=Path())


def test_commands_tell_them_once_and_keep_them(tmp_path: Path) -> None:
    tree = {"prompts": [{"name": "c", "prompt_template": GOOD, "labels": ["red", "blue"]}]}
    path = written(tmp_path / "config.yaml", yaml.safe_dump(tree))
    page = tmp_path / "page.html"
    data = write_rows(tmp_path / "rows.jsonl", [{"query": f"{i}", "labels": {"c": "red"}} for i in range(3)])
    line = "qcls-gguf: warning: prompts.c: the embedded model answers other prompts than those of fashion-8 and"
    run, evaluate = ["run", "-q", "red"], ["eval", "--data", data, "-f", "json", "--html", page]
    for words in (run, [*run, "--quiet"], evaluate, ["inspect", "--quiet", "-f", "json"]):
        done = invoked(*words, "-c", path)
        assert done.exit_code == 0, done.stderr
        assert done.stderr.count(line) == (words[0] != "inspect" and "--quiet" not in words)
        if "json" in words:
            (warning,) = json.loads(done.stdout)["warnings"]
            assert (warning["kind"], warning["prompts"]) == ("untrained", ["c"])
    assert "nearly at random" in page.read_text(encoding="utf-8")
    shown = printed("inspect", "-c", path, "--quiet")
    assert "warnings" in shown
    assert "[untrained]" in shown
    path.write_text(path.read_text() + "ignore_warnings: [untrained]\n")
    assert "warning" not in invoked("run", "-q", "red", "-c", path).stderr


@pytest.mark.parametrize(("pooling", "purpose"), [(3, "embeddings"), (4, "ranking texts")])
def test_a_model_of_another_purpose_is_told(pooling: int, purpose: str, make_model: MakeModel, tmp_path: Path) -> None:
    file = take_apart(make_model())
    file.keys.append((b"qwen3.pooling_type", 4, pooling))
    path = written(tmp_path / "other.gguf", put_together(file))
    said = rf"was made for {purpose} \(qwen3\.pooling_type is {pooling}\), .* choose the model that it was made from"
    with pytest.warns(UserWarning, match=said), Model.open(ModelConfig(path=path), RuntimeConfig(try_model=False)):
        pass
