"""The `{labels}` slot: what it expands to, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from qcls_gguf import Config, ConfigError
from qcls_gguf.config.load import parse_config
from qcls_gguf.config.prompt import PromptConfig
from qcls_gguf.config.schema import check_config


def parse(template: str, labels: list[str]) -> PromptConfig:
    prompt = {"name": "category", "prompt_template": template, "labels": labels}
    return parse_config(yaml.safe_dump({"prompts": [prompt]}), folder=Path()).prompts[0]


def test_the_slot_is_the_labels_in_their_order() -> None:
    prompt = parse("one of [{labels}]: {query}", ["dress", "light blue", "none"])
    assert prompt.expanded_template == "one of [dress, light blue, none]: {query}"
    assert prompt.prompt_template == "one of [{labels}]: {query}"
    swapped = replace(prompt, labels=("none", "dress"))
    assert swapped.expanded_template == "one of [none, dress]: {query}"
    assert check_config(Config(prompts=(swapped,))).prompts == (swapped,)


@pytest.mark.parametrize("labels", [["dress", "none"], ["{query}", "{labels}", "none"]])
def test_a_template_without_the_slot_stays_as_it_is(labels: list[str]) -> None:
    assert parse("of {query}: {label}", labels).expanded_template == "of {query}: {label}"


@pytest.mark.parametrize("label", ["{label}", "labels", "{", "{}", "%s", "\\1"])
def test_a_label_that_looks_like_a_slot_is_text(label: str) -> None:
    assert parse("of {labels}: {query}", [label, "none"]).expanded_template == f"of {label}, none: {{query}}"


@pytest.mark.parametrize(
    ("template", "labels", "message"),
    [
        ("{labels} {labels} {query}", ["x", "y"], "prompt_template: has 2 {labels} slots: it may have one"),
        ("{labels} {query}", ["x", "a {query}"], "labels: 'a {query}' in place of the template's {labels} makes"),
        ("{labels} {query}", ["x", "{labels}"], "labels: '{labels}' in place of the template's {labels} makes another"),
        ("{query} {l{labels}", ["abels}", "x"], "labels: 'abels}' in place of the template's {labels} makes another"),
    ],
)  # fmt: skip
def test_slots_that_are_not_what_they_seem_are_refused(template: str, labels: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse(template, labels)
    assert f"prompts.category.{message}" in str(refusal.value)
    with pytest.raises(ConfigError) as refusal:
        check_config(Config(prompts=(PromptConfig(name="a", prompt_template=template, labels=tuple(labels)),)))
    assert f"prompts.a.{message}" in str(refusal.value)
