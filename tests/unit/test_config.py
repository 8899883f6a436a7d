"""The strict loader: what loads, and for every refusal the place and the words."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import cases, written
from config_texts import CONFIGS, FOLDER, MISSION, PROMPT, parse, refused, with_labels, with_prompt_line
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from qcls_gguf import Config, ConfigError, ModelConfig, PromptConfig, RuntimeConfig
from qcls_gguf.config.load import config_json_schema, load_config, parse_config
from qcls_gguf.config.resources import config_names, config_path, schema_path
from qcls_gguf.config.scoring import SCORINGS
from qcls_gguf.config.yaml_values import load_yaml, text_block, yaml_text


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
    for prompt in config.prompts:
        assert (prompt.label_prefix, prompt.scoring, prompt.label_end) == (" ", "tree", None)
    assert (config.model, config.runtime, config.path) == (ModelConfig(), RuntimeConfig(), None)


def test_labels_keep_their_order_and_their_text() -> None:
    labels = parse(with_labels("['yes', \"no\", '1', ' tee ', 'null', 红色, 2024-01-01]")).prompts[0].labels
    assert labels == ("yes", "no", "1", " tee ", "null", "红色", "2024-01-01")


@cases(
    (PROMPT + "promts: []\n", "promts: unknown key, did you mean prompts?"),
    (with_prompt_line("label_prefx: a"), "prompts.category.label_prefx: unknown key, did you mean label_prefix?"),
    (PROMPT + "\xa0scoring: tree\n", r"'\xa0scoring': unknown key, it has a no-break space (U+00A0): write plain"),
    ("", "the configuration: expected keys and values, got nothing"),
    ("prompts: []\n", "prompts: [] should have at least 1 item, not 0"),
    ("prompts: {name: a}\n", "prompts: expected a list, got a mapping: begin each item with -"),
    (PROMPT + "model: a.gguf\n", "model: expected keys and values, got text: write it below, after path: or"),
    (PROMPT + PROMPT, "not valid YAML: line 5: key 'prompts' is given twice"),
    (with_prompt_line("label_prefix: null"), "prompts.category.label_prefix: is nothing, which YAML makes of null"),
    (with_prompt_line("scoring: [tree]"), "prompts.category.scoring: ['tree'] should be 'tree', 'first_token', "),
    (PROMPT + "model: {path: a.gguf, hf_repo: user/repo}", "model: path and hf_repo are both given: keep one"),
    (PROMPT + "model: {quantization: Q8_0}", "model.quantization: was removed: write them into hf_repo"),
    ("prompts: [{prompt_template: '{query}', labels: [x, y]}]", "prompts[0].name: is missing"),
    ("prompts: [{name: a, prompt_template: null, labels: [x, y]}]", "prompts.a.prompt_template: is missing"),
    ("prompts: [{name: a, prompt_template: '{query}'}]", "prompts.a.labels: is missing"),
    (PROMPT.replace("{query}", "{query} {query}"), "prompts.category.prompt_template: has 2 {query} slots: it needs"),
    (PROMPT + "runtime: {flash_attn: 1}", "runtime.flash_attn: 1 should be true or false, or 'auto'"),
    (PROMPT + "runtime: {kv_type: q5_1}", "runtime.kv_type: 'q5_1' should be 'f16', 'q8_0', 'bf16'"),
    (PROMPT + "scoring: tree\nforce_single_token_labels: true", "force_single_token_labels: true contradicts"),
    (with_prompt_line("content_free_queries: [a, a]"), "prompts.category.content_free_queries[1]: query 'a' is"),
    (PROMPT + "label_end: 1\n", "label_end: 1 is a number, not text"),
    (with_prompt_line("temperature: 0"), "prompts.category.temperature: 0 should be greater than or equal to 0.01"),
)
def test_what_is_wrong_is_refused_at_its_place(text: str, message: str) -> None:
    refused(text, message)


@pytest.mark.parametrize("key", ["name", "prompt_template", "label_prefix", "label_end"])
def test_half_a_surrogate_pair_is_refused(key: str) -> None:
    values: dict[str, Any] = {"name": "a", "prompt_template": "{query}", "labels": ("x", "y"), key: "{query} \ud800"}
    with pytest.raises(ConfigError, match=rf"{key}: .* is not valid Unicode"):
        PromptConfig(**values)


@cases(
    ("", "", "tree"),
    ("scoring: first_token", "", "first_token"),
    ("force_single_token_labels: true", "", "first_token"),
    ("", "force_single_token_labels: true", "first_token"),
    ("force_single_token_labels: true", "scoring: tree", "tree"),
    ("force_single_token_labels: true", "force_single_token_labels: false", "tree"),
    ("scoring: first_token", "force_single_token_labels: false", "tree"),
    ("scoring: tree", "force_single_token_labels: true", "first_token"),
)
def test_a_prompts_scoring_goes_before_the_common_one(top: str, own: str, scoring: str) -> None:
    assert parse(with_prompt_line(own) + top).prompts[0].scoring == scoring


@cases(
    ("n_gpu_layers", 0, (1 << 24) - 1, ["auto", "all"]),
    ("n_threads", 1, (1 << 24) - 1, ["auto"]),
    ("max_query_tokens", 1, (1 << 24) - 1, []),
    ("max_waiting", 0, (1 << 24) - 1, []),
    ("question_cells", 0, (1 << 24) - 1, ["auto"]),
    ("n_seq_max", 1, 4096, ["auto"]),  # as llama.cpp's patched limit is
    ("question_prefixes", 0, 4095, ["auto"]),
)
def test_the_numbers_of_the_runtime_have_limits(key: str, low: int, high: int, words: list[str]) -> None:
    for value in (low, low + 1, high, *words):
        assert getattr(parse(f"{PROMPT}runtime: {{{key}: {value}}}").runtime, key) == value
    choices = f", or {' or '.join(map(repr, words))}" if words else ""
    for wrong, limit in ((low - 1, f"greater than or equal to {low}"), (high + 1, f"less than or equal to {high}")):
        refused(f"{PROMPT}runtime: {{{key}: {wrong}}}", f"runtime.{key}: {wrong} should be {limit}{choices}")
    for value in (1.0, True, None, "1", [1], "some", *({"auto", "all"} - set(words))):
        text = f"{PROMPT}runtime: {{{key}: {json.dumps(value)}}}"
        refused(text, f"runtime.{key}: {value!r} should be a whole number{choices}")


@cases(
    ("labels: [dress, true]", "write it in quotes", "labels: [dress, 'true']"),
    ("labels: [dress, 3]", "write it in quotes", "labels: [dress, '3']"),
    ("labels: [dress, null]", "the word null in quotes", "labels: [dress, 'null']"),
    ("labels: [dress, a: b]", "a text with a colon in quotes", "labels: [dress, 'a: b']"),
    ("labels: [dress, @b]", "text that begins with @ or ` in quotes", "labels: [dress, '@b']"),
    ("labels: [dress, !b ]", "text that begins with ! in quotes", "labels: [dress, '!b']"),
    ("labels: [dress, *b ]", "text that begins with * in quotes", "labels: [dress, '*b']"),
    ("labels:\n    - #b\n    - tee", "that begins with # or &", "labels:\n    - '#b'\n    - tee"),
    ("labels:\n    - [b]\n    - tee", "in quotes if it begins with [", "labels:\n    - '[b]'\n    - tee"),
    ("labels: dress", "write [one, two]", "labels: [dress, tee]"),
    ("labels: [dress, tee, dress]", "given twice", "labels: [dress, tee]"),
    ("labels: {dress: 1, tee: }", "or leave the place empty", "labels: {dress: , tee: }"),
    ("labels: {<<: 1, tee: }", "write the text << in quotes", "labels: {'<<': , tee: }"),
    ("labels:\n    - >\n    - tee", "one that begins with > or | in quotes", "labels:\n    - '>'\n    - tee"),
    ("labels:\n      >: a", "a text that begins with > or | in quotes", "labels:\n      '>': a\n      tee: b"),
    ("min_confidence: 0.5", "give both or neither", "min_confidence: 0.5\n    fallback: unsure"),
    ("fallback: unsure", "give both or neither", ""),
    ("scoring: joint\n    force_single_token_labels: true", "remove one of the two", "scoring: joint"),
    ("system: a", "keep one of the two", ""),
    ("label_end: ''", "or remove it", ""),
    ("label_descriptions: [a]", "give one, or null, for each", "label_descriptions: [a, null]"),
    ("prompt_template: a", "it needs exactly one", "prompt_template: a {query}"),
    ("prompt_template: '{text}'", "did you mean {query} by {text}?", "prompt_template: '{query}'"),
    ("prompt_template: '{query} {describe}'", "give it, or remove the slot", "describe: what it is"),
    ("calibration: 3", "write it in quotes", "calibration: '3'"),
    ("runtime: {flash_attn: false, kv_type: q4_0}", "kv_type to f16", "runtime: {flash_attn: false, kv_type: f16}"),
    ("runtime: {kv_type: q8_0, flash_attn: false}", "flash_attn to auto or true", "runtime: {kv_type: q8_0}"),
    ("model: a.gguf", "write it below, after path:", "model: {path: a.gguf}"),
    ("model: {path: a, ollama: b}", "keep one of them", "model: {ollama: b}"),
    ("model: {chat_variables: {a-b: 1}}", "use letters, digits and _", "model: {chat_variables: {a_b: 1}}"),
    ("ignore_warnings: all", "write [one, two]", "ignore_warnings: [all]"),
    ("ignore_warning: [all]", "did you mean ignore_warnings?", "ignore_warnings: [all]"),
)
def test_a_remedy_that_is_followed_is_accepted(wrong: str, remedy: str, right: str) -> None:
    def text(lines: str) -> str:
        key = lines.partition(":")[0]
        if key in ("calibration", "runtime", "model") or key.startswith("ignore"):
            return f"{PROMPT}{lines}\n"
        others = {"labels": "[dress, tee]", "prompt_template": '"query: {query} label:"'}
        kept = "".join(f"    {name}: {value}\n" for name, value in others.items() if not lines.startswith(name + ":"))
        return f"prompts:\n  - name: category\n{kept}    {lines}\n"

    with pytest.raises(ConfigError, match=re.escape(remedy)):
        parse(text(wrong))
    parse(text(right))


# Configurations as files and as Python values: names, paths, encodings, every mistake with its line, the schema.


def test_a_model_path_resolves_from_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "folder" / "config.yaml"
    file.parent.mkdir()
    places = {"a.gguf": "folder/a.gguf", "../a.gguf": "a.gguf", "/m/a.gguf": "/m/a.gguf", "~/a.gguf": "home/a.gguf"}
    for path, place in places.items():
        file.write_text(f"{PROMPT}model: {{path: {path}}}\n", encoding="utf-8")
        assert load_config(file).model.path == tmp_path / place
    assert parse(f"{PROMPT}model: {{path: a.gguf}}\n").model.path == FOLDER / "a.gguf"
    (tmp_path / "home").mkdir()
    file.rename(tmp_path / "home" / "config.yaml")
    assert load_config("~/config.yaml").path == tmp_path / "home" / "config.yaml"


@cases(
    ("|\n  {query}", ""),
    ("|-\n  {query}\n", ""),
    (">\n  {query}\n", ""),
    ("|+\n  {query}\n\n", "\n\n"),
    ('"{query}\\n"', ""),  # as a program writes a copy of a block
    ('"{query}"', ""),
    ('"{query} "', " "),
)
def test_the_line_break_that_yaml_adds_is_no_part_of_a_text(text: str, kept: str) -> None:
    alias = "prompts:\n- {name: a, labels: [x, y]}\n- {name: b, labels: [x, y], prompt_template: *text}\n"
    config = parse(f"prompt_template: &text {text}\n{alias}")
    assert [prompt.prompt_template for prompt in config.prompts] == [f"{{query}}{kept}"] * 2


@pytest.mark.parametrize("text", ["a", "a\nb", "a \nb", "a\n\n", "\ta\nb\n", "a\x07\nb"])
def test_texts_that_are_written_are_read_as_they_were(text: str) -> None:
    assert load_yaml(yaml_text({"system": text_block(text)})).values["system"].removesuffix("\n") == text


@pytest.mark.parametrize("form", ["[{}, tee]", "\n    - {}\n    - tee"])
@pytest.mark.parametrize("sign", "#-?!&*@`%|>'\"[]{}:~=<$^.+()")
def test_a_label_that_begins_with_any_sign_is_read_or_told_how_to_be_written(form: str, sign: str) -> None:
    for label in (sign, f"{sign}b", f"! {sign}b", f"{sign}{sign}", f"{sign}b{sign}", f"b {sign}b"):
        try:
            labels = parse(with_labels(form.replace("{}", label, 1))).prompts[0].labels
        except ConfigError as e:
            assert "quotes" in str(e), e  # noqa: PT017
        else:
            assert labels in ((label, "tee"), (label.strip("'\""), "tee")) or " #" in label


def test_a_home_folder_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="~no-such-user"):
        load_config("~no-such-user/config.yaml")
    with pytest.raises(ConfigError, match=r"model\.path: .*~no-such-user"):
        parse(PROMPT + "model: {path: ~no-such-user/a.gguf}\n")


@cases(
    (with_labels("[très, tee]").encode("latin-1"), "is not valid UTF-8 at byte 88, in line 4: save it as UTF-8"),
    (b"GGUF" + bytes(2 << 20), "is a GGUF file, which is a model: give it as the model"),
    ids=["latin-1", "model"],
)
def test_a_file_that_is_no_text_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    file = written(tmp_path / "config.yaml", content)
    with pytest.raises(ConfigError, match=re.escape(f"{file}: the configuration {message}")):
        load_config(file)


def test_a_configuration_is_unchangeable_and_its_parts_are_given_by_name() -> None:
    config = parse(MISSION)
    with pytest.raises(ValueError, match="frozen"):
        config.runtime.n_ctx = 3
    with pytest.raises(TypeError):
        RuntimeConfig(3)  # type: ignore[call-arg]
    assert hash(config) == hash(parse(MISSION))


def test_paths_given_in_python_start_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ModelConfig(path=Path("a.gguf")).path == tmp_path / "a.gguf"
    with pytest.raises(ConfigError, match=r"model\.path: 'a.x00': has a null byte"):
        ModelConfig(path=Path("a\0"))


def test_every_mistake_of_a_file_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"scoring: sum\n{with_labels('[dress, true, 3]')}runtime: {{n_ctx: 0, n_bach: 1}}\n")
    with pytest.raises(ConfigError) as error:
        load_config(file)
    *names, last = map(repr, SCORINGS)
    assert str(error.value).splitlines() == [
        f"{file}: line 1: scoring: 'sum' should be {', '.join(names)} or {last}",
        f"{file}: line 5: prompts.category.labels[1]: True is a truth value, as YAML reads true: write it in quotes",
        f"{file}: line 5: prompts.category.labels[2]: 3 is a number, not text: write it in quotes",
        f"{file}: line 6: runtime.n_ctx: 0 should be greater than or equal to 1, or 'auto'",
        f"{file}: line 6: runtime.n_bach: unknown key, did you mean n_batch?",
    ]
    with pytest.raises(ConfigError, match=r"\nand 30 more mistakes$"):
        parse(with_labels(f"[{', '.join(map(str, range(50)))}]"))


def test_the_schema_of_the_configs_folder_is_what_the_command_prints() -> None:
    committed = json.loads(CONFIGS[0].with_name("config.schema.json").read_text(encoding="utf-8"))
    assert committed == config_json_schema(), "run: qcls-gguf schema > configs/config.schema.json"
    for path in CONFIGS:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# yaml-language-server: $schema=config.schema.json\n")
        _SCHEMA.validate(yaml.safe_load(text))


def test_a_byte_order_mark_and_dos_line_ends_change_nothing(tmp_path: Path) -> None:
    file = written(tmp_path / "dos.yaml", b"\xef\xbb\xbf" + MISSION.replace("\n", "\r\n").encode())
    assert load_config(file).prompts == parse(MISSION).prompts


_TEXTS = st.sampled_from(["", " ", "a", "b", "auto", "all", "tree", "joint", "{query}", "a {labels}: {query}", "yes"])
_SCALARS = st.one_of(_TEXTS, st.none(), st.booleans(), st.integers(-2, 300), st.floats(width=16))
_VALUES = st.one_of(_SCALARS, st.lists(_SCALARS, max_size=3), st.dictionaries(_TEXTS, _SCALARS, max_size=2))
_SCHEMA = Draft202012Validator(config_json_schema())


def _some(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from([*keys, "unknown"]), _VALUES, max_size=3)


@settings(max_examples=150, derandomize=False)
@given(
    _some(*PromptConfig.model_fields), _some(*RuntimeConfig.model_fields), _some("hf_repo", "quantization", "revision")
)
def test_files_and_objects_are_alike(prompt: dict[str, Any], runtime: dict[str, Any], model: dict[str, Any]) -> None:
    """The same mistakes in the same words, or the same configuration; the schema refuses nothing that is accepted."""
    values = {"name": "n", "prompt_template": "{query}", "labels": ["a", "b"], **prompt}

    def from_file() -> Config:
        text = yaml.safe_dump({"prompts": [values], "runtime": runtime, "model": model}, sort_keys=False)
        return parse_config(text, folder=Path())

    def made() -> Config:
        return Config(prompts=(PromptConfig(**values),), runtime=RuntimeConfig(**runtime), model=ModelConfig(**model))

    def wrong(make: Callable[[], Config]) -> list[str]:
        try:
            make()
        except ConfigError as e:
            return re.sub(r"(?m)^line \d+: ", "", str(e)).splitlines()
        return []

    assert bool(wrong(made)) == bool(wrong(from_file))
    assert set(wrong(made)) <= set(wrong(from_file))
    if not wrong(made):
        assert made() == from_file()
        plain = {key: value for key, value in values.items() if value is not None}
        tree = {"prompts": [plain], "runtime": runtime, "model": {k: v for k, v in model.items() if v is not None}}
        _SCHEMA.validate(tree)


def test_every_configuration_has_a_name() -> None:
    names = ["fashion-8", "fashion-8-joint", "mission", "qwen3-8b-t4"]
    assert config_names() == names
    assert [load_config(name).path for name in names] == [CONFIGS[0].with_name(f"{name}.yaml") for name in names]
    assert schema_path().is_file()


def test_a_file_of_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mission").mkdir()
    assert config_path("mission") == CONFIGS[0].with_name("mission.yaml")  # a folder is no configuration
    (tmp_path / "mission").rmdir()
    (tmp_path / "mission").write_text("prompts: []")
    assert config_path("mission") == Path("mission")


@pytest.mark.parametrize("name", ["mission.yaml", "configs/mission.yaml"])
def test_a_file_that_is_not_there_and_is_named_like_ours_tells_our_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; .* that comes with the package is named mission"):
        config_path(tmp_path / name)


@pytest.mark.parametrize("name", ["fashion-9", "", "x" * 5000])
def test_an_unknown_name_tells_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"none of this name comes with the package, which has fashion-8, fashion-8-"):
        load_config(name)
