"""Callables with the interface of transformers' text-classification pipelines, computed by this package.

pipe = pipeline("zero-shot-classification", "user/repo-GGUF:Q4_K_M")
print(pipe("red dress", candidate_labels=["dress", "jeans"]))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from ..classifier import Classifier
from ..config.load import load_config
from ..config.prompt import PromptConfig
from ..config.resources import DEFAULT_CONFIG, OLLAMA, PACKAGE, config_names
from ..config.schema import Config, ModelConfig, RuntimeConfig
from ..config.words import hint
from ..errors import ConfigError
from ..opening import with_one_prompt
from .text_classification import TextClassificationPipeline
from .zero_shot import ZeroShotClassificationPipeline

__all__ = ["TextClassificationPipeline", "ZeroShotClassificationPipeline", "pipeline"]

P = TypeVar("P", TextClassificationPipeline, ZeroShotClassificationPipeline)

_TEXT, _ZERO_SHOT = "text-classification", "zero-shot-classification"
_TASKS = {_TEXT: _TEXT, "sentiment-analysis": _TEXT, _ZERO_SHOT: _ZERO_SHOT}
_FIRST = PromptConfig(name="text", prompt_template="Text: {query}\nanswer:", labels=("yes", "no"))
"""An engine needs a prompt to be opened with; this one is never asked."""
_ROOM = RuntimeConfig(n_batch=1024, max_batch=64, question_cells=2048)
"""Room for labels that are not known yet: long prompts, many labels, and 16 sets of them."""


def pipeline(
    task: str,
    model: str | Path | Config | ModelConfig | Classifier | None = None,
    *,
    prompt: str | None = None,
    **parameters: Any,
) -> TextClassificationPipeline | ZeroShotClassificationPipeline:
    """A callable with the interface of transformers' `text-classification` or `zero-shot-classification` pipeline.

    model: an open Classifier, which stays open; or a configuration, as for Classifier.from_config; for zero-shot
    classification also a model alone: a ModelConfig, a GGUF file, `ollama:NAME`, or `user/repo:quantization` of the
    Hugging Face hub. None: the embedded model. prompt: the configuration's prompt that labels the texts; None: its only
    one. parameters: defaults for the arguments of calls, see the classes. Raises ConfigError or ModelError.
    """
    if task not in _TASKS:
        raise ConfigError(f"task: {hint(task, list(_TASKS))}")
    if _TASKS[task] == _ZERO_SHOT:
        if prompt is not None:
            raise ConfigError("prompt: zero-shot classification has no configured prompt: leave it out")
        if isinstance(model, Classifier):
            return ZeroShotClassificationPipeline(model, **parameters)
        return _opened(ZeroShotClassificationPipeline, _config_for_any_labels(model), **parameters)
    if isinstance(model, Classifier):
        return TextClassificationPipeline(model, prompt, **parameters)
    if isinstance(model, ModelConfig):
        raise ConfigError("model: text classification needs prompts: give a configuration that has some")
    config = with_one_prompt(DEFAULT_CONFIG if model is None else model, prompt)
    return _opened(TextClassificationPipeline, config, **parameters)


def _opened(kind: type[P], config: Config, **parameters: Any) -> P:
    classifier = Classifier.from_config(config)
    try:
        return kind(classifier, owned=True, **parameters)
    except BaseException:
        classifier.close()
        raise


def _config_for_any_labels(model: str | Path | Config | ModelConfig | None) -> Config:
    """The named configuration, or one with the named model."""
    if isinstance(model, Config):
        return model
    if not isinstance(model, ModelConfig | None):
        name = str(model)
        if name in config_names() or Path(name).suffix in (".yaml", ".yml"):
            return load_config(name)
        is_file = Path(name).suffix == ".gguf" or name.startswith((OLLAMA, PACKAGE)) or Path(name).exists()
        model = ModelConfig(path=Path(name)) if is_file else ModelConfig(hf_repo=name)
    return Config(model=model or ModelConfig(), prompts=(_FIRST,), runtime=_ROOM)
