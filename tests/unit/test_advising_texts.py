"""Candidates are functions of texts: what prompts share, one text for all of them, shorter ones, and their YAML."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf import Config, ConfigError, ModelConfig, PromptConfig, RuntimeConfig, load_config
from qcls_gguf.advising.derive import derive
from qcls_gguf.advising.joint import joint_candidates, parted
from qcls_gguf.advising.shorter import cheaper_scoring, distinct_wordings, query_first, shorter_cue
from qcls_gguf.advising.texts import listed_labels, shared_texts
from qcls_gguf.advising.yaml_text import config_yaml
from qcls_gguf.config.load import parse_config

ROOT = Path(__file__).parents[2]
FASHION, JOINT, MISSION = (
    load_config(ROOT / "configs" / f"{n}.yaml") for n in ("fashion-8", "fashion-8-joint", "mission")
)
PLAIN = (
    "Which colour is asked for (red, blue, none)?\nText: {query}\nanswer:",
    "Which size is asked for (S, M)?\nText: {query}\nanswer:",
)
BEHIND = (
    "Text: {query}\nWhich colour is asked for?\nanswer:",
    "Text: {query}\nWhich size is asked for?\nanswer:",
)


class Letters:
    """A tokenizer with a token for each character."""

    def tokenize(self, text: str, *, parse_special: bool) -> npt.NDArray[np.int32]:
        return np.array([ord(c) for c in text.lstrip()], np.int32)

    def piece(self, token: int) -> tuple[bytes, bool]:
        return chr(token).encode(), False


def prompts(*texts: str, labels: tuple[str, ...] = ("red", "blue", "none")) -> Config:
    names = ("colour", "size", "third")
    return Config(
        prompts=tuple(
            PromptConfig(name=name, prompt_template=text, labels=labels)
            for name, text in zip(names, texts, strict=False)
        )
    )


def texts(config: Config) -> list[str]:
    return [prompt.expanded_template for prompt in config.prompts]


def test_what_prompts_share_ends_at_lines_and_control_tokens() -> None:
    parts = shared_texts(MISSION.prompts)
    assert parts.head == "<|im_start|>system\n"
    assert parts.own[1].startswith("Analyze the target user group. Output exactly")
    assert parts.middle == "<|im_end|>\n<|im_start|>user\nquery: "
    assert parts.behind == "<|im_end|>\n<|im_start|>assistant\n"
    assert parts.cues == ("label:", "label:")


def test_what_a_prompt_says_behind_the_query_is_its_own_too() -> None:
    parts = shared_texts(prompts(*BEHIND).prompts)
    assert parts.own == ("Which colour is asked for?", "Which size is asked for?")
    assert (parts.head, parts.middle, parts.behind, parts.cues[0]) == ("", "Text: ", "\n", "answer:")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("one of [none, red, blue]: {query}\n:", ("none", "red", "blue")),
        ("one of (blue, none, red): {query}\n:", ("blue", "none", "red")),
        ("labels: none, blue, red\n{query}\n:", ("none", "blue", "red")),
        ("[red, blue] {query}\n:", ("red", "blue", "none")),
    ],
)
def test_labels_keep_the_order_in_which_the_text_lists_them(text: str, found: tuple[str, ...]) -> None:
    assert listed_labels(prompts(text).prompts[0]) == found


def test_one_text_for_the_eight_prompts_differs_from_the_written_one_in_its_instruction_only() -> None:
    joint, own = joint_candidates(FASHION)
    for derived, written in zip(texts(joint.config), texts(JOINT), strict=True):
        lines, other = derived.split("\n"), written.split("\n")
        assert lines[1] == "For each attribute output exactly one label from its list."
        assert [*lines[:1], *lines[2:]] == [*other[:1], *other[2:]]
    assert "\ncolour: Analyze the colour asked for. Output exactly one label from [none, black" in texts(own.config)[0]
    assert texts(own.config)[3].endswith("<|im_start|>assistant\nseason:")


def test_one_text_for_plain_prompts() -> None:
    joint, own = joint_candidates(prompts(*PLAIN))
    head = (
        "For each attribute output exactly one label from its list.\ncolour: [red, blue, none]\nsize: [red, blue, none]"
    )
    assert texts(joint.config) == [f"{head}\nText: {{query}}\nanswer:".replace("answer", n) for n in ("colour", "size")]
    assert texts(own.config)[1] == (
        "colour: Which colour is asked for (red, blue, none)?\nsize: Which size is asked for (S, M)?"
        "\nText: {query}\nsize:"
    )


def test_instructions_behind_the_query_come_before_it_in_one_text() -> None:
    assert texts(joint_candidates(prompts(*BEHIND))[1].config)[0] == (
        "colour: Which colour is asked for?\nsize: Which size is asked for?\nText: {query}\ncolour:"
    )


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (prompts(PLAIN[0]), "there is only one prompt"),
        (JOINT, "the prompts have one text already"),
        (prompts("{query}\nA?\nx:", "{query}\nx:"), "says nothing that the others do not say"),
    ],
)
def test_where_no_text_for_all_can_be_derived_it_says_why(config: Config, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        joint_candidates(config)
    found = derive(config, Letters())
    assert found.no_joint is not None
    assert why in found.no_joint


def test_prompts_apart_keep_their_text_and_the_others_the_common_one() -> None:
    joint = joint_candidates(FASHION)[0]
    found = parted(FASHION, joint, ["colour", "fit"])
    for prompt, before, after in zip(found.config.prompts, FASHION.prompts, joint.config.prompts, strict=True):
        assert prompt == (before if prompt.name in ("colour", "fit") else after)
    assert found.name == "joint but colour, fit"


def test_last_words_become_shorter() -> None:
    same = shorter_cue(MISSION)
    assert same is not None
    assert all(text.endswith("<|im_start|>assistant\n") for text in texts(same.config))
    named = shorter_cue(JOINT)
    assert named is not None
    assert [text.rpartition("\n")[2] for text in texts(named.config)] == [prompt.name for prompt in JOINT.prompts]
    assert shorter_cue(same.config) is None


def test_exact_scorings_become_cheap_ones() -> None:
    exact = dataclasses.replace(
        MISSION, prompts=tuple(dataclasses.replace(prompt, scoring="joint") for prompt in MISSION.prompts)
    )
    found = cheaper_scoring(exact, Letters())
    assert found is not None
    # `shirt`, `skirt` begin with one letter, and so do no two of boy, girl, man, woman, pregnant, none
    assert [prompt.scoring for prompt in found.config.prompts] == ["tree", "first_token"]
    assert cheaper_scoring(MISSION, Letters()) is None


def test_labels_that_begin_alike_get_other_words_in_labels_and_lists() -> None:
    config = prompts("one of [dark red, dark blue, none]: {query}\nx:", labels=("dark blue", "dark red", "none"))
    found = distinct_wordings(config, Letters())
    assert found is not None
    (prompt,) = found.config.prompts
    assert prompt.labels == ("blue dark", "dark red", "none")
    assert prompt.expanded_template == "one of [dark red, blue dark, none]: {query}\nx:"
    assert found.original("colour", "blue dark") == "dark blue"
    assert found.original("colour", "dark red") == "dark red"
    assert distinct_wordings(prompts(PLAIN[0]), Letters()) is None


def test_the_query_can_stand_first() -> None:
    found = query_first(MISSION)
    assert found is not None
    before, _, after = texts(found.config)[0].partition("{query}")
    assert before == "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nquery: "
    assert after.startswith("\nAnalyze the category intent.")
    assert query_first(JOINT) is None


def test_candidates_are_different_configurations_for_the_same_prompts() -> None:
    found = derive(FASHION, Letters()).candidates
    assert len({candidate.config.prompts for candidate in found} | {FASHION.prompts}) == len(found) + 1
    assert len({candidate.name for candidate in found}) == len(found)
    for candidate in found:
        assert [prompt.name for prompt in candidate.config.prompts] == [prompt.name for prompt in FASHION.prompts]
        for prompt, original in zip(candidate.config.prompts, FASHION.prompts, strict=True):
            assert tuple(candidate.original(prompt.name, label) for label in prompt.labels) == original.labels


def read_again(config: Config) -> Config:
    return parse_config(config_yaml(config, ["a heading"]), folder=Path("/nowhere"))


def same_answers(config: Config) -> tuple[object, ...]:
    """All that a classifier would make of it; where slots are filled from does not count."""
    prompts = [dataclasses.replace(each, prompt_template=each.expanded_template) for each in config.prompts]
    return prompts, config.model, config.runtime, config.ignore_warnings


@pytest.mark.parametrize("config", [FASHION, JOINT, *(each.config for each in derive(FASHION, Letters()).candidates)])
def test_a_written_configuration_says_the_same(config: Config) -> None:
    assert same_answers(read_again(config)) == same_answers(config)


def test_a_common_text_is_written_once() -> None:
    text = config_yaml(joint_candidates(FASHION)[0].config, [])
    assert text.count("{query}") == text.count("For each attribute") == 1
    assert text.count("{name}:") == 1
    apart = config_yaml(parted(FASHION, joint_candidates(FASHION)[0], ["fit"]).config, [])
    assert apart.count("{query}") == 2


@settings(max_examples=60)
@given(
    before=st.text(st.characters(codec="utf-8", exclude_characters="\0{}\r\x85\u2028\u2029"), max_size=20),
    after=st.text(st.sampled_from("a \n:<|>#'\"-"), max_size=12),
    labels=st.lists(
        st.text(st.sampled_from("ab c:'#-1"), min_size=1).filter(str.strip), min_size=2, max_size=4, unique=True
    ),
    confidence=st.one_of(st.none(), st.floats(0.1, 1)),
)
def test_any_text_survives_the_file(before: str, after: str, labels: list[str], confidence: float | None) -> None:
    config = Config(
        prompts=tuple(
            PromptConfig(
                name=name,
                prompt_template=f"{before}{{query}}{after}{cue}",
                labels=tuple(labels),
                min_confidence=confidence,
                fallback=None if confidence is None else "?",
            )
            for name, cue in (("a", "\na:"), ("b", "\nb:"), ("c", ""))
        ),
        model=ModelConfig(path=Path("/models/x.gguf")),
        runtime=RuntimeConfig(max_query_tokens=64, n_ctx=512),
    )
    assert same_answers(read_again(config)) == same_answers(config)
