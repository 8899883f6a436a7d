"""An advice as people read it: one table, remarks and the recommendation."""

from __future__ import annotations

from ..config.words import counted
from ..report.document import TEXT, Document, Facts, Format, Paragraph, Section, Table, percent, provenance
from .records import AdviceRecord, CandidateRecord

_N_SHOWN = 5


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
