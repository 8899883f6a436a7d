"""A configuration without what is done to its scores: one scoring for all prompts, not calibrated, never abstaining."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from .prompt import CONTENT_FREE_QUERIES
from .schema import Config
from .scoring import Scoring


def raw_config(config: Config, scoring: Scoring, names: Collection[str] | None = None) -> Config:
    """The configuration with one scoring for all prompts; no prior, temperature, calibration, fallback or cascade.

    names: the prompts to keep; None: all.
    """
    prompts = tuple(
        dataclasses.replace(
            prompt,
            scoring=scoring,
            prior="none",
            content_free_queries=CONTENT_FREE_QUERIES,
            temperature=None,
            min_confidence=None,
            fallback=None,
        )
        for prompt in config.prompts
        if names is None or prompt.name in names
    )
    return dataclasses.replace(config, prompts=prompts, calibration=None, cascade=None)
