"""An advice as people read it: one table, remarks and the recommendation."""

from __future__ import annotations

from matplotlib.axes import Axes

from ..config.words import counted
from ..report.document import TEXT, Document, Facts, Figure, Format, Paragraph, Section, Table, percent, provenance
from .records import AdviceRecord, CandidateRecord

_N_SHOWN = 5


def advice_document(record: AdviceRecord) -> Document:
    """All that is shown; the recommendation last."""
    present, best = record.candidates[0], record.best
    assert present.model is not None
    compared = [each for each in record.candidates if each.note is None]
    facts = {"data": f"{record.data.path}: {counted(record.n_compared, 'row')} compared"}
    return Document(
        title="Configurations that answer alike",
        parts=[
            _table(record),
            None if best is None else _changed(best, _N_SHOWN),
            *(Paragraph(f"- {remark}") for remark in _remarks(record)),
            Paragraph(record.reason, "strong"),
            Figure("agreement against time", (9.5, 4.2), lambda axes: _draw(axes, record, compared)),
            Section(
                title="Where this was measured",
                parts=[Facts(facts | provenance(present.model, record.environment))],
                on_terminal=False,
            ),
            *(_candidate(each) for each in compared[1:]),
        ],
    )


def _table(record: AdviceRecord) -> Table:
    rows = []
    for index, each in enumerate(record.candidates):
        worst = min(each.prompts.items(), key=lambda pair: pair[1].agreement, default=None)
        is_compared = index > 0 and worst is not None
        rows.append(
            [
                each.name,
                _verdict(each, record) if index else None,
                worst[1].agreement if is_compared and worst else None,
                "{:.1%}–{:.1%}".format(*worst[1].agreement_ci) if is_compared and worst else None,
                worst[0] if is_compared and worst else None,
                each.accuracy,
                each.n_tokens,
                each.times and each.times.p50_ms,
                each.times and each.times.mean_ms,
                each.time_share,
            ]
        )
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
    if each.note is not None:
        return "not asked"
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
    stage = Paragraph("" if each.cascade is None else each.cascade.yaml, "code")
    return Section(
        title=each.name,
        parts=[
            Paragraph(f"{each.why}."),
            Section(title="Its other answers, the first of each prompt", parts=[_changed(each)], folded=True),
            Section(title="The configuration", parts=[Paragraph(each.yaml or "", "code")], folded=True),
            Section(title="Its first stage", parts=[stage], folded=True) if each.cascade else None,
        ],
        on_terminal=False,
    )  # fmt: skip


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
    found += [f"{each.name}: {each.note}" for each in record.candidates if each.note]
    return [*found, *record.notes]


def _draw(axes: Axes, record: AdviceRecord, compared: list[CandidateRecord]) -> None:
    """A point for each configuration: filled if it keeps the limit, a star if it is recommended."""
    for each in compared:
        marker, size = ("*", 130) if each.name == record.recommended else ("o", 40)
        x, y = each.time_share or 0, 100 * (each.least_agreement or 0)
        axes.scatter(x, y, marker=marker, s=size, c="C0" if each.meets_limit else "white", edgecolors="C0", zorder=3)
        axes.annotate(each.name, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.axhline(100 * record.min_agreement, color="C3", linewidth=1, linestyle="--")
    axes.set(xlabel="median request, by the present configuration's", ylabel="least agreement of the prompts, %")
    axes.set_xlim(left=0)
    axes.margins(x=0.15, y=0.1)
