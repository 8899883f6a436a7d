"""The record of a comparison: what `qcls-gguf compare` prints as JSON, and what it shows of it."""

from __future__ import annotations

from ..config.prompt import LikelyMistake
from ..config.schema import Config
from ..config.words import counted
from ..report.document import TEXT, Document, Paragraph, Section, Table, facts, provenance
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


_LEGEND = (
    "× qcls: median of the rounds' ratios of medians, 10–90 %: quantiles of the same ratios; "
    "as scoring, as joint: share of winners equal to ours; "
    "none: answers without a winner; Δ log p: largest difference of log p(label | prompt) from our exact joint"
)


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


def document(comparison: ComparisonRecord) -> Document:
    """All that is shown of a record; the methods by their median time, the fastest first."""
    methods = sorted(comparison.methods, key=lambda method: method.p50_ms)
    table = Table(
        columns={
            **{"method": TEXT, "p50 ms": ".2f", "p90 ms": ".2f", "× qcls": ".2f", "10–90 %": ">s"},
            **{"as scoring": ".1%", "as joint": ".1%", "none": "d", "Δ log p": ".4f"},
        },
        rows=[_row(method) for method in methods],
        bold=[i for i, method in enumerate(methods) if method.name == "qcls"],
    )
    notes = [f"{each.name}: {each.about}" + (f". {each.note}" if each.note else "") for each in methods]
    if comparison.queries == QUERIES:
        notes.append("No queries were given: these are about fashion and short. With longer ones times are others.")
    notes += [f"{each.name} {each.state}: {each.reason}" for each in comparison.absent]
    conditions = {
        **provenance(comparison.model, comparison.environment),
        "rounds": f"{comparison.rounds}, after {comparison.warm_up} that were not timed",
        "queries": " | ".join(comparison.queries),
    }
    return Document(
        title="Methods of labelling a query",
        parts=[
            Paragraph(_heading(comparison)),
            table,
            Paragraph(_LEGEND, "faint"),
            *map(Paragraph, notes),
            Section(title="Conditions", parts=[facts(conditions)], on_terminal=False),
        ],
    )


def _row(method: MethodRecord) -> list[object]:
    agreement, (low, high) = method.agreement, method.ratio_range
    agreed = agreement.scoring, agreement.joint, agreement.n_without_answer
    times = method.p50_ms, method.p90_ms, method.ratio_to_qcls
    return [method.name, *times, f"{low:.2f}–{high:.2f}", *agreed, method.largest_log_probability_difference]


def _heading(comparison: ComparisonRecord) -> str:
    """What was compared, in a line."""
    model = comparison.model
    return (
        f"{counted(comparison.n_prompts, 'prompt')}, {counted(comparison.n_queries, 'query', 'queries')}, "
        f"{counted(comparison.rounds, 'round')} of alternating requests; {model.description}, {model.quantization}, "
        f"{model.device}, {counted(comparison.environment.n_threads, 'thread')}; peers on stock kernels"
    )
