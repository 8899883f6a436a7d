"""A configuration file: read into a Config by the rules of schema.py, its values from a Config, its JSON Schema."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema

from ..errors import ConfigError
from .prompt import (
    TEXT_KEYS,
    Confidence,
    Prior,
    PromptConfig,
    Queries,
    refuse_other_texts,
    resolve_forced,
)
from .resources import config_path
from .rules import File, FilledText, Text, Truth, VisibleText
from .schema import (
    CascadeConfig,
    CascadeStage,
    Config,
    IgnoredKinds,
    ModelConfig,
    Prompts,
    RuntimeConfig,
    StagePrompt,
)
from .scoring import Scoring
from .settings import Mistake, Settings, check, config_error, given, mistakes, prefixed, refusal, settings
from .template import SLOT, no_query
from .words import JsonObject, kind_of
from .yaml_values import load_yaml, read_text, text_block


@settings
class Shared(Settings):
    """Settings of prompts that the top level may give for all of them; a prompt's own setting wins."""

    prompt_template: Text | None = None
    """the whole text of prompts without one of their own; {name}, {labels} and {describe} are filled for each prompt"""
    system: Text | None = None
    """instead of prompt_template: the system message of prompts without texts of their own, or with only a user text"""
    user: Text | None = None
    """the user message of prompts without texts of their own"""
    answer_cue: Text | None = None
    """the beginning of the answer to such prompts, such as `{name}:`"""
    scoring: Scoring | None = None
    """how a label's tokens become its score, for prompts without a scoring of their own"""
    force_single_token_labels: Truth | None = None
    """true: the same as scoring first_token"""
    label_end: FilledText | None = None
    """the token that ends a label with which another begins, for prompts without one of their own"""
    prior: Prior | None = None
    """content_free: subtract the log-probabilities that the labels get for queries without content"""
    content_free_queries: Queries | None = None
    """the queries from which such a prior is computed"""
    min_confidence: Confidence | None = None
    """answer the fallback if the best label is less probable"""
    fallback: VisibleText | None = None
    """the answer below min_confidence; need not be a label"""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        found = given(values)
        return resolve_forced(found) if isinstance(found, dict) else found

    @model_validator(mode="after")
    def _check(self) -> Shared:
        if self.prompt_template is not None:
            if (n_slots := self.prompt_template.count(SLOT)) != 1:
                remedy = "it needs exactly one" if n_slots else no_query(self.prompt_template)
                raise refusal(f"has {n_slots} {SLOT} slots: {remedy}", "prompt_template")
            refuse_other_texts(self)
        return self


@settings
class ConfigFile(Shared):
    """A configuration of qcls-gguf: prompts and their labels, the model, and how to run it."""

    prompts: Prompts
    """the prompts, all of which every query is labelled by"""
    model: ModelConfig = field(default_factory=ModelConfig)
    """the model: a file, Ollama's, or a repository on the Hugging Face hub; default: the embedded model"""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """how to run it"""
    calibration: File | None = None
    """the file that `qcls-gguf calibrate` wrote; a relative path starts from the configuration's folder"""
    heads: File | None = None
    """the file that `qcls-gguf learn` wrote; a relative path starts from the configuration's folder"""
    cascade: CascadeConfig | None = None
    """cheaper configurations that are asked first, as `qcls-gguf advise` writes them"""
    ignore_warnings: IgnoredKinds = ()
    """kinds of likely mistakes in the prompts that are not reported, such as untrained; all suppresses every one"""


_SHARED = tuple(Shared.__pydantic_fields__)  # type: ignore[attr-defined]


_ANY_TEXT = {"prompt_template": SLOT}
"""In place of wrong shared settings, so that mistakes of single prompts are still found."""


def load_config(path: str | Path) -> Config:
    """Read and check a configuration: a file, or one that comes with the package, by its name, such as `fashion-8`.

    Raises ConfigError, with a line for each mistake.
    """
    try:
        file = config_path(path).expanduser()
    except RuntimeError as e:  # the home folder of an unknown user
        raise ConfigError(f"{path}: the configuration cannot be read: {e}") from None
    try:
        return parse_config(read_text(file, "the configuration"), folder=file.parent, path=file)
    except ConfigError as e:
        raise prefixed(str(file), e) from None


def parse_config(text: str, *, folder: Path, path: Path | None = None) -> Config:
    """Check a configuration given as YAML text; relative paths in it resolve from folder. Raises ConfigError."""
    file = load_yaml(text)
    tree = file.values
    if not isinstance(tree, dict):
        raise ConfigError(f"the configuration: expected keys and values, got {kind_of(tree)}")
    wrong: list[Mistake] = []
    shared = _shared(tree, wrong)
    body = {key: value for key, value in given(tree).items() if key not in _SHARED}
    if isinstance(body.get("prompts"), list):
        body["prompts"] = [_prompt(prompt, shared) for prompt in body["prompts"]]
    try:
        found = check(ConfigFile, body, folder=folder)
    except ValidationError as e:
        wrong += mistakes(e, ConfigFile)
    if wrong:
        raise config_error(wrong, tree, file=file)
    return Config(
        prompts=found.prompts,
        model=found.model,
        runtime=found.runtime,
        calibration=found.calibration,
        heads=found.heads,
        cascade=found.cascade,
        ignore_warnings=found.ignore_warnings,
        path=path,
    )


