"""The strict loader: what loads, and for every refusal the place and the words."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from qcls_gguf.cli.schema import schema_text
from qcls_gguf.config.json_schema import config_json_schema
from qcls_gguf.config.load import load_config, parse_config
from qcls_gguf.config.prompt import PromptConfig
from qcls_gguf.config.schema import KV_TYPES, Config, ModelConfig, RuntimeConfig
from qcls_gguf.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
FOLDER = Path("/configs")

PROMPT = """\
prompts:
  - name: category
    prompt_template: "query: {query} label:"
    labels: [dress, tee]
"""

MISSION = """\
# The two prompts of the mission, as its user wrote them. Six more follow later.
prompts:
  - name: category
    prompt_template: |
      <|im_start|>system
      Analyze the category intent. Output exactly one label from [none, dress, jeans, shirt, trench, skirt, tee, hoodie, knit, other]. Use 'none' if no category intent.<|im_end|>
      <|im_start|>user
      query: {query}<|im_end|>
      <|im_start|>assistant
      label:
    label_prefix: " "
    labels: [dress, jeans, shirt, trench, skirt, tee, hoodie, knit, other, none]
  - name: audience
    prompt_template: |
      <|im_start|>system
      Analyze the target user group. Output exactly one label from [none, boy, girl, man, woman, pregnant]. Use 'none' if no audience mentioned.<|im_end|>
      <|im_start|>user
      query: {query}<|im_end|>
      <|im_start|>assistant
      label:
    label_prefix: " "
    labels: [boy, girl, man, woman, pregnant, none]
"""  # noqa: E501


def parse(text: str) -> Config:
    return parse_config(text, folder=FOLDER)


def with_labels(labels: str) -> str:
    return PROMPT.replace("[dress, tee]", labels)


def with_prompt_line(line: str) -> str:
    return f"{PROMPT}    {line}\n"


def refused(text: str, message: str) -> None:
    """The text is refused with a message that begins so."""
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        parse(text)


def test_the_mission_loads_word_for_word() -> None:
    config = parse(MISSION)
    category, audience = config.prompts
    assert (category.name, audience.name) == ("category", "audience")
    assert category.labels == ("dress", "jeans", "shirt", "trench", "skirt", "tee", "hoodie", "knit", "other", "none")
    assert audience.labels == ("boy", "girl", "man", "woman", "pregnant", "none")
    assert audience.prompt_template == (
        "<|im_start|>system\nAnalyze the target user group. Output exactly one label from "
        "[none, boy, girl, man, woman, pregnant]. Use 'none' if no audience mentioned.<|im_end|>\n"
        "<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\nlabel:"
    )
    assert category.template.startswith("<|im_start|>system\nAnalyze the category intent. Output")
    assert category.template.endswith("<|im_end|>\n<|im_start|>assistant\nlabel:")
    assert {(prompt.label_prefix, prompt.scoring, prompt.label_end) for prompt in config.prompts} == {
        (" ", "tree", None)
    }
    assert (config.model, config.runtime, config.path) == (ModelConfig(), RuntimeConfig(), None)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_file_of_the_configs_folder_loads(path: Path) -> None:
    config = load_config(path)
    assert config.path == path
    assert config.model.path is None or config.model.path.is_absolute()


def test_the_configs_folder_is_found() -> None:
    assert CONFIGS


@pytest.mark.parametrize(
    ("scalar", "template"),
    [
        ("|\n      a {query}\n      b:\n", "a {query}\nb:"),
        ("|-\n      a {query}\n      b:\n", "a {query}\nb:"),
        ("|+\n      a {query}\n      b:\n\n", "a {query}\nb:\n"),
        ('"a {query} b: "\n', "a {query} b: "),
    ],
    ids=["clip", "strip", "keep", "quoted"],
)
def test_one_line_break_at_the_end_of_a_template_is_dropped(scalar: str, template: str) -> None:
    text = f"prompts:\n  - name: a\n    labels: [x, y]\n    prompt_template: {scalar}"
    assert parse(text).prompts[0].prompt_template == template


def test_what_is_given_is_taken() -> None:
    prompt = """label_prefix: ""
    label_end: "<|im_end|>"
    scoring: first_token"""
    runtime = """runtime:
  {n_gpu_layers: 3, n_threads: 4, n_ctx: 512, n_batch: 64, flash_attn: true, kv_type: q8_0, max_query_tokens: 9,
   max_batch: 2, warm_query_tokens: 5, n_shapes: 7}
