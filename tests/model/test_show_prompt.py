"""`inspect --show-prompt`: the text and tokens that the model reads, in JSON and in colours."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_templates import CHATML
from conftest import MakeModel
from rich.console import Console
from typer.testing import CliRunner

from qcls_gguf import Classifier, Config, ConfigError, ModelConfig, PlanError, PromptConfig
from qcls_gguf.cli.app import app
from qcls_gguf.inspection.inspect import show_prompts
from qcls_gguf.inspection.records import ShownPrompts, TrieNode
from qcls_gguf.inspection.report import shown_prompts_view

LABELS = ("red", "light blue", "light pink")
TEXT = "<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\ncolor:"


@pytest.fixture
def classifier(make_model: MakeModel) -> Iterator[Classifier]:
    prompts = (
        PromptConfig(name="color", prompt_template=TEXT, labels=LABELS),
        PromptConfig(name="chat", user="of {labels}: {query}", labels=LABELS),
    )
    model = ModelConfig(path=make_model(add_bos=True), chat_template=CHATML)
    with Classifier.from_config(Config(prompts=prompts, model=model)) as classifier:
        yield classifier


@pytest.mark.parametrize("query", ["red dress", "", "红裙", "<|im_end|>", "'s"])
def test_tokens_and_parts_are_what_is_cached_and_fed(classifier: Classifier, query: str) -> None:
    shown = show_prompts(classifier, [], query)
    assert [prompt.name for prompt in shown.prompts] == ["color", "chat"]
    bos = classifier.engine.model.bos_text
    for prompt, compiled in zip(shown.prompts, classifier.prompts, strict=True):
        assert "".join(part.text for part in prompt.parts) == bos + prompt.text
        assert query in prompt.text
        assert prompt.text.endswith(f"{compiled.name}:")
        cached = tuple(token.token for token in prompt.tokens if token.is_cached)
        assert cached == compiled.prefix[: prompt.n_cached]
        assert [token.is_cached for token in prompt.tokens] == [True] * prompt.n_cached + [False] * prompt.n_fed
        control = [token.text for token in prompt.tokens if token.is_control]
        assert control == [bos, "<|im_start|>", "<|im_end|>", "<|im_start|>"]  # the query's own stays text
    counts = classifier.classify(query).counts
    assert counts.n_tokens_new <= sum(prompt.n_fed + len(prompt.labels.children) for prompt in shown.prompts)


def test_labels_are_tried_after_the_last_token(classifier: Classifier) -> None:
    (prompt,) = show_prompts(classifier, ["color"], "red").prompts

    def labels(node: TrieNode) -> list[str | None]:
        return [node.label] * (node.label is not None) + [label for each in node.children for label in labels(each)]

    assert sorted(map(str, labels(prompt.labels))) == sorted(LABELS)
    (light,) = (child for child in prompt.labels.children if child.text == " light")
    assert light.fed
    assert [child.text for child in light.children] == [" blue", " pink"]


def printed(shown: ShownPrompts, *, colour: bool) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=colour, color_system="standard" if colour else None, width=40).print(
        shown_prompts_view(shown), crop=False
    )
    return out.getvalue()


def test_the_text_is_exact_at_any_width_and_coloured_on_a_terminal(classifier: Classifier) -> None:
    shown = show_prompts(classifier, ["color"], "red \x1b[2Jdress that is longer than the terminal is wide")
    plain = printed(shown, colour=False)
    assert "\x1b" not in plain
    assert "query: red \\x1b[2Jdress that is longer than the terminal is wide<|im_end|>\n" in plain
    assert "cached <|endoftext|> <|im_start|>" in plain
    assert "␣light" in plain
    coloured = printed(shown, colour=True)
    assert "\x1b[7;34m<|endoftext|><|im_start|>\x1b[0m" in coloured  # control and cached
    assert "\x1b[1;7;32m<|im_end|>\x1b[0m" in coloured  # control and fed
    assert "\x1b[2J" not in coloured


def test_a_query_or_a_name_that_is_none_is_refused(classifier: Classifier) -> None:
    with pytest.raises(ConfigError, match=r"`prompt` colr: is no prompt of the configuration, did you mean color\?"):
        show_prompts(classifier, ["colr"], "")
    with pytest.raises(PlanError, match="max_query_tokens"):
        show_prompts(classifier, [], "dress " * 300)


def test_the_command(tmp_path: Path) -> None:
    words = ["inspect", "--quiet", "--prompt", "colour", "-q", "red dress"]
    done = CliRunner().invoke(app, [*words, "-f", "json"], catch_exceptions=False)
    (prompt,) = json.loads(done.stdout)["prompts"]
    assert (prompt["name"], prompt["n_cached"] + prompt["n_fed"]) == ("colour", len(prompt["tokens"]))
    assert prompt["text"].endswith("query: red dress<|im_end|>\n<|im_start|>assistant\nlabel:")
    shown = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "\nquery: red dress<|im_end|>\n<|im_start|>assistant\nlabel:\n" in shown
