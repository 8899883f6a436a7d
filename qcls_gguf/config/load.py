"""A configuration file: read into a Config by the rules of schema.py, its values from a Config, its JSON Schema."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema

from ..errors import ConfigError, prefixed
from .prompt import TEXT_KEYS
from .resources import config_path
from .schema import Config, ConfigFile
from .settings import Mistake, config_error, given, mistakes
from .words import JsonObject, kind_of
from .yaml_values import load_yaml, read_text

_SCORING_KEYS = ("scoring", "force_single_token_labels")
_SHARED = (
    *TEXT_KEYS, *_SCORING_KEYS, "label_end", "label_orders", "prior", "content_free_queries", "min_confidence",
    "fallback",
)  # fmt: skip
"""Settings of prompts that the top level may give for all of them; a prompt's own setting wins."""


def load_config(path: str | Path) -> Config:
    """Read and check a configuration: a file, or one that comes with the package, by its name, such as `fashion-8`.

    Raises ConfigError, with a line for every mistake.
    """
    try:
        file = config_path(path).expanduser()
    except RuntimeError as e:  # the home folder of an unknown user
        raise ConfigError(f"{path}: the configuration cannot be read: {e}") from None
    with prefixed(str(file)):
        return parse_config(read_text(file, "the configuration"), folder=file.parent, path=file)


def parse_config(text: str, *, folder: Path, path: Path | None = None) -> Config:
    """Check a configuration given as YAML text; relative paths in it resolve from folder. Raises ConfigError."""
    file = load_yaml(text)
    tree = file.values
    if not isinstance(tree, dict):
        raise ConfigError(f"the configuration: expected keys and values, got {kind_of(tree)}")
    body = {key: value for key, value in given(tree).items() if key not in _SHARED}
    shared = {key: tree[key] for key in _SHARED if tree.get(key) is not None}
    if isinstance(body.get("prompts"), list):
        body["prompts"] = [_prompt(prompt, shared) for prompt in body["prompts"]]
    try:
        found = ConfigFile.model_validate(body, context={"folder": folder})
    except ValidationError as e:
        wrong = [_at_its_place(mistake, tree) for mistake in mistakes(e, ConfigFile, _SHARED)]
        raise config_error(dict.fromkeys(wrong), tree, file=file) from None
    return Config.model_construct(path=path, **dict(found))


def _prompt(prompt: Any, shared: JsonObject) -> Any:
    """A prompt of the file, completed by the settings for all prompts."""
    own = given(prompt, keep=("label_prefix",))
    if not isinstance(own, dict):
        return own
    replaced = [*_SCORING_KEYS] if any(key in own for key in _SCORING_KEYS) else []
    if "prompt_template" in own:
        replaced += TEXT_KEYS
    elif any(key in own for key in TEXT_KEYS):
        replaced.append("prompt_template")
    common = {key: value for key, value in shared.items() if key not in replaced}
    values = {**common, **own}
    for key in TEXT_KEYS:  # YAML's blocks (`|`) add a line break, which a copy by a program has in quotes
        if isinstance(text := values.get(key), str):
            values[key] = text.removesuffix("\n")
    return values


def _at_its_place(mistake: Mistake, tree: dict[Any, Any]) -> Mistake:
    """A mistake in a prompt at the top level, if the setting is given there for all prompts."""
    where = mistake.where
    if len(where) > 2 and where[0] == "prompts" and where[2] in _SHARED:
        own = tree["prompts"][where[1]]
        if own.get(where[2]) is None and tree.get(where[2]) is not None:
            return Mistake(where[2:], mistake.what)
    return mistake


class _Schema(GenerateJsonSchema):
    """Without titles, which only repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """For pydantic."""
        return False


def config_json_schema() -> JsonObject:
    """The schema, with the description and the limits of every key."""
    schema: JsonObject = ConfigFile.model_json_schema(schema_generator=_Schema)
    of_prompts = schema["$defs"]["PromptConfig"]["properties"]
    for key in _SHARED:
        text = f"for prompts without one of their own: {of_prompts[key]['description']}"
        schema["properties"][key] = {**of_prompts[key], "description": text}
    return {"$schema": _Schema.schema_dialect, **schema}
