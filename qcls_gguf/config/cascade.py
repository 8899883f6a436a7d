"""Cascades: cheaper stages that are asked first, and answer where they are sure enough."""

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
    """What a stage needs to answer a prompt."""

    threshold: Annotated[float, Number(0, 1)]
    """the stage's answer counts where its probability is at least this; else the prompt goes on to the next stage"""
    prompt_hash: Annotated[str, Text(empty=False)]
    """of the stage's prompt as the threshold was fitted to it"""


StagePrompts: TypeAlias = Annotated[dict[str, StagePrompt], BeforeValidator(_of_prompts)]
Hashes: TypeAlias = Annotated[dict[str, Annotated[str, Text(empty=False)]], BeforeValidator(_of_prompts)]


@settings
class CascadeStage(Settings):
    """A stage before the configuration itself."""

    config: Annotated[Path, File()]
    """its configuration, with prompts of the same names and labels; where that names no model, this one's answers"""
    model_sha256: Annotated[str, Text(empty=False)]
    """of the model that the thresholds were fitted with"""
    prompts: StagePrompts = field(hash=False)
    """those that it is asked, by name; all others go on to the next stage at once"""


@settings
class CascadeConfig(Settings):
    """Stages that are asked before the configuration itself, which is the last one."""

    stages: Annotated[tuple[CascadeStage, ...], at_least(1, "at least one stage"), at_most(_MAX_STAGES, "stages")]
    """in the order in which they are asked"""
    model_sha256: Annotated[str, Text(empty=False)]
    """of the model of the last stage, with which the others were compared"""
    prompt_hashes: Hashes = field(hash=False)
    """of the last stage's prompts, by name"""


def stage_hash(prompt_hash: str, temperature: float, bias: list[float] | None) -> str:
    """A digest of all that a stage's probabilities depend on beside its model: the prompt, and its calibration."""
    parts = [prompt_hash, round(temperature, 6), bias and [round(each, 6) for each in bias]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def short(digest: str) -> str:
    """The beginning of a digest, for a message."""
    return f"{digest[:_N_SHOWN]}…"


def other_prompts(last: Sequence[PromptConfig], stage: Sequence[PromptConfig]) -> str | None:
    """Why a stage's prompts do not stand for those of the last stage; None where they do: same names, same labels."""
    labels = {prompt.name: prompt.labels for prompt in stage}
    for prompt in last:
        if prompt.name not in labels:
            return f"has no prompt {prompt.name}"
        if labels[prompt.name] != prompt.labels:
            return f"prompts.{prompt.name} has other labels than the configuration, or in another order"
    return None
