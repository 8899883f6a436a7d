"""Cascades: cheaper stages are asked first, and their answers count if they are sure enough."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from .prompt import PromptConfig
from .rules import File, Number, Text, at_least, at_most
from .settings import Settings, refusal, settings

_MAX_STAGES = 4
_N_SHOWN = 12
AGAIN = "run `qcls-gguf advise` with `cascade` again"


def _of_prompts(value: Any) -> Any:
    if not isinstance(value, Mapping) or not value:
        raise refusal("expected at least one prompt's name with its threshold")
    return dict(value)


@settings
class StagePrompt(Settings):
    """The threshold of a stage for one prompt."""

    threshold: Annotated[float, Number(0, 1)]
    """the stage's answer counts if its probability is at least this; otherwise the next stage is asked"""
    prompt_hash: Annotated[str, Text(empty=False)]
    """hash of the stage's prompt to which the threshold was fitted"""


StagePrompts: TypeAlias = Annotated[dict[str, StagePrompt], BeforeValidator(_of_prompts)]
Hashes: TypeAlias = Annotated[dict[str, Annotated[str, Text(empty=False)]], BeforeValidator(_of_prompts)]


@settings
class CascadeStage(Settings):
    """A stage before the configuration itself."""

    config: Annotated[Path, File()]
    """its configuration, with prompts of the same names and labels; without a model of its own it uses this one's"""
    model_sha256: Annotated[str, Text(empty=False)]
    """sha256 of the model with which the thresholds were fitted"""
    prompts: StagePrompts = field(hash=False)
    """the prompts that it is asked, by name; all others go to the next stage directly"""


@settings
class CascadeConfig(Settings):
    """Stages that are asked before the configuration itself, which is the last one."""

    stages: Annotated[tuple[CascadeStage, ...], at_least(1, "at least one stage"), at_most(_MAX_STAGES, "stages")]
    """in the order in which they are asked"""
    model_sha256: Annotated[str, Text(empty=False)]
    """sha256 of the last stage's model, with which the others were compared"""
    prompt_hashes: Hashes = field(hash=False)
    """hashes of the last stage's prompts, by name"""


def stage_hash(prompt_hash: str, temperature: float, bias: list[float] | None) -> str:
    """A digest of everything but the model that a stage's probabilities depend on: the prompt and its calibration."""
    parts = [prompt_hash, round(temperature, 6), bias and [round(each, 6) for each in bias]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def short(digest: str) -> str:
    """The beginning of a digest, for a message."""
    return f"{digest[:_N_SHOWN]}…"


def other_prompts(last: Sequence[PromptConfig], stage: Sequence[PromptConfig]) -> str | None:
    """Why a stage's prompts cannot replace those of the last stage; None if names and labels are the same."""
    labels = {prompt.name: prompt.labels for prompt in stage}
    for prompt in last:
        if prompt.name not in labels:
            return f"has no prompt {prompt.name}"
        if labels[prompt.name] != prompt.labels:
            return f"prompts.{prompt.name} has other labels than the configuration, or in another order"
    return None
