"""An evaluation as a document."""

from collections.abc import Iterator, Mapping

from ..config.words import counted, listed, shown
from ..report.document import TEXT, Document, Format, Paragraph, Section, Table, facts, percent, provenance
from .evaluate import EvaluationRecord, LabelStatistics, PromptStatistics, Statistics

_N_CONFUSIONS, _N_LABELS = 10, 15
"""rows on a terminal"""
_ONE_SIDED, _LEAST_ROWS = 0.9, 20
_LEAST_SUPPORT, _LEAST_RECALL = 5, 0.1
"""of a label that is said to be hardly ever found: rows, and share of them that are"""
_AS_GOOD = 0.02
_STATISTICS: dict[str, Format] = {
    "rows": "d", "accuracy (95 %)": ">", "balanced": ".1%", "majority": ".1%", "macro-F1": ".3f", "log-loss": ".3f",
    "ECE": ".3f",
}  # fmt: skip


def evaluation_document(evaluation: EvaluationRecord) -> Document:
    """All that `qcls-gguf eval` shows of its record."""
    prompts, data = evaluation.prompts, evaluation.data
    conditions = {
        "data": f"{data.path}: {counted(data.n_rows, 'row')}, {data.n_bad} left out",
        "data sha256": data.sha256,
        **provenance(evaluation.model, evaluation.environment),
    }
    told = [Paragraph(str(mistake), "warning") for mistake in evaluation.warnings]  # a terminal has them already
    together = {"all prompts": evaluation.together} if len(prompts) > 1 else {}
    return Document(
        title=f"Evaluation of {counted(len(prompts), 'prompt')}",
        parts=[
            Section(title="Conditions", parts=[facts(conditions), *told], on_terminal=False),
            Table(
                columns={"prompt": TEXT, **_STATISTICS, "words": ".1%"},
                rows=[
                    [name, *_statistics(found), evaluation.words.get(name)]
                    for name, found in (together | prompts).items()
                ],
                note="Accuracy with its Wilson 95 % interval; balanced: the mean recall of the labels; majority: the "
                "best single label for all rows; log-loss in nats; ECE over 15 bins; words: a linear model of "
                "words, fitted to others of these rows.",
            ),
            _labels(prompts),
            confusion_table("confused", prompts),
            Section(
                title="In detail",
                parts=[
                    _reliability(evaluation.together),
                    *(_confusion_matrix(name, found) for name, found in prompts.items() if found.n_rows),
                ],
                on_terminal=False,
            ),
            *(Paragraph(note, "warning") for note in _notes(evaluation)),
        ],
    )  # fmt: skip


def _statistics(found: Statistics) -> list[object]:
    """The values of _STATISTICS."""
    interval = f" ({found.accuracy_ci[0]:.1%}–{found.accuracy_ci[1]:.1%})" if found.accuracy_ci else ""
    return [
        *(found.n_rows, percent(found.accuracy) + interval, found.balanced_accuracy, found.majority, found.macro_f1),
        *(found.log_loss, found.ece),
    ]


def _labels(prompts: Mapping[str, PromptStatistics]) -> Table:
    """The labels of all prompts, those that are found least first."""
    rows: list[tuple[str, str, LabelStatistics]] = [
        (name, label, found)
        for name, prompt in prompts.items()
        for label, found in prompt.labels.items()
        if found.support or found.n_predicted
    ]
    rows.sort(key=lambda row: 1.0 if row[2].recall is None else row[2].recall)
    return Table(
        title="By label",
        columns={"prompt": TEXT, "label": TEXT, "rows": "d", "answered": "d", "recall": ".1%", "precision": ".1%"},
        rows=[
            [name, label, found.support, found.n_predicted, found.recall, found.precision]
            for name, label, found in rows
        ],
        n_terminal=_N_LABELS,
    )  # fmt: skip


def confusion_table(heading: str, prompts: Mapping[str, PromptStatistics]) -> Table:
    """The most frequent confusions of all prompts."""
    found = [
        (name, label, answer, n)
        for name, prompt in prompts.items()
        for label, row in zip(prompt.labels, prompt.confusion_matrix, strict=True)
        for answer, n in zip(prompt.labels, row, strict=True)
        if n and label != answer
    ]
    columns = {heading: TEXT, "label": TEXT, "answer": TEXT, "rows": "d"}
    return Table(columns=columns, rows=sorted(found, key=lambda row: -row[3])[:_N_CONFUSIONS])


