"""The strict loader: scoring, the runtime and the model, and for every refusal the place and the words."""

import ast
import inspect
import json
import textwrap
from pathlib import Path

import pytest
from config_texts import PROMPT, parse, refused, with_prompt_line

from qcls_gguf.config.prompt import PromptConfig
from qcls_gguf.config.schema import Config, ModelConfig, RuntimeConfig
from qcls_gguf.errors import ConfigError


@pytest.mark.parametrize(
    ("top", "own", "scoring"),
    [
        ("", "", "tree"),
        ("scoring: first_token", "", "first_token"),
        ("force_single_token_labels: true", "", "first_token"),
        ("", "force_single_token_labels: true", "first_token"),
        ("force_single_token_labels: true", "scoring: tree", "tree"),
        ("force_single_token_labels: true", "force_single_token_labels: false", "tree"),
        ("scoring: first_token", "force_single_token_labels: false", "tree"),
        ("scoring: tree", "force_single_token_labels: true", "first_token"),
    ],
)
def test_a_prompts_scoring_goes_before_the_common_one(top: str, own: str, scoring: str) -> None:
    assert parse(with_prompt_line(own) + top).prompts[0].scoring == scoring


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("scoring: tree", "force_single_token_labels: true"), "true contradicts scoring: tree: remove one of the two"),
        (("force_single_token_labels: 1",), "1 should be true or false"),
    ],
)
def test_a_contradiction_about_scoring_is_refused_at_both_levels(lines: tuple[str, ...], message: str) -> None:
    refused(PROMPT + "\n".join(lines), f"force_single_token_labels: {message}")
    refused(with_prompt_line("\n    ".join(lines)), f"prompts.category.force_single_token_labels: {message}")


def test_a_prompts_label_end_goes_before_the_common_one() -> None:
    assert parse(PROMPT + "label_end: A\n").prompts[0].label_end == "A"
    assert parse(with_prompt_line("label_end: B") + "label_end: A\n").prompts[0].label_end == "B"
    refused(PROMPT + "label_end: 1\n", "label_end: 1 is a number, not text")


@pytest.mark.parametrize(
    ("key", "low", "words"),
    [
        ("n_gpu_layers", 0, ["auto", "all"]),
        ("n_threads", 1, ["auto"]),
        ("max_query_tokens", 1, []),
        ("max_waiting", 0, []),
        ("warm_query_tokens", 0, ["auto"]),
    ],
)
def test_the_numbers_of_the_runtime_have_limits(key: str, low: int, words: list[str]) -> None:
    for value in (low, low + 1, (1 << 24) - 1, *words):
        assert getattr(parse(f"{PROMPT}runtime: {{{key}: {value}}}").runtime, key) == value
    choices = f", or {' or '.join(map(repr, words))}" if words else ""
    for wrong, limit in ((low - 1, f"greater than or equal to {low}"), (1 << 24, "less than or equal to 16777215")):
        refused(f"{PROMPT}runtime: {{{key}: {wrong}}}", f"runtime.{key}: {wrong} should be {limit}{choices}")
    for value in (1.0, True, None, "1", [1], "some", *({"auto", "all"} - set(words))):
        text = f"{PROMPT}runtime: {{{key}: {json.dumps(value)}}}"
        refused(text, f"runtime.{key}: {value!r} should be a whole number{choices}")


@pytest.mark.parametrize(("key", "low", "high"), [("n_seq_max", 1, 4096), ("question_prefixes", 0, 4095)])
def test_the_numbers_of_sequences_end_where_those_of_llama_cpp_do(key: str, low: int, high: int) -> None:
    for value in (low, high, "auto"):
        assert getattr(parse(f"{PROMPT}runtime: {{{key}: {value}}}").runtime, key) == value
    for value, limit in ((low - 1, f"greater than or equal to {low}"), (high + 1, f"less than or equal to {high}")):
        refused(f"{PROMPT}runtime: {{{key}: {value}}}", f"runtime.{key}: {value} should be {limit}, or 'auto'")


def test_a_quantised_cache_needs_flash_attention() -> None:
    for kv_type in ("q8_0", "q4_0"):
        text = f"{PROMPT}runtime: {{flash_attn: false, kv_type: {kv_type}}}"
        refused(text, f"runtime.kv_type: {kv_type} needs flash")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *((f"flash_attn: {value}", "should be true or false, or 'auto'") for value in ("1", "enabled", "[true]")),
        *((f"kv_type: {value}", "should be 'f16', 'q8_0', 'bf16', 'f32' or 'q4_0'") for value in ("q5_1", "[f16]")),
    ],
)
def test_a_value_that_is_no_choice_is_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"runtime\.{line.partition(':')[0]}: .* {message}$"):
        parse(f"{PROMPT}runtime: {{{line}}}")


def test_python_code_may_give_what_a_file_may() -> None:
    labels = {"dress": "worn by itself", "tee": None}
    prompts = [
        PromptConfig(
            name="a", prompt_template="{query} a", labels=["dress", "tee"], label_descriptions=[None, "a shirt"]
        ),
        PromptConfig(name="b", prompt_template="{query} b", labels=labels, content_free_queries=["", "x"]),
    ]
    config = Config(prompts=prompts, model=ModelConfig(path="m.gguf"), ignore_warnings=["untrained"])
    assert config.model.path == Path("m.gguf").resolve()
    assert [prompt.labels for prompt in config.prompts] == [("dress", "tee")] * 2
    assert prompts[1].label_descriptions == ("worn by itself", None)


@pytest.mark.parametrize("cls", [Config, ModelConfig, PromptConfig, RuntimeConfig])
def test_constructors_show_their_fields(cls: type) -> None:
    shown = inspect.signature(cls).parameters
    assert [name for name in shown if name not in cls.__dataclass_fields__] == []  # type: ignore[attr-defined]
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    written = [each.args.kwonlyargs for each in ast.walk(tree) if getattr(each, "name", "") == "__init__"]  # type: ignore[attr-defined]
    for arguments in written:  # what checkers of types see in place of the fields
        assert {each.arg for each in arguments} == set(shown)
    assert bool(written) is (cls is not RuntimeConfig)
