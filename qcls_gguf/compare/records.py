"""The record of a comparison: what `qcls-gguf compare` prints as JSON."""

from __future__ import annotations

from ..config.prompt import LikelyMistake
from ..config.schema import Config
from ..report.environment import Environment
from ..report.record import Record
from ..score.result import ModelInfo

QUERIES = (
    "red summer dress for girls",
    "cheap slim fit jeans for men",
    "孕妇连衣裙 棉 宽松",
    "light pink cashmere sweater for date night",
    "wool coat",
    "when does the shop open",
)
"""The queries where none are given."""


class WinnerAgreement(Record):
    """How often a method's winners are ours."""

    scoring: float | None
    """share of the answers with the winner of the configuration's scoring; null without answers"""
    joint: float | None
    """share of the answers with the winner of our exact `joint`; null without answers"""
    n_answers: int
    """answers that have a winner"""
    n_without_answer: int
    """answers without one: the method saw too little of the vocabulary"""


class MethodRecord(Record):
    """What one method took for a request, and how far its answers agree with ours."""

    name: str
    """its name"""
    about: str
    """what it does for a request"""
    p50_ms: float
    """median time of a request"""
    p90_ms: float
    """90 % quantile of the times"""
    ratio_to_qcls: float
    """median over the rounds of the ratio of the two medians of a round"""
    ratio_range: tuple[float, float]
    """10 % and 90 % quantile of the same ratios"""
    agreement: WinnerAgreement
    largest_log_probability_difference: float | None
    """of log p(label | prompt) over the whole vocabulary, from our exact `joint`, in nats; null where it has none"""
    n_log_probabilities: int
    """how many were compared"""
    note: str
    """observations while it ran; may be empty"""


class AbsentMethod(Record):
    """A method without figures."""

    name: str
    """its name"""
    reason: str
    """why, and what to do"""
    asked_for: bool
    """whether it was asked for by name; false where all methods were compared"""
    started: bool
    """true: it started and failed later; false: it cannot run here"""

    @property
    def state(self) -> str:
        """Why it has no figures, in a word."""
        return "failed" if self.started else "absent"


class ComparisonRecord(Record):
    """A comparison of our classifier with other methods of labelling the same queries."""

    environment: Environment
    config: Config
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...]
    """likely mistakes in the prompts"""
    n_prompts: int
    """prompts that a request answers"""
    n_queries: int
    """number of the queries"""
    queries: tuple[str, ...]
    """the texts that were labelled"""
    rounds: int
    """timed rounds; a round is one request of every query by every method"""
    warm_up: int
    """rounds before them that were not timed"""
    methods: tuple[MethodRecord, ...]
    """in the order in which they were started; `qcls`, ours, first"""
    absent: tuple[AbsentMethod, ...]
