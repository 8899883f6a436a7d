"""Candidates are functions of texts; which is recommended."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf import Config, ConfigError, ModelConfig, PromptConfig, RuntimeConfig, load_config
from qcls_gguf.advising.candidates import derive, given_candidate, joint_candidates, listed_labels, shorter_cue
from qcls_gguf.advising.comparison import recommendation
from qcls_gguf.advising.records import CandidateRecord, PromptAgreement
from qcls_gguf.config.load import config_tree, parse_config
from qcls_gguf.config.yaml_values import yaml_text
from qcls_gguf.statistics import wilson

ROOT = Path(__file__).parents[2]
FASHION, JOINT, MISSION = (
    load_config(ROOT / "configs" / f"{n}.yaml") for n in ("fashion-8", "fashion-8-joint", "mission")
)
PLAIN = (
    "Which colour is asked for (red, blue, none)?\nText: {query}\nanswer:",
    "Which size is asked for (S, M)?\nText: {query}\nanswer:",
)
AFTER = ("Text: {query}\ncolour: Which one is asked for?\nanswer:", "Text: {query}\nWhich size is asked for?\nanswer:")


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
    """What a prompt says after the query comes before it; what begins with its name has it once."""
    joint, own = joint_candidates(prompts(*PLAIN))
    head = (
        "For each attribute output exactly one label from its list.\ncolour: [red, blue, none]\nsize: [red, blue, none]"
    )
    assert texts(joint.config) == [f"{head}\nText: {{query}}\n{name}:" for name in ("colour", "size")]
    assert texts(own.config)[1] == (
        "colour: Which colour is asked for (red, blue, none)?\nsize: Which size is asked for (S, M)?"
        "\nText: {query}\nsize:"
    )
    assert texts(joint_candidates(prompts(*AFTER))[1].config)[0] == (
        "colour: Which one is asked for?\nsize: Which size is asked for?\nText: {query}\ncolour:"
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
    candidates, (note,) = derive(config)
    assert why in note
    assert not any("joint" in candidate.name for candidate in candidates)


def test_last_words_become_shorter() -> None:
    same = shorter_cue(MISSION)
    assert same is not None
    assert all(text.endswith("<|im_start|>assistant\n") for text in texts(same.config))
    assert shorter_cue(same.config) is None
    for config in (JOINT, joint_candidates(FASHION)[0].config):
        named = shorter_cue(config)
        assert named is not None
        assert [text.rpartition("\n")[2] for text in texts(named.config)] == [each.name for each in config.prompts]


def test_a_given_configuration_has_to_ask_for_the_same() -> None:
    with pytest.raises(ConfigError, match="`also` mission: has the prompts category, audience, not"):
        given_candidate("mission", MISSION, FASHION)
    other = prompts(*PLAIN, labels=("S", "M"))
    with pytest.raises(ConfigError, match=r"prompts\.colour has other labels than the present configuration"):
        given_candidate("sizes", other, prompts(*PLAIN))
    turned = prompts(*(text.replace("(", "({labels}; ") for text in PLAIN), labels=("none", "red", "blue"))
    found = given_candidate("turned", dataclasses.replace(turned, model=ModelConfig(hf_repo="a/b")), prompts(*PLAIN))
    assert [prompt.labels for prompt in found.config.prompts] == [("red", "blue", "none")] * 2
    assert texts(found.config) == texts(turned)
    assert found.config.model.hf_repo == "a/b"


def read_again(config: Config) -> Config:
    return parse_config(yaml_text(config_tree(config)), folder=Path("/nowhere"))


@pytest.mark.parametrize("config", [FASHION, JOINT, *(each.config for each in derive(FASHION)[0])])
def test_a_written_configuration_says_the_same(config: Config) -> None:
    assert read_again(config) == dataclasses.replace(config, path=None)


def test_a_common_text_is_written_once() -> None:
    text = yaml_text(config_tree(joint_candidates(FASHION)[0].config))
    assert text.count("{query}") == text.count("For each attribute") == text.count("{name}:") == 1


@settings(max_examples=60, derandomize=False)
@given(
    before=st.text(st.characters(codec="utf-8", exclude_characters="\0{}\r\x85\u2028\u2029"), max_size=20),
    after=st.text(st.sampled_from("a \n:<|>#'\"-"), max_size=12),
    labels=st.lists(
        st.text(st.sampled_from("ab c:'#-1"), min_size=1).filter(str.strip), min_size=2, max_size=4, unique=True
    ),
)
def test_any_text_survives_the_file(before: str, after: str, labels: list[str]) -> None:
    config = Config(
        prompts=tuple(
            PromptConfig(name=name, prompt_template=f"{before}{{query}}{after}{cue}", labels=tuple(labels))
            for name, cue in (("a", "\na:"), ("b", "\nb:"), ("c", ""))
        ),
        model=ModelConfig(path=Path("/models/x.gguf"), chat_variables={"a": True, "b": "x: y"}),
        runtime=RuntimeConfig(max_query_tokens=64, n_ctx=512),
    )
    assert read_again(config) == config


def candidate(name: str, ms: float, n_agree: int) -> CandidateRecord:
    low, high = wilson(n_agree, 1000) or (0.0, 1.0)
    agreement = n_agree / 1000
    return CandidateRecord.model_construct(
        name=name,
        n_tokens=ms,
        time_share=ms / 20,
        prompts={"colour": PromptAgreement(agreement=agreement, agreement_ci=(low, high))},
        meets_limit=agreement >= 0.98,
        is_proven=low >= 0.98,
    )


PRESENT = candidate("present", 20.0, 1000)


def test_the_fastest_that_keeps_the_limit_is_recommended() -> None:
    bad, good, best = candidate("bad", 1.0, 900), candidate("good", 5.0, 985), candidate("best", 9.0, 995)
    found, reason = recommendation([PRESENT, bad, best, good], 0.98)
    assert found is good
    assert "0.25 of the present time and feeds 5.0 tokens instead of 20.0" in reason
    assert "not yet proven" in reason
    found, reason = recommendation([PRESENT, best], 0.98)
    assert found is best
    assert "every prompt's interval lies above the limit" in reason
    found, reason = recommendation([PRESENT, bad], 0.98)
    assert found is None
    assert "no candidate keeps 98.0% of the answers" in reason
    found, reason = recommendation([PRESENT, candidate("slow", 21.0, 1000)], 0.98)
    assert found is None
    assert "no candidate that keeps 98.0% of the answers is faster" in reason
