"""Which wording of a new configuration answers labelled rows best: many on a few rows, the best of them on more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import numpy as np

from ..config.load import parse_config
from ..config.prompt import CONTENT_FREE_QUERIES
from ..config.words import counted, shown
from ..data.labelled import LabelledColumns, LabelledQuery
from ..drafting.draft import WORDINGS, Draft, draft_text, nothing_kind
from ..evaluation.evaluate import Truth, prompt_statistics, raw_scores, read_rows, truth_of, usable_rows
from ..evaluation.report import likely_faults
from ..opening import ClassifierOpener
from ..report.document import percent
from ..score.adjustment import log_prior
from ..score.result import PromptResult
from ..statistics import BoolArray, FloatArray, right_answers, sign_test, softmax, wilson
from .fit import SIGNIFICANT, cheapest

_MOST_S = 240.0
_ROUNDS = (12, 40)
"""rows that all wordings are tried on, and the best third of them; the last are tried on _MOST rows"""
_MOST, _FEWEST = 200, 60
"""rows; fewer choose nothing"""
_ORDERS: Mapping[str, Callable[[tuple[str, ...]], Sequence[str]]] = {
    "": tuple,
    "labels in the opposite order": lambda labels: labels[::-1],
    "labels by the alphabet": sorted,
    "labels in an order by chance": lambda labels: np.random.default_rng(0).permutation(labels).tolist(),
}
_N_LAST = 3
"""wordings in the last round, or as many as the time allows"""


class _Cells(NamedTuple):
    """The n rows that are labelled for one prompt, as one wording answers them."""

    truth: Truth
    scores: FloatArray
    """(n, n_labels)"""
    prior: FloatArray
    """(n_labels,) the content-free one"""

    def right(self, with_prior: bool) -> BoolArray:
        """(n,) which rows are answered rightly."""
        return right_answers(self.scores - self.prior * with_prior, self.truth.accepted)

    def prior_helps(self, chosen: BoolArray) -> bool:
        """Whether more of the chosen rows are right with the prior than chance explains (sign test, 5 %), and no label
        gets less than a hundredth of its share of the answers by it.
        """
        before, after = self.right(False)[chosen], self.right(True)[chosen]
        n_better, n_worse = int((after & ~before).sum()), int((before & ~after).sum())
        answers = ((self.scores - prior)[chosen].argmax(axis=1) for prior in (0.0, self.prior))
        given, was, now = (np.bincount(a, minlength=len(self.prior)) for a in (self.truth.first[chosen], *answers))
        is_lost = (now < given / 100) & (given / 100 <= was)
        return not is_lost.any() and sign_test(n_better, n_worse) <= SIGNIFICANT


@dataclass(slots=True)
class _Wording:
    """A way to say the draft, and how it answers."""

    draft: Draft
    changes: tuple[str, ...]
    """what differs from the draft, for the reader"""
    answers: list[tuple[PromptResult, ...]] = field(default_factory=list)
    cells: list[_Cells] = field(default_factory=list)
    """by prompt"""

    def ask(self, rows: Sequence[LabelledQuery], folder: Path, opener: ClassifierOpener) -> Iterator[float]:
        """Answer the rows that were not answered before; yields the seconds of a step, first those of the start."""
        began = monotonic()
        with opener.open(parse_config(draft_text(self.draft, folder), folder=folder), quiet=True) as classifier:
            empty = [classifier.classify(query).results for query in CONTENT_FREE_QUERIES]
            yield monotonic() - began
            for row in rows[len(self.answers) :]:
                began = monotonic()
                self.answers.append(classifier.classify(row.query).results)
                yield monotonic() - began
        self.cells = []
        for number, prompt in enumerate(classifier.prompts):
            truth = truth_of(prompt, rows)
            scores, priors = ([results[number] for results in answers] for answers in (self.answers, empty))
            prior = np.asarray(log_prior(raw_scores(priors)), np.float64)
            self.cells.append(_Cells(truth, raw_scores(scores)[truth.index], prior))

    def right(self, chosen: BoolArray) -> FloatArray:
        """Which answers to the chosen rows are right, with a prior where these rows say that it helps."""
        kept = [chosen[cells.truth.index] for cells in self.cells]
        return np.concatenate(
            [c.right(c.prior_helps(rows))[rows] for c, rows in zip(self.cells, kept, strict=True)], dtype=np.float64
        )

    def promise(self) -> float:
        """The prompts' shares of right answers, summed, with a prior where that is better: few rows prove no prior."""
        right = [(cells.right(False), cells.right(True)) for cells in self.cells if len(cells.scores)]
        return sum(float(max(without.mean(), prior.mean())) for without, prior in right)


