"""A model ladder: other models for the same prompts, one below the other in a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import ValidationError

from ..config.rules import at_least, at_most
from ..config.schema import ModelConfig
from ..config.settings import Settings, check, config_error, mistakes, prefixed, settings
from ..config.yaml_values import load_yaml, read_text
from ..errors import ConfigError
from ..model import Model

_MOST = 20


@settings
class LadderFile(Settings):
    """The models that are tried besides the configuration's."""

    models: Annotated[tuple[ModelConfig, ...], at_least(1, "at least one model"), at_most(_MOST, "models")]
    """each as `model` of a configuration"""


def read_ladder(path: Path) -> tuple[ModelConfig, ...]:
    """The models of a ladder; paths start from its folder. Raises ConfigError, with a line for each mistake."""
    try:
        tree = load_yaml(read_text(path, "the ladder"))
        if not isinstance(tree, dict):
            raise ConfigError("the ladder: expected the key models with a list of models")
        try:
            return check(LadderFile, tree, folder=path.parent).models
        except ValidationError as e:
            raise config_error(mistakes(e, LadderFile), tree) from None
    except ConfigError as e:
        raise prefixed(f"`models` {path}", e) from None


def model_name(model: ModelConfig) -> str:
    """A model as a table names it."""
    if model.hf_repo:
        repo, _, quantization = model.hf_repo.partition("/")[2].partition(":")
        revision = f"@{model.revision}" if model.revision and "@" not in repo else ""
        quantization = model.quantization or quantization
        return f"{repo}{revision}" + (f":{quantization}" if quantization else "")
    if model.ollama:
        return f"ollama:{model.ollama}"
    return model.path.stem if model.path else "embedded"


def check_vocabulary(first: Model, other: Model, texts: list[str]) -> None:
    """Raise ConfigError where another model does not read these texts as the first does."""
    n, n_other = first.facts.n_vocab, other.facts.n_vocab
    if n != n_other:
        raise ConfigError(f"has another vocabulary: {n_other} tokens, the original model {n}")
    for text in texts:
        if first.tokenize(text, parse_special=True).tolist() != other.tokenize(text, parse_special=True).tolist():
            raise ConfigError("has another vocabulary: it tokenises the prompts differently from the original model")
