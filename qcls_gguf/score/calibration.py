"""The adjustments that a configuration asks for: its temperatures, its calibration file, and priors from raw scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..config.calibration_file import Calibration
from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..errors import ConfigError, PlanError
from .adjustment import Adjustment, FloatArray, log_prior

RawScores = Callable[[str], Mapping[str, FloatArray]]
"""A query's raw scores, (n_labels,) by prompt, each in its configured scoring."""


def calibrates(config: Config) -> bool:
    """Whether a configuration has a temperature, a calibration file or a prior."""
    return config.calibration is not None or any(
        prompt.prior != "none" or prompt.temperature is not None for prompt in config.prompts
    )


def content_free_queries(prompts: Sequence[PromptConfig]) -> list[str]:
    """The queries from which the prompts' priors are computed; equal ones once."""
    with_prior = [prompt for prompt in prompts if prompt.prior == "content_free"]
    return list(dict.fromkeys(query for prompt in with_prior for query in prompt.content_free_queries))


def adjustments_of(
    prompts: Sequence[PromptConfig], calibration: Calibration | None, raw_scores: RawScores
) -> list[Adjustment]:
    """Each prompt's adjustment; raw_scores is called once for every content-free query.

    Raises ConfigError for a content-free query that cannot be labelled.
    """
    scores: dict[str, Mapping[str, FloatArray]] = {}
    for query in content_free_queries(prompts):
        try:
            scores[query] = raw_scores(query)
        except PlanError as e:
            named = next(p.name for p in prompts if p.prior == "content_free" and query in p.content_free_queries)
            raise ConfigError(f"prompts.{named}.content_free_queries: {query!r}: {e}") from None
    return [_adjustment(prompt, calibration, scores) for prompt in prompts]


def _adjustment(
    prompt: PromptConfig, calibration: Calibration | None, scores: Mapping[str, Mapping[str, FloatArray]]
) -> Adjustment:
    prior = None
    if prompt.prior == "content_free":
        prior = log_prior(np.stack([scores[query][prompt.name] for query in prompt.content_free_queries]))
    fit = calibration and calibration.prompts.get(prompt.name)
    if not fit:
        return Adjustment(temperature=prompt.temperature or 1.0, prior=prior)
    return Adjustment(temperature=fit.temperature, prior=prior, bias=None if fit.bias is None else np.array(fit.bias))