def _shared(tree: dict[Any, Any], wrong: list[Mistake]) -> JsonObject:
    """The settings for all prompts; their mistakes are added to wrong once, not for each prompt."""
    try:
        found = check(Shared, _without_last_breaks({key: tree[key] for key in _SHARED if key in tree}))
    except ValidationError as e:
        wrong += mistakes(e, Shared)
        return _ANY_TEXT
    values = {key: getattr(found, key) for key in _SHARED if key != "force_single_token_labels"}
    return {key: value for key, value in values.items() if value is not None}


def _prompt(prompt: Any, shared: JsonObject) -> Any:
    """A prompt of the file, completed by the settings for all prompts."""
    own = given(prompt, keep=("label_prefix",))
    if not isinstance(own, dict):
        return own
    common = {key: value for key, value in shared.items() if key != "scoring" or "force_single_token_labels" not in own}
    has_own = [key for key in TEXT_KEYS if key in own]
    if "prompt_template" in own:
        common = {key: value for key, value in common.items() if key not in TEXT_KEYS}
    elif has_own:
        common.pop("prompt_template", None)
    return {**common, **_without_last_breaks(own)}


def _without_last_breaks(values: dict[Any, Any]) -> dict[Any, Any]:
    """The values without the final line break of prompt texts, which YAML's block scalars (`|`) add."""
    return {
        key: value.removesuffix("\n") if key in TEXT_KEYS and isinstance(value, str) else value
        for key, value in values.items()
    }


def config_tree(config: Config) -> JsonObject:
    """The values of a configuration's file. The loader makes the same configuration of them; names of files are
    absolute."""
    parts = {"model": _changed(config.model, ModelConfig()), "runtime": _changed(config.runtime, RuntimeConfig())}
    tree: JsonObject = {key: values for key, values in parts.items() if values}
    for key in ("calibration", "heads", "cascade", "ignore_warnings"):
        if value := getattr(config, key):
            tree[key] = _plain(value)
    prompts = [_changed(prompt) for prompt in config.prompts]
    for key in TEXT_KEYS:
        if len(prompts) > 1 and key in prompts[0] and all(each.get(key) == prompts[0][key] for each in prompts):
            tree[key] = prompts[0][key]
            for prompt in prompts:
                del prompt[key]
    return {**tree, "prompts": prompts}


def _changed(values: object, default: object = None) -> JsonObject:
    """The settings that are no defaults."""
    found: JsonObject = {}
    for key in dataclasses.fields(values):  # type: ignore[arg-type]
        value = getattr(values, key.name)
        if value != (key.default if default is None else getattr(default, key.name)):
            is_text = key.name in TEXT_KEYS and isinstance(value, str)
            found[key.name] = text_block(value) if is_text else _plain(value)
    return found


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return {key.name: _plain(getattr(value, key.name)) for key in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value.absolute()) if isinstance(value, Path) else value


class _Schema(GenerateJsonSchema):
    """Without titles, which only repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """For pydantic."""
        return False


def config_json_schema() -> JsonObject:
    """The schema, with the description and the limits of every key."""
    schema: JsonObject = TypeAdapter(ConfigFile).json_schema(schema_generator=_Schema)
    _describe(schema, ConfigFile, Shared)
    describe_settings(schema["$defs"])
    return {"$schema": _Schema.schema_dialect, **schema}


def describe_settings(definitions: JsonObject) -> None:
    """Give the fields of settings their descriptions, wherever these stand among the definitions of a JSON Schema.

    definitions: schemas by the names of their types. pydantic reads no docstrings of types that are built late.
    """
    for cls in (CascadeConfig, CascadeStage, Config, ModelConfig, PromptConfig, RuntimeConfig, StagePrompt):
        if cls.__name__ in definitions:
            _describe(definitions[cls.__name__], cls)


def _describe(schema: JsonObject, *classes: type) -> None:
    """Give keys the docstrings below their fields, which Python itself does not keep; a type has its own."""
    texts = {name: text for cls in classes for name, text in _docstrings(cls).items()}
    for name, key in schema["properties"].items():
        if name in texts:
            key["description"] = texts[name]


def _docstrings(cls: type) -> dict[str, str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return {
        key.target.id: " ".join(text.value.value.split())
        for key, text in pairwise(node.body)
        if isinstance(key, ast.AnnAssign)
        and isinstance(key.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
