"""A configuration without what is done to its scores: one scoring for all prompts, not calibrated, never abstaining."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from .schema import Config, PromptConfig
from .scoring import Scoring


def raw_config(config: Config, scoring: Scoring, names: Collection[str] | None = None) -> Config:
    """The configuration with one scoring for all prompts and none of prior, temperature, calibration and fallback.

    names: the prompts to keep; None: all.
    """
    prompts = tuple(
        PromptConfig(
            name=prompt.name,
            prompt_template=prompt.prompt_template,
            system=prompt.system,
            user=prompt.user,
            answer_cue=prompt.answer_cue,
            labels=prompt.labels,
            label_prefix=prompt.label_prefix,
            scoring=scoring,
            label_end=prompt.label_end,
        )
        for prompt in config.prompts
        if names is None or prompt.name in names
    )
    return dataclasses.replace(config, prompts=prompts, calibration=None)
