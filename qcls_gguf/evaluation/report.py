"""An evaluation as a document: tables, reliability diagrams and confusion matrices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..config.words import counted, shown
from ..report.document import (
    TEXT,
    Document,
    Figure,
    Format,
    Paragraph,
    Part,
    Section,
    Table,
    facts,
    percent,
    provenance,
)
from .checks import check_parts
from .records import EvaluationRecord, NotApplicable, PromptStatistics, Statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_N_CONFUSIONS = 10
_N_WORST = 5
_ONE_SIDED, _LEAST_ROWS = 0.9, 20
_PROMPT_COLUMNS: dict[str, Format] = {
    "mode": TEXT, "rows": "d", "accuracy (95 %)": "", "macro-F1": ".3f", "log-loss": ".3f", "Brier": ".3f",
    "ECE": ".3f", "as joint": ".1%", "mass": ".3f",
}  # fmt: skip
_LABELS: dict[str, Format] = {
    "label": TEXT, "support": "d", "predicted": "d", "precision": ".1%", "recall": ".1%", "F1": ".3f"
}  # fmt: skip
_MARKERS = "os^D"


def evaluation_document(evaluation: EvaluationRecord) -> Document:
    """All that `qcls-gguf eval` shows of its record."""
    modes, data = evaluation.modes, evaluation.data
    first = next(iter(modes))
    names = list(modes[first].prompts)
    conditions = facts(
        {
            "data": f"{data.path}: {counted(data.n_rows, 'row')}, {data.n_bad} left out",
            "data sha256": data.sha256,
            **provenance(evaluation.model, evaluation.environment),
        }
    )
    told = [Paragraph(str(mistake), "warning") for mistake in evaluation.warnings]  # a terminal has them already
    by_prompt = [(name, {mode: found.prompts[name] for mode, found in modes.items()}) for name in names]
    return Document(
        title=f"Evaluation of {counted(len(names), 'prompt')}",
        parts=[
            Section(title="Conditions", parts=[conditions, *told], on_terminal=False),
            *(check_parts(evaluation.check) if evaluation.check else ()),
            *_modes_tables(evaluation),
            Section(title="Reliability", parts=[_reliability(modes), _coverage(modes)], on_terminal=False),
            _accuracies(evaluation, names),
            _confusions(first, modes[first].prompts),
            *(Section(title=name, parts=_prompt_parts(found), on_terminal=False) for name, found in by_prompt),
            _worst(evaluation),
            *(Paragraph(note, "warning") for note in _notes(evaluation)),
        ],
    )


def _modes_tables(evaluation: EvaluationRecord) -> Iterator[Part]:
    """A row for each mode; where one cannot score every prompt first all of them on the prompts that each can score."""
    modes, common = evaluation.modes, evaluation.compared_prompts
    title = ""
    if common is not None:
        compared = {mode: found.compared for mode, found in modes.items() if found.compared}
        n_all = len(next(iter(modes.values())).prompts)
        yield _table(compared, title=f"Compared on {len(common)} of {n_all} prompts: {', '.join(common)}")
        title = "Each mode on all prompts that it can score (number in brackets): not comparable"
    named = {mode if common is None else f"{mode} ({found.n_prompts})": found for mode, found in modes.items()}
    note = (
        "Accuracy with its Wilson 95 % interval; log-loss in nats; ECE over 15 bins; as joint: the share of rows with "
        "the answer of joint; mass: the mean probability that lies on the labels at all. The scorings are without the "
        "configuration's priors, temperatures and biases; calibrated, where it is shown, is with them, as the "
        "configuration answers."
    )
    yield _table(named, title, note)


def _table(modes: Mapping[str, Statistics | NotApplicable], title: str = "", note: str = "") -> Table:
    rows = [_row(mode, found) for mode, found in modes.items()]
    return Table(title=title, columns=_PROMPT_COLUMNS, rows=rows, note=note)


def _row(name: str, found: Statistics | NotApplicable) -> list[object]:
    """The values of _PROMPT_COLUMNS."""
    if not isinstance(found, Statistics):
        return [name, None, "not applicable", *[None] * (len(_PROMPT_COLUMNS) - 3)]
    accuracy, mass = _with_interval(found.accuracy, found.accuracy_ci), found.label_mass
    return [
        *(name, found.n_rows, accuracy, found.macro_f1, found.log_loss, found.brier, found.ece),
        *(found.agreement_with_joint, mass and mass.mean),
    ]


def _with_interval(accuracy: float | None, interval: tuple[float, float] | None) -> str:
    return percent(accuracy) + (f" ({interval[0]:.1%}–{interval[1]:.1%})" if interval else "")


def _accuracies(evaluation: EvaluationRecord, names: Sequence[str]) -> Table:
    rows = [[name, *(_accuracy(mode.prompts[name]) for mode in evaluation.modes.values())] for name in names]
    return Table(columns={"accuracy of": TEXT, **dict.fromkeys(evaluation.modes, ".1%")}, rows=rows)


def _accuracy(found: Statistics | NotApplicable) -> float | str | None:
    return found.accuracy if isinstance(found, Statistics) else "not applicable"


def _confusions(mode: str, prompts: Mapping[str, PromptStatistics | NotApplicable]) -> Table:
    """The most frequent confusions of all prompts in one mode."""
    found = [(each, name) for name, prompt in prompts.items() for each in getattr(prompt, "confusions", ())]
    found.sort(key=lambda pair: -pair[0].n)
    return Table(
        columns={f"confused by {mode}": TEXT, "label": TEXT, "answer": TEXT, "rows": "d"},
        rows=[[name, each.label, each.answer, each.n] for each, name in found[:_N_CONFUSIONS]],
    )


def _coverage(modes: Mapping[str, Statistics]) -> Table:
    thresholds = [point.threshold for found in modes.values() for point in found.coverage]
    return Table(
        title="Accuracy of the rows answered with at least this probability",
        columns={"mode": TEXT, **{f"≥ {threshold}": "" for threshold in thresholds}},
        rows=[
            [mode, *(f"{percent(point.accuracy)} of {percent(point.coverage)}" for point in found.coverage)]
            for mode, found in modes.items()
        ],
    )


def _prompt_parts(modes: Mapping[str, PromptStatistics | NotApplicable]) -> list[Part]:
    """What a page says of one prompt."""
    found = {mode: each for mode, each in modes.items() if isinstance(each, PromptStatistics) and each.n_rows}
    parts: list[Part] = [_table(modes)]
    if found:
        parts.append(_reliability(found))
    parts += [_confusion(mode, each) for mode, each in found.items()]
    for mode, each in found.items():
        rows = [
            [label, of.support, of.n_predicted, of.precision, of.recall, of.f1] for label, of in each.labels.items()
        ]
        parts.append(Section(title=f"{mode} by label", parts=[Table(columns=_LABELS, rows=rows)]))
    return parts


def _worst(evaluation: EvaluationRecord) -> Table:
    texts = dict.fromkeys(("mode", "prompt", "accepted", "answer", "row"), TEXT)
    return Table(
        title="Worst-scored rows",
        columns={**texts, "p": ".3f", "p accepted": ".3f"},
        rows=[
            [
                *(row.mode, row.prompt, "|".join(row.accepted), row.answer, f"line {row.line}: {row.query}"),
                *(row.probability, row.p_accepted),
            ]
            for row in evaluation.worst
        ],
        n_terminal=_N_WORST,
        note="p: probability of the answer; p accepted: of the accepted labels together.",
    )


def _notes(evaluation: EvaluationRecord) -> Iterator[str]:
    """What the statistics do not cover, a sentence each."""
    modes: defaultdict[str, list[str]] = defaultdict(list)
    for mode, found in evaluation.modes.items():
        for name, prompt in found.prompts.items():
            if isinstance(prompt, NotApplicable):
                yield f"{name}: {mode} is not applicable: {prompt.not_applicable}"
            elif why := _one_sided(prompt):
                modes[f"{name}: {why}"].append(mode)
    for why, some in modes.items():
        yield f"{why}, by {', '.join(some)}: try other answer cues, more words in the prompt, or a larger model"
    data, lost = evaluation.data, evaluation.non_finite
    if data.n_bad:
        lines = ", ".join(str(bad.line) for bad in data.bad)
        yield f"{counted(data.n_bad, 'row')} that could not be used, left out: line {lines}"
    if lost:
        lines = ", ".join(str(row.line) for row in lost)
        yield f"{counted(len(lost), 'row')} with scores that are not finite, left out: line {lines}"


def _one_sided(prompt: PromptStatistics) -> str | None:
    """Why the answers are worth little; None where nothing says so."""
    label, most = max(prompt.labels.items(), key=lambda each: each[1].support)
    if prompt.n_rows < _LEAST_ROWS or prompt.accuracy is None:
        return None
    answer, answered = max(prompt.labels.items(), key=lambda each: each[1].n_predicted)
    if answered.n_predicted >= _ONE_SIDED * prompt.n_rows and most.support < _ONE_SIDED * prompt.n_rows:
        return f"answers {shown(answer)} for {answered.n_predicted / prompt.n_rows:.0%} of the rows"
    if prompt.accuracy * prompt.n_rows <= most.support:
        return f"is no better than {shown(label)} for all rows ({percent(most.support / prompt.n_rows)})"
    return None


def _reliability(modes: Mapping[str, Statistics]) -> Figure:
    return Figure("reliability diagram", (4.6, 4.2), partial(_draw_reliability, modes))


def _draw_reliability(modes: Mapping[str, Statistics], axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color="#999", linewidth=1, linestyle="--")
    for index, (mode, found) in enumerate(modes.items()):
        bins = [(each.confidence, each.accuracy, each.n) for each in found.reliability if each.n]
        if bins:
            confidence, accuracy, n_rows = zip(*bins, strict=True)
            sizes = [8 + 90 * n / found.n_rows for n in n_rows]  # a large mark means many rows
            axes.plot(confidence, accuracy, linewidth=0.8, alpha=0.5)
            axes.scatter(confidence, accuracy, s=sizes, marker=_MARKERS[index % len(_MARKERS)], alpha=0.8, label=mode)
    limits = (-0.03, 1.03)
    axes.set(xlim=limits, ylim=limits, xlabel="probability of the answer", ylabel="accuracy", title="Reliability")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _confusion(mode: str, found: PromptStatistics) -> Figure:
    side = max(2.6, 1.4 + 0.28 * len(found.labels))
    return Figure(f"confusion matrix of {mode}", (side + 0.4, side + 0.2), partial(_draw_confusion, mode, found))


def _draw_confusion(mode: str, found: PromptStatistics, axes: Axes) -> None:
    labels, matrix = list(found.labels), np.array(found.confusion_matrix)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.pcolormesh(share, cmap="Blues", vmin=0, vmax=1, edgecolors="#eee", linewidth=0.5)
    axes.invert_yaxis()
    for i, j in zip(*np.nonzero(matrix), strict=True):
        colour = "white" if share[i, j] > 0.6 else "black"
        axes.text(j + 0.5, i + 0.5, str(matrix[i, j]), ha="center", va="center", color=colour, fontsize=7)
    places = np.arange(len(labels)) + 0.5
    axes.set_xticks(places, labels, rotation=90)
    axes.set_yticks(places, labels)
    axes.tick_params(length=0)
    axes.set(aspect="equal", xlabel="answer", ylabel="label", title=mode)
