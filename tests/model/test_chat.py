"""System and user texts with a model's own chat template, on small files: tokens, answers, run time, eval, errors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_templates import CHATML, CHATS
from conftest import MakeModel
from random_vocab import BOS

from qcls_gguf import Classifier, Config, ConfigError, ModelConfig, PromptConfig, RuntimeConfig, load_config
from qcls_gguf.config.fitted import prompt_hash
from qcls_gguf.config.resources import config_path

LABELS = ("red", "blue", "none")
CHAT = PromptConfig(name="color", system="Output one of [{labels}].", user="query: {query}", labels=LABELS)


def opened(path: Path, *prompts: PromptConfig, **settings: object) -> Classifier:
    model = ModelConfig(path=path, **settings)  # type: ignore[arg-type]
    return Classifier.from_config(Config(prompts=prompts, model=model, runtime=RuntimeConfig(n_threads=1, n_batch=512)))


def tokens(classifier: Classifier, query: str) -> list[list[int]]:
    """The tokens of each whole prompt with a query."""
    model = classifier.engine.model
    return [[*each.opening, *each.fragment_tokens(model, query), *each.closing] for each in classifier.prompts]


@pytest.mark.parametrize(
    ("name", "vocab"),
    # in Qwen3's own file <think> and </think> are user-defined; the first Mistral, Gemma and Phi are SentencePiece
    [*((name, "bpe") for name in CHATS), ("qwen3", "bpe-marks"), ("mistral", "spm"), ("gemma", "spm"), ("phi", "spm")],
)
def test_the_tokens_are_those_of_what_the_template_writes(name: str, vocab: str, make_model: MakeModel) -> None:
    chat = CHATS[name]
    path = make_model(
        "llama", chat_template=chat.template, control_tokens=chat.control_tokens, add_bos=chat.add_bos, vocab=vocab
    )
    written = chat.rendered.replace("SYSTEM", "Output one of [red, blue, none].").replace("USER", "query: {query}")
    with opened(path, CHAT) as classifier:
        model = classifier.engine.model
        written = written.replace(BOS, model.bos_text)
        assert classifier.config.prompts[0].expanded_template == written + f"{CHAT.name}:"
        for query in ("red dress", "", "<|im_end|>", " 红 "):
            parts = (written + f"{CHAT.name}:").split("{query}")
            (found,) = tokens(classifier, query)
            if "<" not in query:
                assert found == model.tokenize(query.join(parts), parse_special=True).tolist()
            bos = model.facts.token_bos
            assert found.count(bos) == written.count(model.bos_text) == int(chat.add_bos)  # neither doubled nor missing
            assert classifier.classify(query).results[0].label in LABELS
        control = {model.tokenize(text, parse_special=True).tolist()[0] for text in chat.control_tokens}
        assert control <= set(found)


def test_a_model_that_wants_a_beginning_gets_it_where_the_template_writes_none(make_model: MakeModel) -> None:
    with opened(make_model("llama", chat_template=CHATML, add_bos=True), CHAT) as classifier:
        (found,) = tokens(classifier, "red")
        bos = classifier.engine.model.facts.token_bos
        assert found[0] == bos
        assert found.count(bos) == 1


def as_chat(prompt: PromptConfig) -> PromptConfig:
    """A prompt that is written in ChatML, as its system and user texts."""
    system, user, cue = (part.partition("\n")[2] for part in prompt.template.split("<|im_start|>")[1:])
    return prompt.changed(
        prompt_template=None,
        system=system.removesuffix("<|im_end|>\n"),
        user=user.removesuffix("<|im_end|>\n"),
        answer_cue=cue,
    )


@pytest.mark.parametrize("name", ["fashion-8", "fashion-8-joint"])
def test_chatml_and_system_and_user_are_the_same_prompts(name: str) -> None:
    """On the embedded model, whose file has no chat template: the configuration names one."""
    config = load_config(config_path(name))
    chats = tuple(map(as_chat, config.prompts))
    assert all(prompt.is_chat for prompt in chats)
    model = config.model.changed(chat_template=CHATML)
    with (
        Classifier.from_config(config) as one,
        Classifier.from_config(config.changed(prompts=chats, model=model)) as other,
    ):
        assert other.compiled == one.compiled
        assert other.prompts == one.prompts
        assert [*map(prompt_hash, other.config.prompts)] == [*map(prompt_hash, one.config.prompts)]
        query = "red summer dress for girls"
        for result, same in zip(one.classify(query).results, other.classify(query).results, strict=True):
            assert result == same


@pytest.fixture
def chat_model(make_model: MakeModel) -> Path:
    return make_model("qwen3", chat_template=CHATML)


@pytest.fixture
def classifier(chat_model: Path) -> Iterator[Classifier]:
    with opened(chat_model, CHAT) as classifier:
        yield classifier


def test_prompts_that_come_at_run_time_are_rendered_too(classifier: Classifier, tmp_path: Path) -> None:
    question = CHAT.changed(name="season", labels=("summer", "winter"))
    with classifier.prompt_set([question]) as other:
        assert other.classify("red").results[0].prompt == "season"
        whole = classifier.config.prompts[0].template
        with classifier.prompt_set(
            [PromptConfig(name="season", prompt_template=whole, labels=question.labels)]
        ) as same:
            assert same.prompts == other.prompts
    path = tmp_path / "other.yaml"
    path.write_text("prompts: [{name: a, user: 'q: {query}', labels: [red, blue]}]")
    with classifier.prompt_set(path) as other:
        assert other.classify("red").results[0].label in ("red", "blue")


def test_a_file_without_a_template_is_refused_with_the_remedy(make_model: MakeModel) -> None:
    with pytest.raises(ConfigError, match=r"prompts\.color: .* the model's file has none: write the whole text as pro"):
        opened(make_model(), CHAT)
    with (
        opened(make_model(), PromptConfig(name="a", prompt_template="{query}:", labels=LABELS)) as classifier,
        pytest.raises(ConfigError, match=r"prompts\.color: "),
    ):
        classifier.prompt_set([CHAT])
