"""Raw label scores to calibrated probabilities: pure numpy.

With s (n_labels,) a prompt's scores in its scoring (natural logarithms, to which any constant may be added):

- p = softmax((s - prior) / temperature + bias)
- prior = log of the mean over content-free queries of softmax(s): what the labels get without content, as in
  contextual calibration (Zhao et al., 2021, "Calibrate Before Use")
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..config.fitted import Calibration
from ..config.prompt import PromptConfig
from ..errors import ConfigError, PlanError
from ..statistics import AnyFloats, log_softmax, log_sum_exp


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """The calibration of one prompt's scores."""

    temperature: float = 1.0
    prior: AnyFloats | None = None
    """(n_labels,); none: 0"""
    bias: AnyFloats | None = None
    """(n_labels,); none: 0"""

    @property
    def is_neutral(self) -> bool:
        """Whether it leaves every probability as it is."""
        return self.temperature == 1 and self.prior is None and self.bias is None


class Adjustments:
    """The adjustments of all prompts, over their labels side by side."""

    def __init__(self, prompts: Sequence[Adjustment], first: Sequence[int]) -> None:
        """Prompt p's labels lie at [first[p], first[p + 1]). One adjustment at least is not neutral."""
        spans = zip(prompts, first[:-1], first[1:], strict=True)
        made, low, high = zip(*[span for span in spans if not span[0].is_neutral], strict=True)
        n = np.array(high) - low
        self._columns = np.concatenate(list(map(np.arange, low, high)))
        self._start = np.cumsum(n) - n
        self._owner = np.repeat(np.arange(len(n)), n)
        temperature = np.repeat([adjustment.temperature for adjustment in made], n)
        parts = [(of.prior, of.bias, np.zeros(size)) for of, size in zip(made, n, strict=True)]
        prior = np.concatenate([zero if prior is None else prior for prior, _, zero in parts])
        bias = np.concatenate([zero if bias is None else bias for _, bias, zero in parts])
        self._scale = (1 / temperature).astype(np.float32)
        # (s - prior) / temperature + bias as one product and one sum
        self._shift = (bias - prior / temperature).astype(np.float32)

    def apply(self, score: AnyFloats, probability: AnyFloats) -> None:
        """Overwrite the probabilities of adjusted prompts; both arrays are (n_queries, n_labels) over all prompts."""
        adjusted = score[:, self._columns] * self._scale + self._shift
        adjusted -= np.maximum.reduceat(adjusted, self._start, axis=1)[:, self._owner]
        power = np.exp(adjusted)
        probability[:, self._columns] = power / np.add.reduceat(power, self._start, axis=1)[:, self._owner]


def log_prior(score: AnyFloats) -> AnyFloats:
    """(n_labels,) the prior of one prompt's raw scores on content-free queries, (n_queries, n_labels)."""
    return np.asarray(log_sum_exp(log_softmax(score), axis=0) - np.log(len(score)))


def content_free_queries(prompts: Sequence[PromptConfig]) -> list[str]:
    """The queries from which the prompts' priors are computed; equal ones once."""
    with_prior = [prompt for prompt in prompts if prompt.prior == "content_free"]
    return list(dict.fromkeys(query for prompt in with_prior for query in prompt.content_free_queries))


def adjustments_of(
    prompts: Sequence[PromptConfig],
    calibration: Calibration | None,
    raw_scores: Callable[[str], Mapping[str, AnyFloats]],
) -> list[Adjustment]:
    """Each prompt's adjustment.

    raw_scores: called once for every content-free query, gives its raw scores, (n_labels,) by prompt, in its configured
    scoring.
    Raises ConfigError for a content-free query that cannot be labelled.
    """
    scores: dict[str, Mapping[str, AnyFloats]] = {}
    for query in content_free_queries(prompts):
        try:
            scores[query] = raw_scores(query)
        except PlanError as e:
            named = next(p.name for p in prompts if p.prior == "content_free" and query in p.content_free_queries)
            raise ConfigError(f"prompts.{named}.content_free_queries: {query!r}: {e}") from None
    adjustments = []
    for prompt in prompts:
        prior = None
        if prompt.prior == "content_free":
            prior = log_prior(np.stack([scores[query][prompt.name] for query in prompt.content_free_queries]))
        fit = calibration and calibration.prompts.get(prompt.name)
        temperature = (fit and fit.temperature) or prompt.temperature or 1.0
        bias = np.array(fit.biases(prompt.labels)) if fit and fit.bias is not None else None
        adjustments.append(Adjustment(temperature=temperature, prior=prior, bias=bias))
    return adjustments
