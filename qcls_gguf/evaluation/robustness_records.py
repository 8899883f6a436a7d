"""The parts of an evaluation's record on scoring the same rows again: shuffled labels and batch invariance."""

from __future__ import annotations

from ..config.scoring import Scoring
from ..report.record import Record, left_out_if_none


class NotApplicable(Record):
    """Why there are no statistics."""

    not_applicable: str
    """the reason"""


class Differences(Record):
    """How far probabilities moved. A row's difference is the largest of its labels'; null without rows."""

    largest_probability_difference: float | None
    """over all rows"""
    mean_probability_difference: float | None
    """over all rows"""


class Flip(Record):
    """A row that got another answer."""

    mode: Scoring
    """the scoring"""
    prompt: str
    """the prompt's name"""
    line: int
    """line number in the data"""
    query: str
    """text of the query"""
    rendering: int | None = left_out_if_none()
    """index of the order of labels that gave the other answer; only in `shuffle_labels`"""
    answer: str
    """the first answer"""
    probability: float
    """of the answer, where it was given"""
    margin: float
    """by how much the answer was more probable than the next label"""
    other_answer: str
    """the second answer"""
    other_probability: float
    """of the other answer, where that was given"""
    difference: float
    """largest difference of a label's probability"""


class ShuffledAccuracy(Record):
    """Accuracy over the orders of the labels; null without rows."""

    configured: float | None
    """with the labels as configured"""
    mean: float | None
    """over the other orders"""
    min: float | None
    """lowest of the other orders"""
    max: float | None
    """highest of the other orders"""


class ShuffledPrompt(Differences):
    """What other orders of its labels change in the answers of one prompt."""

    flip_rate: float | None
    """share of the answers that changed"""
    n_flips: int
    """number of the answers that changed"""
    n_rows: int
    """rows that are labelled for the prompt"""
    accuracy: ShuffledAccuracy


class ShuffledMode(Record):
    """One mode with other orders of the labels."""

    prompts: dict[str, ShuffledPrompt | NotApplicable]
    """by prompt"""


class ShuffledLabels(Record):
    """The same rows with the labels listed in other orders in the templates."""

    k: int
    """number of other orders"""
    seed: int
    """seed of the orders"""
    orders: dict[str, tuple[tuple[str, ...], ...]]
    """by prompt"""
    modes: dict[Scoring, ShuffledMode]
    """by scoring"""
    flips: tuple[Flip, ...]
    """the flips with the largest changes of a probability"""


class InvarianceCase(Differences):
    """The same rows scored once more in one way."""

    n_rows: int
    """rows that were scored again"""
    n_answers: int
    """rows times prompts times modes"""
    n_flips: int
    """answers that changed"""
    flips: tuple[Flip, ...]
    """the flips with the largest changes of a probability"""


class BatchInvariance(Record):
    """Whether answers depend on what else is computed: the same rows again, compared with their first scores."""

    batches: InvarianceCase
    """four queries a request"""
    traffic: InvarianceCase
    """in a shuffled order, each after a request with other rows"""
    restored: InvarianceCase
    """each after its prefixes were computed again; at most 100 rows"""
    fresh: InvarianceCase
    """one by one in a newly started classifier"""