def _notes(evaluation: EvaluationRecord) -> Iterator[str]:
    """What is likely wrong with the answers, and what the statistics do not cover, a sentence a line."""
    for name, prompt in evaluation.prompts.items():
        for why in likely_faults(prompt):
            yield f"{name}: {why}"
        for why in word_notes(prompt, evaluation.words[name]):
            yield f"{name}: {why}"
    if n := evaluation.n_known:
        what = f"heads were learnt from the queries of {counted(n, 'row')}, or an error was stated by them"
        yield f"{what}: their figures are too good, give others"
    data, lost = evaluation.data, evaluation.non_finite
    if data.n_bad:
        lines = ", ".join(str(row.line) for row in data.bad)
        yield f"{counted(data.n_bad, 'row')} that could not be used, left out: line {lines}"
    if n := data.n_contradictions:
        yield f"{counted(n, 'query', 'queries')} with different labels in several rows: no answer is right for all"
    if lost:
        lines = ", ".join(str(row.line) for row in lost)
        yield f"{counted(len(lost), 'row')} with scores that are not finite, left out: line {lines}"


def word_notes(found: Statistics | None, words: float | None) -> Iterator[str]:
    """That a model of words is about as good, and better than one label for all rows, where it is."""
    if found is None or found.accuracy is None or found.majority is None or words is None:
        return
    if words >= found.accuracy - _AS_GOOD and words > found.majority + _AS_GOOD:
        remedy = "you may not need a language model"
        yield f"a linear model of words, fitted to such rows, is right for {words:.0%}: {remedy}"


def likely_faults(prompt: PromptStatistics) -> Iterator[str]:
    """Why answers to rows are worth less than they seem: one-sided, no better than one label, labels hardly found."""
    if prompt.n_rows < _LEAST_ROWS or prompt.accuracy is None or prompt.majority is None:
        return
    remedy = "try other words in the prompt, `learn`, or a larger model"
    answer, answered = max(prompt.labels.items(), key=lambda item: item[1].n_predicted)
    if prompt.accuracy <= prompt.majority:
        yield f"is no better than one label for all rows ({percent(prompt.majority)} are right): {remedy}"
    elif answered.n_predicted >= _ONE_SIDED * prompt.n_rows > prompt.majority * prompt.n_rows:
        yield f"answers {shown(answer)} for {answered.n_predicted / prompt.n_rows:.0%} of the rows: {remedy}"
    missed = [
        f"{shown(label)} ({round(found.support * (found.recall or 0))} of {found.support} rows)"
        for label, found in prompt.labels.items()
        if found.support >= _LEAST_SUPPORT and found.n_predicted and (found.recall or 0) <= _LEAST_RECALL
    ]
    if missed:
        yield f"hardly ever finds {listed(missed, 'label')}: say in the prompt when it is right"
    never = [shown(label) for label, found in prompt.labels.items() if not found.n_predicted and found.support]
    if never:
        yield f"never answers {listed(never, 'label')}"
    if prompt.n_abstained:
        others = f"of the others {prompt.n_wrong} of {prompt.n_rows - prompt.n_abstained} are wrong"
        yield f"answers {percent(prompt.n_abstained / prompt.n_rows)} of the rows by its fallback; {others}"


def _reliability(found: Statistics) -> Table:
    """Of all answers, how many in every bin of their probability are right."""
    rows = [
        [f"{place / len(found.reliability):.0%}–", one.n, one.confidence, one.accuracy]
        for place, one in enumerate(found.reliability)
        if one.n
    ]
    columns = {"probability of the answer": TEXT, "rows": "d", "mean": ".1%", "accuracy": ".1%"}
    return Table(title="Reliability", columns=columns, rows=rows)


def _confusion_matrix(name: str, found: PromptStatistics) -> Table:
    """The rows of a prompt by label and answer."""
    return Table(
        title=f"Confusion matrix of {name}: a row for a label, a column for an answer",
        columns={"": TEXT, **dict.fromkeys(found.labels, lambda n: str(n or ""))},
        rows=[[label, *row] for label, row in zip(found.labels, found.confusion_matrix, strict=True)],
    )
