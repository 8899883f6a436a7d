"""An advice as text on a terminal: tables, and the recommendation in words."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ..config.words import counted, printable
from ..report.numbers import NO_VALUE, measured, number, percent
from ..report.tables import Table, terminal_table
from .records import AdviceRecord, CandidateRecord, CascadeStageRecord, Disagreement, PromptAgreement

COLUMNS = (
    "candidate", "verdict", "agreement", "of", "accuracy", "tokens", "p50 ms", "p99 ms", "of original's",
    "predicted ms", "memory MiB",
)  # fmt: skip
_N_SHOWN = 5
_N_LABELS = 3
_MIB = 1 << 20


def candidates_table(record: AdviceRecord) -> Table:
    """A row for each candidate; the least agreement of its prompts, and which prompt has it."""
    return Table(columns=COLUMNS, rows=[_row(each, record.recommended) for each in record.candidates], n_text=2)


def _row(each: CandidateRecord, recommended: str | None) -> list[str]:
    worst = min(each.prompts.items(), key=lambda pair: pair[1].agreement or 0, default=None)
    is_original = each.state == "original"
    latency, memory = each.latency, each.memory
    return [
        each.name,
        "recommended" if each.name == recommended else _verdict(each),
        NO_VALUE if is_original else percent(each.least_agreement),
        NO_VALUE if is_original or worst is None else worst[0],
        percent(each.accuracy),
        number(each.n_tokens, 1),
        measured(latency.p50_ms if latency else None),
        measured(latency.p99_ms if latency else None),
        number(each.time_share, 2),
        f"{each.predicted.low_ms:.0f}–{each.predicted.high_ms:.0f}" if each.predicted else NO_VALUE,
        number((memory.weights_bytes + memory.prefix_bytes) / _MIB if memory else None, 1),
    ]


def _verdict(each: CandidateRecord) -> str:
    if each.state != "tried":
        return NO_VALUE if each.state == "original" else each.state
    return f"{'keeps' if each.meets_limit else 'below'} the limit{', none beats it' if each.is_pareto else ''}"


def prompts_table(candidate: CandidateRecord) -> Table:
    """A row for each prompt: agreement with its interval, and accuracy beside the original's where labels are known."""
    columns = ("prompt", "queries", "agreement (95 %)", "accuracy", "original's", "log-loss", "original's")
    rows = [
        [
            name,
            str(each.n),
            _with_interval(each),
            percent(each.accuracy),
            percent(each.original_accuracy),
            number(each.log_loss),
            number(each.original_log_loss),
        ]
        for name, each in candidate.prompts.items()
    ]
    return Table(columns=columns, rows=rows)


def thresholds_table(cascade: CascadeStageRecord) -> Table:
    """A row for each prompt: from which probability on the first stage answers, how often, and the guarantee."""
    columns = (
        "prompt",
        f"answered by {cascade.stage} from",
        "of queries",
        "agreement",
        f"at least ({cascade.confidence:.0%})",
    )
    rows = [
        [
            name,
            "never" if each.threshold is None else f"{each.threshold:.4f}",
            percent(each.n_answered / each.n),
            percent(each.agreement),
            NO_VALUE if each.threshold is None else percent(each.least_agreement),
        ]
        for name, each in cascade.prompts.items()
    ]
    return Table(columns=columns, rows=rows)


def _with_interval(each: PromptAgreement) -> str:
    interval = each.agreement_ci
    return percent(each.agreement) + (f" ({interval[0]:.1%}–{interval[1]:.1%})" if interval else "")


def disagreements_table(candidate: CandidateRecord, n_most: int | None = None) -> Table:
    """Queries that the candidate answers otherwise, with the most probable labels of both."""
    rows = [
        [
            each.prompt,
            f"line {each.line}: {each.query}",
            _labels(each.original),
            _labels(each.candidate),
            _accepted(each),
        ]
        for each in candidate.disagreements[:n_most]
    ]
    columns = ("prompt", "query", "original", candidate.name, "accepted")
    return Table(columns=columns, rows=rows, n_text=5)


def _labels(probabilities: dict[str, float]) -> str:
    highest = sorted(probabilities.items(), key=lambda pair: -pair[1])[:_N_LABELS]
    return ", ".join(f"{label} {probability:.1%}" for label, probability in highest)


def _accepted(each: Disagreement) -> str:
    return "|".join(each.accepted) if each.accepted else NO_VALUE


def shown_candidate(record: AdviceRecord) -> CandidateRecord | None:
    """The one to show in detail: the recommended one, else the fastest that was tried to the end."""
    if record.recommended is not None:
        return next(each for each in record.candidates if each.name == record.recommended)
    timed = [each for each in record.candidates if each.state == "tried" and each.latency]
    return min(timed, key=lambda each: each.time_share or 0, default=None)


def _cascade_time(each: CandidateRecord) -> list[str]:
    """How its requests compare with the original's in the same turns, where it is a cascade that was timed."""
    beside = each.original_latency
    if not each.cascade or not beside or not each.latency:
        return []
    return [
        f"{each.name}: a request takes {measured(each.latency.mean_ms)} ms on average (median "
        f"{measured(each.latency.p50_ms)}), the original in turns with it {measured(beside.mean_ms)} (median "
        f"{measured(beside.p50_ms)})"
    ]


def remarks(record: AdviceRecord) -> list[str]:
    """What the tables do not say, a sentence each: how it was measured, what was left out, and why."""
    queries = record.queries
    found = [
        f"{counted(queries.n_queries, 'query', 'queries')}, {queries.n_labelled} labelled; a candidate that keeps "
        f"{percent(record.min_agreement)} in every prompt is dropped early with a chance of at most "
        f"{percent(record.error_level)}"
    ]
    if predicted := next((each.predicted for each in record.candidates if each.predicted), None):
        found.append(f"predicted ms: the decodes of a request on {predicted.target}; a prediction, not a measurement")
    if queries.n_bad:
        first = queries.bad[0]
        place = "" if first.reason.startswith("line ") else f"line {first.line}: "
        found.append(f"{counted(queries.n_bad, 'row')} could not be used as written, such as {place}{first.reason}")
    found += [f"{each.name}: {each.note}" for each in record.candidates if each.note]
    found += [line for each in record.candidates for line in _cascade_time(each)]
    return [*found, *record.notes]


def advice_tables(record: AdviceRecord) -> Group:
    """All of it; the recommendation last."""
    parts: list[RenderableType] = [
        terminal_table(
            candidates_table(record), gap=1, bold=[each.name == record.recommended for each in record.candidates]
        )
    ]
    if (candidate := shown_candidate(record)) is not None:
        parts += [
            Text(printable(candidate.name), style="bold"),
            terminal_table(prompts_table(candidate), gap=1),
        ]
        if candidate.cascade is not None:
            parts.append(terminal_table(thresholds_table(candidate.cascade), gap=1))
        if candidate.disagreements:
            parts.append(terminal_table(disagreements_table(candidate, _N_SHOWN), gap=1))
    parts += [Text(printable(f"- {remark}")) for remark in remarks(record)]
    return Group(*parts, Text(printable(record.reason), style="bold"))