def search(
    draft: Draft, folder: Path, path: Path, columns: LabelledColumns, opener: ClassifierOpener
) -> tuple[Draft, tuple[str, ...]]:
    """The wording of a draft that labelled rows speak for, and remarks for the reader.

    Cues, orders of labels, texts common or of the prompts' own, and sentences for labels that say nothing are tried in
    all combinations that four minutes allow: on 12 rows, a third of them on 40, the last three (or fewer), the draft
    itself among them, on up to 200. The one with the fewest changes within a standard error of the best is chosen; a
    prompt gets a content-free prior where a test says that it helps. How many rows will be right is stated by leaving
    one out, of the rows that the last three were not chosen by.
    Raises ConfigError for rows that cannot be used, and what Classifier raises.
    """
    config = parse_config(draft_text(draft, folder), folder=folder)
    data = read_rows(config, path, columns, skip_bad=True)
    with opener.open(config, quiet=True) as classifier:
        usable, bad = usable_rows(data, classifier, skip_bad=True)
    left_out = [f"{counted(len(bad), 'row')} cannot be used, as line {bad[0].line}: {bad[0].reason}"] if bad else []
    rows = [usable[place] for place in np.random.default_rng(0).permutation(len(usable))[:_MOST]]
    if len(rows) < _FEWEST:
        return draft, (*left_out, f"{counted(len(rows), 'row')} can be used: too few to choose a wording by, or judge")
    wordings = _wordings(draft)
    start_s, *of_rows = wordings[0].ask(rows[:3], folder, opener)
    row_s = sum(of_rows) / len(of_rows)
    n_last = max(1, min(_N_LAST, int(_MOST_S / (start_s + _FEWEST * row_s))))
    while len(wordings) > n_last and _seconds(len(wordings), n_last, start_s, row_s) > _MOST_S:
        wordings.pop()
    n_tried, ends_at = len(wordings), monotonic() + _MOST_S
    for n_rows in _ROUNDS:
        if len(wordings) > n_last:
            _ask(wordings, rows[:n_rows], folder, opener)
            ranked = sorted(wordings[1:], key=_Wording.promise, reverse=True)
            wordings = [wordings[0], *ranked[: max(n_last, len(wordings) // 3) - 1]]
    n_before = len(wordings[-1].answers)
    n_rows = n_before + int((ends_at - monotonic() - n_last * start_s) / (n_last * row_s))
    rows = rows[: max(n_rows, _FEWEST if n_last > 1 else n_before)]
    _ask(wordings, rows, folder, opener)
    best, remarks = _chosen(wordings, n_before, n_tried)
    return best, (*left_out, *remarks)


def _seconds(n_wordings: int, n_last: int, start_s: float, row_s: float) -> float:
    n_second = max(n_last, n_wordings // 3)
    n_asked = n_wordings * _ROUNDS[0] + n_second * (_ROUNDS[1] - _ROUNDS[0]) + n_last * (_MOST - _ROUNDS[1])
    return (n_wordings + n_second + n_last) * start_s + n_asked * row_s


def _ask(wordings: Sequence[_Wording], rows: Sequence[LabelledQuery], folder: Path, opener: ClassifierOpener) -> None:
    steps = range(sum(1 + len(rows) - len(wording.answers) for wording in wordings))
    work = chain.from_iterable(wording.ask(rows, folder, opener) for wording in wordings)
    for _ in zip(work, opener.progress(f"try {counted(len(wordings), 'wording')}", steps), strict=True):
        pass


def _wordings(draft: Draft) -> list[_Wording]:
    """The draft as it is, then those that differ from it, fewest changes first."""
    says_nothing = any(nothing_kind(label) for prompt in draft.prompts for label in prompt.labels)
    wordings = []
    for (order, reordered), cue, has_rules, is_common in product(
        _ORDERS.items(),
        WORDINGS[draft.language].cues,
        (True, False) if says_nothing else (True,),
        (True, False) if len(draft.prompts) > 1 else (draft.is_common,),
    ):
        changes = {
            order: order,
            f"the answer after {shown(cue)}": cue != draft.cue,
            "no sentence for labels such as none": not has_rules,
            "one text for all prompts" if is_common else "texts of the prompts' own": is_common != draft.is_common,
        }
        prompts = tuple(replace(prompt, labels=tuple(reordered(prompt.labels))) for prompt in draft.prompts)
        changed = replace(draft, prompts=prompts, cue=cue, has_rules=has_rules, is_common=is_common)
        wordings.append(_Wording(changed, tuple(what for what, is_change in changes.items() if is_change)))
    return sorted(wordings, key=lambda wording: len(wording.changes))


def _best(wordings: Sequence[_Wording], chosen: BoolArray) -> _Wording:
    """The one with the fewest changes that is within a standard error of the best, on the chosen rows."""
    return wordings[cheapest([1 - wording.right(chosen) for wording in wordings])]


def _chosen(wordings: list[_Wording], n_before: int, n_tried: int) -> tuple[Draft, tuple[str, ...]]:
    """The best wording as a draft that says what is expected of it, and remarks."""
    wordings.sort(key=lambda wording: len(wording.changes))
    everything = np.ones(len(wordings[0].answers), np.bool_)
    best = _best(wordings, everything)
    stated: list[list[bool]] = [[] for _ in best.cells]
    for row in range(n_before, len(everything)):
        others = np.arange(len(everything)) != row
        for cells, right in zip(_best(wordings, others).cells, stated, strict=True):
            is_row = cells.truth.index == row
            right.extend(cells.right(cells.prior_helps(~is_row))[is_row])
    remarks, prompts, with_prior = [], [], []
    if best.changes:
        remarks.append(f"of {counted(n_tried, 'wording')} the best has {'; '.join(best.changes)}")
    for prompt, cells, right in zip(best.draft.prompts, best.cells, stated, strict=True):
        index, helps = cells.truth.index, cells.prior_helps(everything[cells.truth.index])
        scores = np.zeros((len(everything), len(prompt.labels)))
        scores[index] = cells.scores - cells.prior * helps
        statistics = prompt_statistics(cells.truth, np.asarray(softmax(scores)))[0]
        words = "too few rows to say how many will be right"
        if right and (interval := wilson(sum(right), len(right))):
            words = "{:.1%} of rows expected right ({:.0%}–{:.0%}, ".format(sum(right) / len(right), *interval)
            words += f"leaving one out of {len(right)}), the best single label {percent(statistics.majority)}"
        words += ", with a content-free prior" * helps
        prompts.append(replace(prompt, note=f"{prompt.note}; {words}"))
        remarks += [f"{prompt.name}: {what}" for what in (words, *likely_faults(statistics))]
        with_prior += [prompt.name] * helps
    return replace(best.draft, prompts=tuple(prompts), with_prior=tuple(with_prior)), tuple(remarks)
