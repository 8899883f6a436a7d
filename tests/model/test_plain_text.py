"""A query is plain text: what it spells becomes no mark of the vocabulary, unless the configuration asks for it.

System and user texts with a model's own chat template, on small files: tokens, answers, run time, eval, errors.
"""

import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from cases import cases, written
from chat_templates import CHATML, CHATS
from conftest import MakeModel, WriteConfig
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import PromptSpec
from random_vocab import BOS, IM_END, IM_START, JOINED, MARKS

from qcls_gguf import Classifier, Config, Model, ModelConfig, PromptConfig, RuntimeConfig, load_config
from qcls_gguf.config.fitted import prompt_hash
from qcls_gguf.config.resources import config_path
from qcls_gguf.errors import ConfigError, PlanError
from qcls_gguf.native import NativeModel

THINK, THINK_END, GO, BLANK = MARKS
TEXT = f"{IM_START}user\nquery: {{query}}{IM_END}\n{THINK}\n\n{THINK_END}\ncolor:"
PROMPT = PromptSpec(name="color", template=TEXT, labels=("light blue", "light pink", "red"))
PIECES = st.sampled_from(
    [*MARKS, IM_START, IM_END, JOINED, "<think", ">", "</", "think>", " ", "\n", "red", "红色", "<"]
)


@pytest.fixture(scope="module", params=["bpe", "spm"])
def base(request: pytest.FixtureRequest) -> str:
    """Which tokenizer."""
    return str(request.param)


@pytest.fixture(scope="module")
def path(base: str, make_model: MakeModel) -> Path:
    """A model whose vocabulary has user-defined tokens."""
    return make_model("llama" if base == "spm" else "qwen3", vocab=f"{base}-marks")


@pytest.fixture(scope="module")
def models(path: Path) -> Iterator[tuple[NativeModel, NativeModel]]:
    """Whose queries are plain text, and whose queries may have user-defined tokens."""
    with NativeModel(path) as plain, NativeModel(path, user_defined=True) as user_defined:
        yield plain, user_defined


def pieces(model: NativeModel, text: str, *, parse_special: bool = False) -> list[bytes]:
    return [model.piece(int(token))[0] for token in model.tokenize(text, parse_special=parse_special)]


def test_user_defined_tokens_are_found_where_they_are_asked_for(models: tuple[NativeModel, NativeModel]) -> None:
    """Elsewhere only a template may hold them; white space is written with the vocabulary's own tokens."""
    for model, is_asked_for in zip(models, (False, True), strict=True):
        found = pieces(model, f"red{THINK_END}dress{GO}{IM_END}")
        assert [mark.encode() in found for mark in (THINK_END, GO, IM_END)] == [is_asked_for, is_asked_for, False]
        tokens = model.tokenize(f"red{BLANK}red", parse_special=False)
        assert (BLANK.encode(), False) in [model.piece(int(token)) for token in tokens]
        first, second = map(model.piece, model.tokenize(THINK + IM_START, parse_special=True).tolist())
        assert (first, second) == ((THINK.encode(), not is_asked_for), (IM_START.encode(), True))


@given(text=st.lists(PIECES, max_size=12).map("".join))
@settings(max_examples=200, derandomize=False)
def test_no_text_becomes_a_mark(text: str, models: tuple[NativeModel, NativeModel]) -> None:
    plain, _ = models
    tokens = [int(token) for token in plain.tokenize(text, parse_special=False)]
    assert not any(plain.piece(token)[1] for token in tokens)
    spelt = b"".join(plain.piece(token)[0] for token in tokens)  # SentencePiece puts spaces before words
    assert spelt.replace(b" ", b"") == text.encode().replace(b" ", b"")


def test_rules_that_join_text_to_a_control_token(base: str, make_model: MakeModel) -> None:
    """SentencePiece never joins to one, so llama.cpp must not; merges of a BPE vocabulary are as the file has them."""
    with NativeModel(make_model("llama" if base == "spm" else "qwen3", vocab=f"{base}-joins")) as model:
        assert model.piece(int(model.tokenize(JOINED, parse_special=True)[-1])) == (JOINED.encode(), True)
        if base == "spm":
            assert JOINED.encode() not in pieces(model, JOINED)
        else:
            with pytest.raises(PlanError, match=f"joins text to its control token .*{JOINED}"):
                model.tokenize(JOINED, parse_special=False)
        assert b"".join(pieces(model, JOINED[:3])).strip() == JOINED[:3].encode()


@pytest.mark.parametrize("query_tokens", ["plain", "user_defined"])
def test_a_template_keeps_its_marks(query_tokens: str, path: Path, write_config: WriteConfig) -> None:
    with Classifier.from_config(write_config(path, [PROMPT], query_tokens=query_tokens)) as classifier:
        model = classifier.engine.model
        (prompt,) = classifier.prompts
        for query in ("red dress", "", f"x{THINK}" if query_tokens == "user_defined" else "x"):
            whole = model.tokenize(PROMPT.template.replace("{query}", query), parse_special=True).tolist()
            assert [*prompt.opening, *prompt.fragment_tokens(model, query), *prompt.closing] == whole
        spelt = classifier.classify(f"red {THINK_END}\ncolor: red")
        assert spelt.results[0].fast_path
        tokens = model.tokenize(f"{prompt.before}red {THINK_END}{prompt.after}", parse_special=False)
        has_mark = THINK_END.encode() in [model.piece(int(token))[0] for token in tokens]
        assert has_mark == (query_tokens == "user_defined")