"""
    config = parse(with_prompt_line(prompt) + runtime)
    assert config.prompts[0].label_prefix == ""
    assert config.prompts[0].label_end == "<|im_end|>"
    assert config.prompts[0].scoring == "first_token"
    assert config.runtime == RuntimeConfig(
        n_gpu_layers=3,
        n_threads=4,
        n_ctx=512,
        n_batch=64,
        flash_attn=True,
        kv_type="q8_0",
        max_query_tokens=9,
        max_batch=2,
        warm_query_tokens=5,
        n_shapes=7,
    )


def test_labels_keep_their_order_and_their_text() -> None:
    labels = parse(with_labels("['yes', \"no\", '1', ' tee ', 'null', 红色]")).prompts[0].labels
    assert labels == ("yes", "no", "1", " tee ", "null", "红色")


@pytest.mark.parametrize("section", ["model", "runtime"])
def test_an_empty_section_means_its_defaults(section: str) -> None:
    assert parse(f"{PROMPT}{section}:\n") == parse(PROMPT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROMPT + "promts: []\n", "promts: unknown key, did you mean prompts?"),
        (PROMPT + "runtime: {n_ctxx: 1}\n", "runtime.n_ctxx: unknown key, did you mean n_ctx?"),
        (PROMPT + "model: {hf_rep: a/b}\n", "model.hf_rep: unknown key, did you mean hf_repo?"),
        (with_prompt_line("label_prefx: a"), "prompts.category.label_prefx: unknown key, did you mean label_prefix?"),
        (
            PROMPT + "path: a.gguf\n",
            "path: unknown key, known are answer_cue, calibration, cascade, content_free_queries, ",
        ),
        (
            PROMPT + "model: {zzz: 1}\n",
            "model.zzz: unknown key, known are chat_template, chat_variables, hf_repo, ollama, path, quantization",
        ),
        (PROMPT + "1: 2\n", "1: unknown key, known are "),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(text: str, message: str) -> None:
    refused(text, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the configuration: expected keys and values, got nothing"),
        ("# nothing but a comment\n", "the configuration: expected keys and values, got nothing"),
        ("- name: a\n", "the configuration: expected keys and values, got a list"),
        ("prompts", "the configuration: expected keys and values, got text"),
        ("3", "the configuration: expected keys and values, got a number"),
        ("model: {}\n", "prompts: is missing"),
        ("prompts:\n", "prompts: is missing"),
        ("prompts: []\n", "prompts: expected a list of at least one prompt"),
        ("prompts: {name: a}\n", "prompts: expected a list of at least one prompt"),
        ("prompts: [a]\n", "prompts[0]: expected keys and values, got text"),
        (PROMPT + "model: a.gguf\n", "model: expected keys and values, got text"),
        (PROMPT + "runtime: [n_ctx]\n", "runtime: expected keys and values, got a list"),
        (PROMPT + "model: false\n", "model: expected keys and values, got a truth value"),
    ],
)
def test_a_wrong_shape_is_refused(text: str, message: str) -> None:
    refused(text, message)


@pytest.mark.parametrize(
    "text",
    [
        "prompts: [",
        "prompts: {query}: x",
        PROMPT + "---\n" + PROMPT,
        "prompts: \x00",
        "? [a]\n: b\n",
        "a: *b\n",
        "!!python/object:a.B {}",
    ],
)
def test_broken_yaml_is_refused(text: str) -> None:
    refused(text, "not valid YAML: ")


@pytest.mark.parametrize("label", ["2024-13-01", "0x_", "0b_", "!!int dress", "!!bool dress", "!!timestamp dress"])
def test_a_scalar_that_yaml_cannot_read_is_refused(label: str) -> None:
    with pytest.raises(ConfigError):
        parse(with_labels(f"[{label}, tee]"))


@pytest.mark.parametrize("text", [PROMPT + "runtime: {n_ctx: " + "9" * 5000 + "}\n", "[" * 5000])
def test_a_monstrous_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROMPT + PROMPT, "line 5: key 'prompts' is given twice"),
        (with_prompt_line("name: b"), "line 5: key 'name' is given twice"),
        (PROMPT + "runtime:\n  n_ctx: 1\n  n_ctx: 2\n", "line 7: key 'n_ctx' is given twice"),
    ],
)
def test_a_key_given_twice_is_refused(text: str, message: str) -> None:
    refused(text, message)


@pytest.mark.parametrize("key", ["name", "prompt_template", "labels"])
@pytest.mark.parametrize("null", [True, False])
def test_a_missing_key_of_a_prompt_is_refused(key: str, null: bool) -> None:
    lines = {"name": "a", "prompt_template": "'{query}'", "labels": "[x, y]"}
    if null:
        lines[key] = "null"
    else:
        del lines[key]
    text = "prompts: [{" + ", ".join(f"{k}: {v}" for k, v in lines.items()) + "}]"
    refused(text, f"prompts[0].{key}: is missing" if key == "name" else f"prompts.a.{key}: is missing")


@pytest.mark.parametrize(("template", "n_slots"), [("no slot", 0), ("{query} {query}", 2), ("{Color}{ age }", 0)])
def test_a_template_needs_exactly_one_slot(template: str, n_slots: int) -> None:
    refused(
        PROMPT.replace("query: {query} label:", template),
        f"prompts.category.prompt_template: has {n_slots} {{query}} slots: it needs exactly one",
    )


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("[dress, yes]", "labels[1]: True is a truth value, not text: write it in quotes"),
        ("[no, dress]", "labels[0]: False is a truth value, not text: write it in quotes"),
        ("[dress, tee, 1]", "labels[2]: 1 is a number, not text: write it in quotes"),
        ("[0.5, tee]", "labels[0]: 0.5 is a number, not text: write it in quotes"),
        ("[dress, null]", "labels[1]: None is nothing, not text: write it in quotes"),
        ("[dress, [tee]]", "labels[1]: ['tee'] is a list, not text: write it in quotes"),
        ("[dress, {tee: 1}]", "labels[1]: {'tee': 1} is a mapping, not text: write it in quotes"),
        ("[2024-01-01, tee]", "labels[0]: datetime.date(2024, 1, 1) is a date, not text: write it in quotes"),
        ("[dress, '']", "labels[1]: is empty: give it a text or remove it"),
        ("['  ', dress]", "labels[0]: is empty: give it a text or remove it"),
        ("[dress]", "labels: expected a list of at least two labels"),
        ("[]", "labels: expected a list of at least two labels"),
        ("dress tee", "labels: expected a list of at least two labels"),
        ("{dress: 1, tee: 2}", "labels.dress: 1 is a number, not text: describe the label, or leave the place empty"),
        ("{dress: a garment}", "labels: expected a list of at least two labels"),
        ("{dress: '', tee: a}", "label_descriptions[0]: is empty: give it a text or remove it"),
        ("[dress, tee, dress]", "labels[2]: label 'dress' is given twice"),
    ],
)
def test_an_unusable_label_is_refused(labels: str, message: str) -> None:
    refused(with_labels(labels), f"prompts.category.{message}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("label_prefix: null", "prompts.category.label_prefix: None is nothing, not text"),
        ("label_prefix: 1", "prompts.category.label_prefix: 1 is a number, not text"),
        ("label_end: 1", "prompts.category.label_end: 1 is a number, not text"),
        ("label_end: ''", "prompts.category.label_end: is empty: give it a text or remove it"),
        ("scoring: sum", "prompts.category.scoring: 'sum' is not one of tree, first_token, joint, mean"),
        ("scoring: [tree]", "prompts.category.scoring: ['tree'] is not one of tree, first_token"),
    ],
)
def test_a_wrong_value_in_a_prompt_is_refused(line: str, message: str) -> None:
    refused(with_prompt_line(line), message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("category", "1"), "prompts[0].name: 1 is a number, not text"),
        (("category", "' '"), "prompts[0].name: is empty: give the prompt a name"),
        (('"query: {query} label:"', "[a]"), "prompts.category.prompt_template: ['a'] is a list, not text"),
    ],
)
def test_a_name_and_a_template_are_texts(change: tuple[str, str], message: str) -> None:
    refused(PROMPT.replace(*change), message)


@pytest.mark.parametrize("key", ["name", "prompt_template", "label_prefix", "label_end"])
def test_half_a_surrogate_pair_is_refused(key: str) -> None:
    lines = {"name": "a", "prompt_template": '"{query}"', "labels": "[x, y]"}
    lines[key] = r'"{query} \ud800"'
    with pytest.raises(ConfigError, match="Unicode"):
        parse("prompts: [{" + ", ".join(f"{k}: {v}" for k, v in lines.items()) + "}]")
    values: dict[str, Any] = {"name": "a", "prompt_template": "{query}", "labels": ("x", "y"), key: "{query} \ud800"}
    with pytest.raises(ConfigError, match=rf"{key}: .* is not valid Unicode"):
        PromptConfig(**values)
    with pytest.raises(ConfigError, match=r"^prompts\.a\.labels\[1\]: .* is not valid Unicode"):
        PromptConfig(name="a", prompt_template="{query}", labels=("x", "\udc00"))


def test_prompt_names_are_distinct() -> None:
    refused(PROMPT + PROMPT.removeprefix("prompts:\n"), "prompts[1]: name 'category' is given twice")


def test_the_second_prompt_is_checked_as_the_first_is() -> None:
    second = PROMPT.removeprefix("prompts:\n").replace("category", "season")
    refused(PROMPT + second.replace("tee", "4"), "prompts.season.labels[1]: 4 is a number, not text")


@pytest.mark.parametrize(
    ("top", "own", "scoring"),
    [
        ("", "", "tree"),
        ("scoring: tree", "", "tree"),
        ("scoring: first_token", "", "first_token"),
        ("force_single_token_labels: true", "", "first_token"),
        ("force_single_token_labels: false", "", "tree"),
        ("scoring: null", "", "tree"),
        ("scoring: first_token\nforce_single_token_labels: true", "", "first_token"),
        ("", "scoring: first_token", "first_token"),
        ("", "force_single_token_labels: true", "first_token"),
        ("force_single_token_labels: true", "scoring: tree", "tree"),
        ("force_single_token_labels: true", "force_single_token_labels: false", "tree"),
        ("scoring: first_token", "force_single_token_labels: false", "tree"),
        ("scoring: first_token", "scoring: tree", "tree"),
        ("scoring: tree", "force_single_token_labels: true", "first_token"),
        ("scoring: tree", "scoring: first_token", "first_token"),
    ],
)
def test_a_prompts_scoring_goes_before_the_common_one(top: str, own: str, scoring: str) -> None:
    assert parse(with_prompt_line(own) + top).prompts[0].scoring == scoring


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("scoring: tree", "force_single_token_labels: true"), "true contradicts scoring: tree: remove one of the two"),
        (("force_single_token_labels: 1",), "1 is not true or false"),
        (("force_single_token_labels: 'true'",), "'true' is not true or false"),
    ],
)
def test_a_contradiction_about_scoring_is_refused_at_both_levels(lines: tuple[str, ...], message: str) -> None:
    refused(PROMPT + "\n".join(lines), f"force_single_token_labels: {message}")
    refused(with_prompt_line("\n    ".join(lines)), f"prompts.category.force_single_token_labels: {message}")


def test_an_unknown_common_scoring_is_refused() -> None:
    refused(PROMPT + "scoring: sum\n", "scoring: 'sum' is not one of tree, first_token, joint, mean")


def test_a_prompts_label_end_goes_before_the_common_one() -> None:
    assert parse(PROMPT + "label_end: A\n").prompts[0].label_end == "A"
    assert parse(with_prompt_line("label_end: B") + "label_end: A\n").prompts[0].label_end == "B"
    refused(PROMPT + "label_end: 1\n", "label_end: 1 is a number, not text")


@pytest.mark.parametrize(
    ("key", "low", "words"),
    [
        ("n_gpu_layers", 0, ["auto", "all"]),
        ("n_threads", 1, ["auto"]),
        ("n_ctx", 1, ["auto"]),
        ("n_batch", 1, ["auto"]),
        ("max_query_tokens", 1, []),
        ("max_batch", 1, []),
        ("max_waiting", 0, []),
        ("warm_query_tokens", 0, ["auto"]),
        ("n_shapes", 0, ["auto"]),
        ("question_cells", 0, ["auto"]),
    ],
)
def test_the_numbers_of_the_runtime_have_limits(key: str, low: int, words: list[str]) -> None:
    for value in (low, low + 1, (1 << 24) - 1, *words):
        assert getattr(parse(f"{PROMPT}runtime: {{{key}: {value}}}").runtime, key) == value
    choices = "".join(f" or {word}" for word in words)
    others = {"auto": "'auto'", "all": "'all'"}
    for yaml_text, value in {
        str(low - 1): str(low - 1),
        str(1 << 24): str(1 << 24),
        "-1": "-1",
        "1.0": "1.0",
        "true": "True",
        "null": "None",
        "'1'": "'1'",
        "[1]": "[1]",
        "some": "'some'",
        **{word: text for word, text in others.items() if word not in words},
    }.items():
        refused(
            f"{PROMPT}runtime: {{{key}: {yaml_text}}}",
            f"runtime.{key}: {value} is not a whole number from {low} to 16777215{choices}",
        )


@pytest.mark.parametrize(("key", "low", "high"), [("n_seq_max", 1, 4096), ("question_prefixes", 0, 4095)])
def test_the_numbers_of_sequences_end_where_those_of_llama_cpp_do(key: str, low: int, high: int) -> None:
    for value in (low, high, "auto"):
        assert getattr(parse(f"{PROMPT}runtime: {{{key}: {value}}}").runtime, key) == value
    for value in (low - 1, high + 1, "all"):
        refused(
            f"{PROMPT}runtime: {{{key}: {value}}}",
            f"runtime.{key}: {value!r} is not a whole number from {low} to {high} or auto",
        )


@pytest.mark.parametrize(("value", "loaded"), [("auto", "auto"), ("true", True), ("false", False)])
def test_flash_attn_is_auto_true_or_false(value: str, loaded: bool | str) -> None:
    assert parse(f"{PROMPT}runtime: {{flash_attn: {value}}}").runtime.flash_attn == loaded


@pytest.mark.parametrize("value", ["1", "null", "enabled", "[true]"])
def test_another_flash_attn_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^runtime\.flash_attn: .* is not auto, true or false$"):
        parse(f"{PROMPT}runtime: {{flash_attn: {value}}}")


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_the_kv_types_load(kv_type: str) -> None:
    assert parse(f"{PROMPT}runtime: {{kv_type: {kv_type}}}").runtime.kv_type == kv_type


@pytest.mark.parametrize("kv_type", ["q5_1", "F16", "16", "null", "[f16]", "true"])
def test_another_kv_type_is_refused(kv_type: str) -> None:
    with pytest.raises(ConfigError, match=r"^runtime\.kv_type: .* is not one of f16, q8_0, bf16, f32, q4_0$"):
        parse(f"{PROMPT}runtime: {{kv_type: {kv_type}}}")


def test_a_hub_model_takes_a_quantization_and_a_revision() -> None:
    text = PROMPT + "model: {hf_repo: user/repo, quantization: Q8_0, revision: main}\n"
    assert parse(text).model == ModelConfig(hf_repo="user/repo", quantization="Q8_0", revision="main")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{path: a.gguf, hf_repo: user/repo}", "model: path and hf_repo are both given: keep one of them"),
        ("{quantization: Q8_0}", "model.quantization: is only for hf_repo, which is not given"),
        ("{path: a.gguf, quantization: Q8_0}", "model.quantization: is only for hf_repo, which is not given"),
        ("{revision: main}", "model.revision: is only for hf_repo, which is not given"),
        ("{path: 1}", "model.path: 1 is a number, not text"),
        ("{path: ''}", "model.path: is empty: give it a text or remove it"),
        ("{hf_repo: [user/repo]}", "model.hf_repo: ['user/repo'] is a list, not text"),
        ("{hf_repo: user/repo, quantization: 8}", "model.quantization: 8 is a number, not text"),
    ],
)
def test_an_unusable_model_is_refused(model: str, message: str) -> None:
    refused(f"{PROMPT}model: {model}\n", message)


def test_a_model_path_resolves_from_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "folder" / "config.yaml"
    file.parent.mkdir()
    for given, expected in {
        "a.gguf": file.parent / "a.gguf",
        "../a.gguf": tmp_path / "a.gguf",
        "/models/a.gguf": Path("/models/a.gguf"),
        "~/a.gguf": tmp_path / "home" / "a.gguf",
    }.items():
        file.write_text(f"{PROMPT}model: {{path: {given}}}\n", encoding="utf-8")
        assert load_config(file).model.path == expected
    assert parse(f"{PROMPT}model: {{path: a.gguf}}\n").model.path == FOLDER / "a.gguf"


def test_a_configuration_may_be_named_from_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text(PROMPT, encoding="utf-8")
    assert load_config("~/config.yaml").path == tmp_path / "config.yaml"


def test_a_home_folder_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="~no-such-user"):
        load_config("~no-such-user/config.yaml")
    with pytest.raises(ConfigError, match=r"^model\.path: .*~no-such-user"):
        parse(PROMPT + "model: {path: ~no-such-user/a.gguf}\n")


@pytest.mark.parametrize("content", [b"", b"- a\n", b"prompts: [", PROMPT.encode() * 2, PROMPT.encode() + b"x: 1\n"])
def test_a_refusal_begins_with_the_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as text_error:
        parse(content.decode())
    with pytest.raises(ConfigError) as file_error:
        load_config(file)
    assert str(file_error.value) == f"{file}: {text_error.value}"


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "latin-1.yaml"
    text = with_labels("[très, tee]")
    file.write_bytes(text.encode("latin-1"))
    message = f"{file}: the configuration is not valid UTF-8 at byte {text.index('è')}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        load_config(file)


def test_a_byte_order_mark_and_dos_line_ends_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "dos.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + MISSION.replace("\n", "\r\n").encode())
    assert load_config(file).prompts == parse(MISSION).prompts


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: the configuration cannot be read: "):
            load_config(str(path))


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_a_quantised_cache_needs_flash_attention(kv_type: str) -> None:
    refused(f"{PROMPT}runtime: {{flash_attn: false, kv_type: {kv_type}}}", f"runtime.kv_type: {kv_type} needs flash")


def test_a_configuration_made_in_python_is_checked_as_a_file_is() -> None:
    config = parse(MISSION)
    first: Any = config.prompts[0]
    # only a file's template ends in a line break that nobody means
    assert replace(first, prompt_template="{query}\n\n").prompt_template == "{query}\n\n"
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: replace(config, prompts=()), "prompts: expected a list of at least one prompt"),
        (lambda: replace(config, prompts=(first, first)), "prompts[1]: name 'category' is given twice"),
        (lambda: replace(config, runtime=3), "runtime: expected keys and values, got a number"),  # type: ignore[arg-type]
        (lambda: replace(first, labels=()), "prompts.category.labels: expected a list of at least two labels"),
        (lambda: replace(first, labels="red"), "prompts.category.labels: expected a list of at least two"),
        (lambda: replace(first, scoring="sum"), "prompts.category.scoring: 'sum' is not one of"),
        (
            lambda: replace(first, lable_prefix=" "),
            "prompts.category.lable_prefix: unknown key, did you mean label_pre",
        ),
        (lambda: PromptConfig(name="a"), "prompts.a.prompt_template: is missing"),  # type: ignore[call-arg]
        (lambda: RuntimeConfig(max_batch=0), "runtime.max_batch: 0 is not a whole number from 1"),
        (lambda: RuntimeConfig(n_ctx=10**5000), "runtime.n_ctx: a number of thousands of digits is not a whole number"),
        (lambda: RuntimeConfig(kv_type="foo"), "runtime.kv_type: 'foo' is not one of"),  # type: ignore[arg-type]
        (lambda: ModelConfig(quantization="Q8_0"), "model.quantization: is only for hf_repo"),
    ]
    for make, message in wrong:
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            make()


def test_a_configuration_is_unchangeable_and_its_parts_are_given_by_name() -> None:
    config = parse(MISSION)
    with pytest.raises(AttributeError):
        config.runtime.n_ctx = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        RuntimeConfig(3)  # type: ignore[call-arg]
    assert hash(config) == hash(parse(MISSION))


def test_settings_are_values() -> None:
    """They go to other processes, are keys of dictionaries, and are told apart by their repr."""
    config, again = parse(PROMPT), parse(PROMPT)
    other = replace(config.prompts[0], label_prefix="")
    assert pickle.loads(pickle.dumps(config)) == config
    for part, equal in ((config, again), (config.prompts[0], again.prompts[0]), (ModelConfig(), ModelConfig())):
        assert {part: 1}[equal] == 1
        assert repr(part) == repr(equal)
    assert other not in {config.prompts[0]: 1}
    assert repr(other) != repr(config.prompts[0])


def test_paths_given_in_python_start_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ModelConfig(path=Path("a.gguf")).path == tmp_path / "a.gguf"
    with pytest.raises(ConfigError, match=r"^model\.path: 'a.x00' has a null byte"):
        ModelConfig(path=Path("a\0"))


def test_every_mistake_of_a_file_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"scoring: sum\n{with_labels('[dress, yes, 3]')}runtime: {{n_ctx: 0, n_bach: 1}}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value).splitlines() == [
        f"{file}: scoring: 'sum' is not one of tree, first_token, joint, mean",
        f"{file}: prompts.category.labels[1]: True is a truth value, not text: write it in quotes",
        f"{file}: prompts.category.labels[2]: 3 is a number, not text: write it in quotes",
        f"{file}: runtime.n_ctx: 0 is not a whole number from 1 to 16777215 or auto",
        f"{file}: runtime.n_bach: unknown key, did you mean n_batch?",
    ]
    with pytest.raises(ConfigError, match=r"\nand 30 more mistakes$"):
        parse(with_labels(f"[{', '.join(map(str, range(50)))}]"))


def test_the_schema_of_the_configs_folder_is_what_the_command_prints() -> None:
    committed = json.loads((CONFIGS[0].parent / "config.schema.json").read_text(encoding="utf-8"))
    assert committed == json.loads(schema_text()), "run: qcls-gguf schema > configs/config.schema.json"
    for path in CONFIGS:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=config.schema.json"
        Draft202012Validator(committed).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_every_key_is_explained_in_the_schema() -> None:
    schema = config_json_schema()
    for part in (schema, *schema["$defs"].values()):
        assert [key for key, value in part["properties"].items() if not value.get("description")] == []
