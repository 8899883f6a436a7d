"""The record of a comparison: what `qcls-gguf compare` prints as JSON, and what it shows of it."""

from pydantic import Field

from ..config.prompt import LikelyMistake
from ..config.schema import Config
from ..config.words import counted
from ..opening import QUERIES
from ..report.document import TEXT, Document, Paragraph, Section, Table, facts, provenance
from ..report.environment import Environment
from ..report.record import Record
from ..score.result import ModelInfo

_LEGEND = (
    "× qcls: median of the rounds' ratios of medians, 10–90 %: quantiles of the same ratios; "
    "as qcls: share of winners equal to ours; none: answers without a winner"
)


class MethodRecord(Record):
    """What one method took for a request, and how far its answers agree with ours."""

    name: str = Field(description="its name")
    about: str = Field(description="what it does for a request")
    p50_ms: float = Field(description="median time of a request")
    p90_ms: float = Field(description="90 % quantile of the times")
    ratio_to_qcls: float = Field(description="median over the rounds of the ratio of the two medians of a round")
    ratio_range: tuple[float, float] = Field(description="10 % and 90 % quantile of the same ratios")
    as_scoring: float | None = Field(description="share of answers with the winner of `qcls`; null without answers")
    n_without_answer: int = Field(description="answers without a winner: it saw too little of the vocabulary")
    note: str = Field(description="observations while it ran; may be empty")


class AbsentMethod(Record):
    """A method without figures."""

    name: str = Field(description="its name")
    reason: str = Field(description="why, and what to do")
    asked_for: bool = Field(description="whether it was asked for by name; false where all methods were compared")
    started: bool = Field(description="true: it started and failed later; false: it cannot run here")


class ComparisonRecord(Record):
    """A comparison of our classifier with other methods of labelling the same queries."""

    environment: Environment
    config: Config
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...] = Field(description="likely mistakes in the prompts")
    queries: tuple[str, ...] = Field(description="the texts that were labelled")
    rounds: int = Field(description="timed rounds; a round is one request of every query by every method")
    warm_up: int = Field(description="rounds before them that were not timed")
    methods: tuple[MethodRecord, ...] = Field(description="in the order in which they were started; `qcls` first")
    absent: tuple[AbsentMethod, ...]


def comparison_document(comparison: ComparisonRecord) -> Document:
    """All that is shown of a record; the methods by their median time, the fastest first."""
    methods = sorted(comparison.methods, key=lambda method: method.p50_ms)
    rows = []
    for method in methods:
        low, high = method.ratio_range
        times = method.p50_ms, method.p90_ms, method.ratio_to_qcls, f"{low:.2f}–{high:.2f}"
        rows.append([method.name, *times, method.as_scoring, method.n_without_answer])
    table = Table(
        columns={
            **{"method": TEXT, "p50 ms": ".2f", "p90 ms": ".2f", "× qcls": ".2f", "10–90 %": ">s"},
            **{"as qcls": ".1%", "none": "d"},
        },
        rows=rows,
        bold=[i for i, method in enumerate(methods) if method.name == "qcls"],
    )
    notes = [f"{method.name}: {method.about}" + (f". {method.note}" if method.note else "") for method in methods]
    if comparison.queries == QUERIES:
        notes.append("No queries were given: these are about fashion and short. With longer ones times are others.")
    notes += [f"{other.name} {'failed' if other.started else 'absent'}: {other.reason}" for other in comparison.absent]
    model = comparison.model
    heading = (
        f"{counted(len(comparison.config.prompts), 'prompt')}, {counted(len(comparison.queries), 'query', 'queries')}, "
        f"{counted(comparison.rounds, 'round')} of alternating requests; {model.description}, {model.quantization}, "
        f"{model.device}, {counted(comparison.environment.n_threads, 'thread')}; peers on stock kernels"
    )
    conditions = {
        **provenance(model, comparison.environment),
        "rounds": f"{comparison.rounds}, after {comparison.warm_up} that were not timed",
        "queries": " | ".join(comparison.queries),
    }
    return Document(
        title="Methods of labelling a query",
        parts=[
            Paragraph(heading),
            table,
            Paragraph(_LEGEND, "faint"),
            *map(Paragraph, notes),
            Section(title="Conditions", parts=[facts(conditions)], on_terminal=False),
        ],
    )