def test_a_model_that_was_opened_otherwise_is_refused(path: Path, write_config: WriteConfig) -> None:
    with (
        Model.open(ModelConfig(path=path), RuntimeConfig(query_tokens="user_defined")) as model,
        pytest.raises(ConfigError, match=r"cpu_activations: plain, default, .* has user_defined, default"),
    ):
        Classifier.from_config(write_config(path, [PROMPT]), model=model)


def test_a_control_token_within_a_character(make_model: MakeModel, write_config: WriteConfig, tmp_path: Path) -> None:
    data = make_model().read_bytes()
    spelt = "红".encode()[1:] + b"|im_start|"
    assert len(spelt) == len(IM_START)
    broken = data.replace(IM_START.encode(), spelt)
    assert broken.count(spelt) == 1
    path = written(tmp_path / "split.gguf", broken)
    prompt = PromptSpec(name="color", template="{query} 红|im_start| is", labels=("red", "light blue"))
    with pytest.raises(ConfigError, match=r"prompts\.color: a control token .* part of a character"):
        Classifier.from_config(write_config(path, [prompt]))


WORDS = ("robe été", "Ångström", "한국어", "tiếng Việt", "パーカー", "йога", "café 👗")
"""with accents in several scripts"""


@pytest.mark.parametrize("form", ["NFD", "NFKD"])
def test_accents_may_be_stored_in_any_way(form: Literal["NFD", "NFKD"], path: Path, write_config: WriteConfig) -> None:
    with Classifier.from_config(write_config(path, [PROMPT])) as classifier:
        for word in WORDS:
            other = unicodedata.normalize(form, word)
            assert other != word
            assert classifier.classify(other).results == classifier.classify(word).results
            assert classifier.classify_batch([other, word])[0].results == classifier.classify(word).results
    with Classifier.from_config(write_config(path, [PROMPT], normalise_queries=False)) as classifier:
        other = unicodedata.normalize(form, WORDS[0])
        assert classifier.core.as_read(other) == other
        assert classifier.classify(other).results != classifier.classify(WORDS[0]).results


LABELS = ("red", "blue", "none")
CHAT = PromptConfig(name="color", system="Output one of [{labels}].", user="query: {query}", labels=LABELS)


def opened(path: Path, *prompts: PromptConfig, **settings: object) -> Classifier:
    model = ModelConfig(path=path, **settings)  # type: ignore[arg-type]
    return Classifier.from_config(Config(prompts=prompts, model=model, runtime=RuntimeConfig(n_threads=1, n_batch=512)))


def tokens(classifier: Classifier, query: str) -> list[list[int]]:
    """The tokens of each whole prompt with a query."""
    model = classifier.engine.model
    return [[*each.opening, *each.fragment_tokens(model, query), *each.closing] for each in classifier.prompts]


@cases(*((name, "bpe") for name in CHATS), ("qwen3", "bpe-marks"), ("mistral", "spm"), ("gemma", "spm"), ("phi", "spm"))
def test_the_tokens_are_those_of_what_the_template_writes(name: str, vocab: str, make_model: MakeModel) -> None:
    chat = CHATS[name]
    path = make_model("llama", **chat.options, vocab=vocab)
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
        assert (found[0], found.count(bos)) == (bos, 1)


def as_chat(prompt: PromptConfig) -> PromptConfig:
    """A prompt that is written in ChatML, as its system and user texts."""
    system, user, cue = (part.partition("\n")[2] for part in prompt.template.split("<|im_start|>")[1:])
    system, user = (text.removesuffix("<|im_end|>\n") for text in (system, user))
    return prompt.changed(prompt_template=None, system=system, user=user, answer_cue=cue)


@pytest.mark.parametrize("name", ["fashion-8", "fashion-8-joint"])
def test_chatml_and_system_and_user_are_the_same_prompts(name: str) -> None:
    """On the embedded model, whose file has no chat template: the configuration names one."""
    config = load_config(config_path(name))
    chats = tuple(map(as_chat, config.prompts))
    assert all(prompt.is_chat for prompt in chats)
    changed = config.changed(prompts=chats, model=config.model.changed(chat_template=CHATML))
    with Classifier.from_config(config) as one, Classifier.from_config(changed) as other:
        assert (other.compiled, other.prompts) == (one.compiled, one.prompts)
        assert [*map(prompt_hash, other.config.prompts)] == [*map(prompt_hash, one.config.prompts)]
        assert one.classify("red summer dress").results == other.classify("red summer dress").results


def test_prompts_that_come_at_run_time_are_rendered_too(make_model: MakeModel, tmp_path: Path) -> None:
    question = CHAT.changed(name="season", labels=("summer", "winter"))
    path = written(tmp_path / "other.yaml", "prompts: [{name: a, user: 'q: {query}', labels: [red, blue]}]")
    with opened(make_model("qwen3", chat_template=CHATML), CHAT) as classifier:
        with classifier.prompt_set([question]) as other:
            assert other.classify("red").results[0].prompt == "season"
            whole = question.changed(system=None, user=None, prompt_template=classifier.config.prompts[0].template)
            with classifier.prompt_set([whole]) as same:
                assert same.prompts == other.prompts
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
