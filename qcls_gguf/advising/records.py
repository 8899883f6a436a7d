"""The record of an advice: what `qcls-gguf advise` prints as JSON, and what it shows: a table, remarks, the
recommendation.
"""

from __future__ import annotations

from ..config.prompt import LikelyMistake
from ..config.schema import Config
from ..config.words import counted
from ..evaluation.records import DataRecord
from ..report.document import TEXT, Document, Facts, Format, Paragraph, Section, Table, percent, provenance
from ..report.environment import Environment
from ..report.record import Record, left_out_if_none
from ..score.result import ModelInfo

_N_SHOWN = 5


class PromptAgreement(Record):
    """How often a prompt's answer is the present configuration's."""

    agreement: float
    """share of the compared rows with equal answers"""
    agreement_ci: tuple[float, float]
    """its Wilson 95 % interval"""
    accuracy: float | None = left_out_if_none()
    """on the compared rows with a label for this prompt"""


class ChangedAnswer(Record):
    """A row that a candidate answers otherwise than the present configuration."""

    prompt: str
    """the prompt's name"""
    line: int
    """in the file"""
    query: str
    """its text"""
    present: str
    """the present configuration's most probable label"""
    present_probability: float
    """its probability"""
    candidate: str
    """the candidate's most probable label"""
    candidate_probability: float
    """its probability"""
    accepted: tuple[str, ...] | None = left_out_if_none()
    """the accepted labels, where the row is labelled"""


class CascadeFit(Record):
    """The stage that a cascade asks first, and from which probability on its answers count."""

    stage: str
    """the candidate that it is"""
    thresholds: dict[str, float]
    """by prompt; prompts for which none was accepted are asked of the last stage at once"""
    yaml: str
    """the stage's configuration, as a file has it"""


class CandidateRecord(Record):
    """One configuration, and what is known of it."""

    name: str
    """a short name; `present` is the configuration that was given"""
    why: str
    """what is different, and what that saves"""
    model: ModelInfo
    """the model that answered"""
    n_tokens: float
    """tokens that a request feeds, on average"""
    mean_ms: float
    """of the requests for the compared rows, one row a request; all configurations took turns"""
    p50_ms: float
    """their median"""
    time_share: float
    """that median by the present configuration's"""
    prompts: dict[str, PromptAgreement]
    """by prompt"""
    least_agreement: float
    """of all prompts"""
    meets_limit: bool
    """whether every prompt's agreement is at least the limit"""
    is_proven: bool
    """whether every prompt's interval lies above the limit"""
    accuracy: float | None = left_out_if_none()
    """mean over the prompts with labels"""
    changed: tuple[ChangedAnswer, ...]
    """the first 10 of each prompt"""
    cascade: CascadeFit | None = left_out_if_none()
    """where it is a cascade of a candidate and the present configuration"""
    yaml: str | None
    """the configuration, as a file has it; null for the present one"""


class AdviceRecord(Record):
    """Which configuration is the fastest that still answers like the present one."""

    data: DataRecord
    n_compared: int
    """rows that all figures are of; with a cascade the second half, which did not propose its thresholds"""
    config: Config
    """the present one, with whole texts"""
    warnings: tuple[LikelyMistake, ...]
    """what is likely a mistake in the prompts"""
    environment: Environment
    min_agreement: float
    """the limit, for each prompt"""
    candidates: tuple[CandidateRecord, ...]
    """the present configuration first"""
    recommended: str | None
    """the name of a candidate; null where none is better than the present configuration"""
    reason: str
    """why"""
    notes: tuple[str, ...]
    """what could not be done, and candidates that could not be opened"""

    @property
    def best(self) -> CandidateRecord | None:
        """The recommended candidate."""
        return next((each for each in self.candidates if each.name == self.recommended), None)


def advice_document(record: AdviceRecord) -> Document:
    """All that is shown; the recommendation last."""
    present, best = record.candidates[0], record.best
    facts = {"data": f"{record.data.path}: {counted(record.n_compared, 'row')} compared"}
    return Document(
        title="Configurations that answer alike",
        parts=[
            _table(record),
            None if best is None else _changed(best, _N_SHOWN),
            *(Paragraph(f"- {remark}") for remark in _remarks(record)),
            Paragraph(record.reason, "strong"),
            Section(
                title="Where this was measured",
                parts=[Facts(facts | provenance(present.model, record.environment))],
                on_terminal=False,
            ),
            *(_candidate(each) for each in record.candidates[1:]),
        ],
    )


def _table(record: AdviceRecord) -> Table:
    rows: list[list[object]] = []
    for each in record.candidates:
        name, worst = min(each.prompts.items(), key=lambda pair: pair[1].agreement)
        agreement = [_verdict(each, record), worst.agreement, "{:.1%}–{:.1%}".format(*worst.agreement_ci), name]
        times = each.p50_ms, each.mean_ms, each.time_share
        rows.append([each.name, *(agreement if rows else [None] * 4), each.accuracy, each.n_tokens, *times])
    columns: dict[str, Format] = {
        "candidate": TEXT, "verdict": TEXT, "agreement": ".1%", "95 %": ">", "of": ">", "accuracy": ".1%",
        "tokens": ".1f", "p50 ms": ".2f", "mean ms": ".2f", "of present": ".2f",
    }  # fmt: skip
    note = (
        "Agreement: the share of rows with the present configuration's answer, of the prompt that has least. Accuracy: "
        "the mean over the prompts with labels. Tokens: fed by a request, on average. Of present: its median request "
        "by the present configuration's."
    )
    bold = [index for index, each in enumerate(record.candidates) if each.name == record.recommended]
    return Table(columns=columns, rows=rows, note=note, bold=bold)


def _verdict(each: CandidateRecord, record: AdviceRecord) -> str:
    if each.name == record.recommended:
        return "recommended"
    return "keeps the limit" if each.meets_limit else "below the limit"


def _changed(each: CandidateRecord, n_terminal: int | None = None) -> Table:
    return Table(
        title=f"Rows that {each.name} answers otherwise",
        columns={"prompt": TEXT, "query": TEXT, "present": TEXT, each.name: TEXT, "accepted": TEXT},
        rows=[
            [
                row.prompt,
                f"line {row.line}: {row.query}",
                f"{row.present} {row.present_probability:.1%}",
                f"{row.candidate} {row.candidate_probability:.1%}",
                row.accepted and "|".join(row.accepted),
            ]
            for row in each.changed
        ],
        n_terminal=n_terminal,
    )


def _candidate(each: CandidateRecord) -> Section:
    files = [each.yaml or "", *([each.cascade.yaml] if each.cascade else [])]
    return Section(
        title=each.name,
        parts=[
            Paragraph(f"{each.why}."),
            Section(title="Its other answers, the first of each prompt", parts=[_changed(each)], folded=True),
            Section(title="The configuration", parts=[Paragraph(file, "code") for file in files], folded=True),
        ],
        on_terminal=False,
    )


def _remarks(record: AdviceRecord) -> list[str]:
    """What the table does not say: the rows, what was left out, and why."""
    data = record.data
    found = [
        f"{counted(record.n_compared, 'row')} compared, the same for all candidates; the limit is "
        f"{percent(record.min_agreement)} equal answers in every prompt"
    ]
    if data.n_bad:
        first = data.bad[0]
        found.append(f"{counted(data.n_bad, 'row')} left out, such as line {first.line}: {first.reason}")
    return [*found, *record.notes]
