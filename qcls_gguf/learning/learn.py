"""From labelled queries to a file of heads, which read one common text for all prompts; kept where they are better."""

import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ..classifier import Classifier
from ..config.fitted import Head, heads_content
from ..config.prompt import NAME_SLOT, SLOT, PromptConfig
from ..config.schema import Config, chosen_prompts
from ..config.words import counted, hint, listed, shown
from ..core.handle import PromptHandle
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns, LabelledQuery
from ..data.rows import read_queries
from ..errors import CapacityError, ConfigError, PlanError
from ..evaluation.evaluate import (
    Truth,
    data_record,
    probabilities_of,
    prompt_statistics,
    read_rows,
    truth_of,
    usable_rows,
)
from ..opening import ClassifierOpener, OnProgress
from ..statistics import SMALLEST, FloatArray, IntArray, right_answers, sign_test, wilson
from ..statistics.fitting import shares_of_labels
from ..statistics.logistic import N_FOLDS, PENALTIES, CrossFit, cross_fit_words, folds
from .fit import SIGNIFICANT, Candidate, beside_words, cheapest, held_out, share_biases
from .passes import StateRows, common_text, common_texts, read_states, state_rows, tried_depths, with_heads
from .report import LearnRecord, LearntPrompt, RequestCost

_TOO_LONG = (CapacityError, PlanError)
LEAST_AGREEMENT = 0.85
_LEAST_QUERIES, _N_SHARED = 50, 400
"""queries without labels: of a log, and by which shares of labels are found at most"""
_LEAST_ROWS = 4 * N_FOLDS
"""With fewer, a head may pass the test by luck, and is mostly worse (docs/learn.md)."""
_MOST_ROWS, _MOST_NUMBERS, _MOST_CELLS = 20_000, 1 << 25, 4_000_000
"""of which heads are learnt, of their states at a depth, and of their labels; of more rows a random choice is taken"""
_N_SCOUTS = 160
"""rows by which the common text is chosen"""
_LEAST_A_LABEL = 5
"""rows for a label, for the prompts' own texts to be tried; labels that fewer answers of a log have are named"""
_LEAST_COMPARED, _MOST_COMPARED = 60, 1_000
"""rows on which heads are compared with the labels' texts: at first, and where so few do not decide"""
_OWN_TOKENS, _MOST_OWN_TOKENS = 12_000, 100_000
"""Where all rows feed no more to the prompts' own texts, heads may read these; else the first rows decide, which feed
half as many, and above the second number none may.
"""
_EVEN = 0.8
"""The rarest label has this share of the rows of the most frequent one, as a rule only in rows that were chosen so."""


def learn(
    config: Config,
    opener: ClassifierOpener,
    *,
    data: Path | None = None,
    queries: str | None = None,
    shares: Sequence[str] = (),
    teacher: Config | None = None,
    least_agreement: float = LEAST_AGREEMENT,
    names: Sequence[str] = (),
    columns: LabelledColumns = PLAIN_COLUMNS,
    skip_bad: bool = False,
    common: str | None = None,
    depths: Sequence[int] = (),
    folder: Path | None = None,
) -> tuple[LearnRecord, bytes | None]:
    """Learn, and return the record that `qcls-gguf learn` prints as JSON, and the content of the file of heads.

    data: labelled queries; queries: a file of others, or -, with which heads are learnt from the prompts' answers;
    shares: of labels where heads will be used: a file of such queries, or texts such as `red=0.2`;
    teacher: gives these answers instead; least_agreement: with them, of heads that are kept; names: prompts, empty:
    all; common: the text that heads read, None: see `common_texts`; depths: to try, empty: four between 0.5 and 0.9 of
    the layers, and all; folder: keeps what was read until the work ends, so that the same work goes on after an
    interrupt; None: it begins anew.
    The content has the heads that were kept, and is None where there are none. Raises ConfigError
    for what cannot be used, before anything is computed; and what Classifier raises.
    """
    if common is not None and common.count(SLOT) != 1:
        raise ConfigError(f"`common_text` {shown(common)}: needs exactly one {SLOT}")
    labelled = None if data is None else read_rows(config, data, columns, skip_bad=skip_bad)
    given = _given_shares(shares, config)
    other = queries or (shares[0] if shares and not given else None)
    log = [] if other is None else list(read_queries(other, columns))
    if queries is None:
        log = [log[place] for place in np.random.default_rng(0).permutation(len(log))[:_N_SHARED]]
    runtime = config.runtime.changed(question_cells="auto", question_prefixes="auto")  # for the common texts
    config = config.changed(prompts=chosen_prompts(config, names), heads=None, runtime=runtime)
    with opener.open(config, calibrated=False) as classifier:
        rows, bad = usable_rows(labelled, classifier, skip_bad=skip_bad) if labelled else ([], [])
        chosen = {prompt.name for prompt in classifier.prompts}
        rows = [row for row in rows if row.labels.keys() & chosen]
        n_labelled, known = len(rows), {row.query for row in rows}
        for line in log:
            if line.error is None and line.text not in known and _can_be_query(classifier, line.text):
                known.add(line.text)
                rows.append(LabelledQuery(line=0, query=line.text, labels={}))
        n_queries = len(rows) - n_labelled
        n_usable, key = (n_queries, "shares") if queries is None else (len(rows), "queries")
        if other is not None and n_usable < _LEAST_QUERIES:
            raise ConfigError(f"`{key}` {other}: has {n_usable} queries, at least {_LEAST_QUERIES} are needed")
        if folder:
            folder.mkdir(exist_ok=True)
        taught = None if teacher is None else _taught(classifier, teacher, rows, opener)
        least = None if queries is None else least_agreement
        learnt = learn_heads(
            classifier, rows, least_agreement=least, taught=taught, shares=given if shares else None, common=common,
            depths=depths, folder=folder, on_progress=opener.on_progress,
        )  # fmt: skip
        model, n_embd = classifier.model, classifier.engine.model.facts.n_embd
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    record = LearnRecord(
        data=None if labelled is None else data_record(labelled, n_labelled, bad),
        n_queries=n_queries, n_left_out=len(log) - n_queries,
        model=model, warnings=opener.warnings, n_layer=learnt.depths[-1], depths=learnt.depths, text=learnt.text,
        before=learnt.before, after=learnt.after, prompts=learnt.prompts,
    )  # fmt: skip
    if not learnt.heads:
        return record, None
    return record, heads_content(model.sha256, learnt.depths[-1], n_embd, learnt.heads, learnt.queries)


def _given_shares(shares: Sequence[str], config: Config) -> dict[str, float]:
    """The shares of labels that are given as numbers. Raises ConfigError for others."""
    found = {}
    for label, share in (text.rsplit("=", 1) for text in shares if "=" in text and not Path(text).exists()):
        labels = sorted({label for prompt in config.prompts for label in prompt.labels})
        if label not in labels:
            raise ConfigError(f"`shares` {label}={share}: {shown(label)} is no label, {hint(label, labels)}")
        with suppress(ValueError):
            found[label] = float(share)
        together = max(sum(found.get(label, 0.0) for label in prompt.labels) for prompt in config.prompts)
        if not 0 < found.get(label, 0) <= together < 1 + SMALLEST:
            raise ConfigError(f"`shares` {label}={share}: shares lie between 0 and 1, those of a prompt together, too")
    if len(shares) != max(1, len(found)) * bool(shares):
        raise ConfigError("`shares`: give one file of queries, or different labels with their shares")
    return found


def _taught(
    classifier: Classifier, teacher: Config, rows: Sequence[LabelledQuery], opener: ClassifierOpener
) -> list[FloatArray]:
    """By prompt (n, n_labels) the probabilities that another configuration gives to the rows.

    Raises ConfigError for prompts or labels that it lacks.
    """
    with opener.open(teacher) as other:
        labels = {prompt.name: prompt.labels for prompt in other.prompts}
        for prompt in classifier.prompts:
            if {*labels.get(prompt.name, ())} != {*prompt.labels}:
                raise ConfigError(f"`teacher` {teacher.path}: has no prompt {prompt.name} with the same labels")
        answers = [other.classify(row.query).results for row in opener.progress("ask the teacher", rows)]
    found = []
    for prompt in classifier.prompts:
        place, order = list(labels).index(prompt.name), [labels[prompt.name].index(label) for label in prompt.labels]
        found.append(probabilities_of([results[place] for results in answers])[:, order])
    return found


class LearntHeads(NamedTuple):
    """What was learnt for some prompts."""

    prompts: dict[str, LearntPrompt]
    """by name"""
    heads: dict[str, tuple[PromptConfig, Head]]
    """the heads that were kept, by name"""
    depths: tuple[int, ...]
    """that were tried"""
    text: str
    """that was chosen for the heads"""
    queries: list[str]
    """that they were learnt from"""
    before: RequestCost
    after: RequestCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be learnt for a prompt."""

    prompt: PromptConfig
    truth: Truth
    texts: Sequence[str]
    """of all rows and, last, of labels' names"""
    index: IntArray
    """(n,) which of all rows are learnt from: the labelled ones and, last, their labels' names as queries; or all"""
    target: FloatArray
    """(n, n_labels) the labels' shares of these rows"""
    fold: IntArray
    """(n,) of them; -1: a label's name, which no fold leaves out"""
    p: FloatArray
    """(n_own, n_labels) the prompt's, or teacher's, answers to the first of all rows"""
    place: int
    """of the prompt, among all"""
    columns: slice
    """of its labels, among those of all prompts"""
    shares: Mapping[str, float] | None
    """of labels, that are given; empty: those of the queries without labels; None: as the rows have them"""

    @property
    def n_rows(self) -> int:
        """Rows that are learnt from, without labels' names."""
        return int((self.fold >= 0).sum())

    def candidates(self, rows: StateRows, depths: Sequence[int], text: str | None = None) -> list[Candidate]:
        """What heads may use of a common text, or of the prompt's own, by depth; last, beside the labels' texts, a head
        of a text that ends in the prompt's own way.
        """
        is_own = text is None or NAME_SLOT in text
        read = None if text in (None, self.prompt.expanded_template) else text.replace(NAME_SLOT, self.prompt.name)
        found = [
            Candidate(depth=depth, states=rows["states"][:, is_own * self.place, at], text=read, index=self.index)
            for at, depth in enumerate(depths)
        ]
        return [*found, replace(found[-1], scores=rows["scores"][:, self.columns])] if is_own else found

    def fits(
        self, candidates: Sequence[Candidate], on_fit: Callable[[], None] = lambda: None
    ) -> list[tuple[CrossFit, Head]]:
        """The candidates' fits; what reads one text has the penalty of its deepest state; on_fit: called after one."""
        penalties: dict[tuple[str | None, bool], tuple[float, ...]] = {}
        fits = []
        for candidate in reversed(candidates):
            key = candidate.text, candidate.scores is not None
            fits.append(candidate.fit(self.target, self.fold, penalties.get(key, PENALTIES)))
            penalties[key] = (fits[-1][0].penalty,)
            on_fit()
        return fits[::-1]

    def cross_fit_words(self, every: int = 1) -> CrossFit:
        """Of the rows' texts."""
        return cross_fit_words([self.texts[row] for row in self.index], self.target, self.fold, every)

    def odds(self, candidate: Candidate, head: Head, n_all: int) -> FloatArray:
        """(n_labels,) how much more frequent labels are where heads are used than in the rows, by a fit to all rows.

        n_all: with the rows that have no label.
        """
        prior = self.target[: self.n_rows].mean(axis=0) + SMALLEST
        known = np.array([(self.shares or {}).get(label, 0.0) for label in self.prompt.labels])
        if self.shares is None or (self.shares and not known.any()):
            return np.ones_like(prior)
        rest = prior * (known == 0)
        shares = known + rest * max(0.0, 1 - known.sum()) / max(rest.sum(), SMALLEST)
        if not self.shares:
            shares = shares_of_labels(candidate.probabilities(head, np.setdiff1d(np.arange(n_all), self.index)), prior)
        return np.where(prior > 2 * SMALLEST, np.clip(shares / shares.sum() / prior, 0.01, 100.0), 1.0)

    @property
    def compared(self) -> Truth:
        """The truth of the rows to which the prompt's answers are known."""
        k = int((self.truth.index < len(self.p)).sum())
        return replace(
            self.truth, index=self.truth.index[:k], accepted=self.truth.accepted[:k], first=self.truth.first[:k]
        )

    def first(self, n: int, *, named: bool = True) -> "Task":
        """The same for the first n of all rows, with labels' names or without."""
        of = (self.index < n) | (named & (self.fold < 0))
        return replace(self, index=self.index[of], target=self.target[of], fold=self.fold[of])


def learn_heads(
    classifier: Classifier,
    rows: Sequence[LabelledQuery],
    *,
    least_agreement: float | None = None,
    taught: Sequence[FloatArray] | None = None,
    shares: Mapping[str, float] | None = None,
    common: str | None = None,
    depths: Sequence[int] = (),
    folder: Path | None = None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> LearntHeads:
    """Learn heads for a classifier's prompts, which have none, from labelled queries; the rest as in `learn`.

    least_agreement: None: from their labels; taught: by prompt (n, n_labels) another configuration's answers;
    shares: of labels where heads will be used, empty: as the rows without labels have them, None: as the others do.
    Raises ConfigError where the disk cannot hold the states, and what `classify_batch` raises.
    """
    n_embd, prompts, is_log = classifier.engine.model.facts.n_embd, classifier.prompts, least_agreement is not None
    n_labels = max(len(prompt.labels) for prompt in prompts)
    n = min(len(rows), _MOST_ROWS, _MOST_NUMBERS // n_embd, _MOST_CELLS // n_labels)
    order = np.random.default_rng(0).permutation(len(rows))
    if shares is not None:  # rows without labels only tell how frequent these are
        has_labels = np.array([bool(row.labels) for row in rows])[order]
        order = np.concatenate([order[has_labels][: n - (~has_labels).sum()], order[~has_labels]])
    order = order[:n]
    rows = [rows[place] for place in order]
    queries, tried = [row.query for row in rows], tried_depths(classifier, depths)
    fed = _fed(classifier, queries)
    n_own = n if n * fed <= _OWN_TOKENS else min(n, max(_LEAST_COMPARED, int(_OWN_TOKENS / 2 / fed)))
    n_most = n if n * fed <= _MOST_OWN_TOKENS else min(n, max(n_own, _MOST_COMPARED))
    if is_log:
        n_own = n_most = n if taught is None else 0
    reads_own = n_own == n and not is_log
    named = {label for row in rows for prompt in prompts for label in row.labels.get(prompt.name, ())}
    names = [label for label in sorted(named) if not is_log and _can_be_query(classifier, label)]
    texts, row_of = [*queries, *names], {label: n + row for row, label in enumerate(names)}

    def read(handle: PromptHandle, part: str, found: StateRows, k: int) -> None:
        if handle is not classifier or k == n:  # of the prompts' own texts names are read where all rows are
            read_states(handle, names, tried, found[len(found) - len(names) :], lambda done: None)
        read_states(handle, queries[:k], tried, found, lambda done: on_progress(part, done, k))

    own = state_rows(classifier, [*queries[:n_most], *names], tried, folder)
    read(classifier, "read the prompts", own, n_own)
    ends = np.cumsum([len(prompt.labels) for prompt in prompts])
    tasks = []
    for place, prompt in enumerate(prompts):
        labels = slice(ends[place] - len(prompt.labels), ends[place])
        p = np.array(own["p"][:n_own, labels]) if taught is None else taught[place][order]
        truth = truth_of(prompt, rows)
        known = [(row_of[name], label) for label in sorted({*truth.first}) if (name := prompt.labels[label]) in row_of]
        index, label = np.array([*zip(truth.index, truth.first, strict=True), *known], np.intp).reshape(-1, 2).T
        fold = np.append(folds(truth.first, [queries[row] for row in truth.index]), np.full(len(known), -1))
        target = np.eye(len(prompt.labels))[label]
        if is_log:
            index, target, fold = np.arange(n), p, folds(p.argmax(axis=1), queries)
        of_truth: Any = {"truth": truth, "texts": texts, "index": index, "target": target, "fold": fold}
        tasks.append(Task(prompt=prompt.settings, p=p, place=place, columns=labels, shares=shares, **of_truth))
    is_single = common is None and len(tasks) == 1
    n_scouts, is_few = min(n, _N_SCOUTS), n * (2 if is_log else len(tasks)) < 4 * _N_SCOUTS
    commons = [common] if common else common_texts([one.prompt for one in tasks], queries, is_log=is_log, is_few=is_few)
    if is_single and n_own < n and not is_log:
        commons.insert(0, tasks[0].prompt.expanded_template)  # which costs no more than a common one
    found: dict[str, StateRows] = {}
    for number, text in enumerate(commons, 1):
        if is_few and found:
            break
        with suppress(*_TOO_LONG), classifier.prompt_set(common_text(classifier, text)) as handle:
            found[text] = state_rows(handle, texts, tried, folder)
            read(handle, f"common text {number}", found[text], n_scouts)
    text = next(iter(found), commons[-1])
    if len(found) > 1:
        text = list(found)[_best_text([task.first(n_scouts) for task in tasks], list(found.items()), tried)]
    with classifier.prompt_set(common_text(classifier, text)) as handle:
        read(handle, "read the common text", found[text], n)
    fewest, both = min(len(task.prompt.labels) for task in tasks), [(text, found[text]), (None, own)]
    few = [task.first(n_own, named=False) for task in tasks]
    if _LEAST_A_LABEL * fewest <= n_own < n == n_most and _best_text(few, both, tried) == 1:
        read(classifier, "read the prompts", own, n)
        tasks, n_own, reads_own = [replace(task, p=np.array(own["p"][:, task.columns])) for task in tasks], n, True
    learnt: dict[str, LearntPrompt] = {}
    heads: dict[str, tuple[PromptConfig, Head]] = {}
    tries = [task.candidates(found[text], tried, text) + task.candidates(own, tried) * reads_own for task in tasks]
    fits, n_fits = count(1), sum(map(len, tries)) + len(tasks) * (not is_log)

    def read_more(task: Task) -> FloatArray:
        read(classifier, "compare on more rows", own, n_most)
        return np.array(own["p"][:, task.columns])

    for task, candidates in zip(tasks, tries, strict=True):
        learnt[task.prompt.name], head = learn_prompt(
            task, candidates, n, least_agreement, is_single=is_single,
            on_fit=lambda: on_progress("fit", next(fits), n_fits), read_more=read_more if n_own < n_most else None,
        )  # fmt: skip
        if head is not None:
            heads[task.prompt.name] = task.prompt, head
    on_progress("fit", n_fits, n_fits)
    before = RequestCost(tokens=fed, layers=tried[-1])
    proven = {name: heads[name] for name in heads if learnt[name].kept}
    after = _cost(classifier, queries, proven) if proven else before
    less = _cost(classifier, queries, heads) if len(heads) > len(proven) else after
    is_less = less.product < after.product
    for name in heads.keys() - proven:
        why = "requests cost less with it" if is_less else "requests would cost no less with it"
        told = {"kept": is_less, "reason": f"{learnt[name].reason}; {why}"}
        learnt[name] = learnt[name].model_copy(update=told)
    heads, after = (heads, less) if is_less else (proven, after)
    if is_log and taught is None and after.product > before.product:
        for name in heads:
            why = f"{learnt[name].reason}; the others' own texts and these heads' would cost more than without heads"
            learnt[name] = learnt[name].model_copy(update={"kept": False, "reason": why})
        heads, after = {}, before
    return LearntHeads(learnt, heads, tried, text, queries, before, after)


def _can_be_query(classifier: Classifier, text: str) -> bool:
    """Whether the text is short enough."""
    with suppress(PlanError):
        classifier.check(text)
        return True
    return False


def _cost(
    classifier: Classifier, queries: Sequence[str], heads: Mapping[str, tuple[PromptConfig, Head]]
) -> RequestCost:
    """Of a request with heads, to prompts that have none yet."""
    learnt, prompts = {name: head for name, (_, head) in heads.items()}, [one.settings for one in classifier.prompts]
    with classifier.prompt_set(with_heads(classifier, prompts, learnt)) as handle:
        tokens = _fed(handle, queries)
    reads_all = len(learnt) < len(classifier.prompts) or any(head.reads_labels for head in learnt.values())
    n_layer = classifier.engine.model.facts.n_layer
    return RequestCost(tokens=tokens, layers=n_layer if reads_all else max(head.depth for head in learnt.values()))


def _fed(handle: PromptHandle, queries: Sequence[str]) -> float:
    """Tokens that a query feeds, on the mean of the first queries."""
    return float(np.mean([handle.estimated_fed(query) for query in queries[:_N_SCOUTS]]))


def _best_text(tasks: Sequence[Task], texts: Sequence[tuple[str | None, StateRows]], depths: Sequence[int]) -> int:
    """The place of the text (None: the prompts' own) whose heads have the least loss, over all prompts; the first if
    others are no better than chance explains.
    """
    losses = []
    for text, rows in texts:
        by_task = [task.fits(task.candidates(rows, depths, text)) for task in tasks if task.n_rows]
        best = [min((fit.losses for fit, _ in fits), key=lambda loss: float(loss.mean())) for fits in by_task]
        losses.append(np.concatenate(best))
    return cheapest(losses)


class Gain(NamedTuple):
    """What a head is worth on rows that it has not seen, of which the prompt's answers are known, too."""

    n: int
    """such rows"""
    n_better: int
    n_worse: int
    points: float
    """by which accuracy rises"""
    p: float
    """how likely so much is won by chance"""

    @classmethod
    def of(cls, task: Task, p: FloatArray, odds: FloatArray) -> Self:
        """p: (n_labelled, n_labels) the head's held-out answers; odds: see `Task.odds`."""
        truth = task.compared
        before, after = (right_answers(of, truth.accepted) for of in (task.p[truth.index], p[: len(truth.index)]))
        n_better, n_worse = int((after & ~before).sum()), int((before & ~after).sum())
        weight = odds[truth.first]
        gains = weight * (after.astype(float) - before)
        if (odds == 1).all() or not len(gains):
            by_chance = sign_test(n_better, n_worse)
        else:  # as if one more row, of those that count most, were lost
            spread = np.square(gains).sum() + weight.max() ** 2
            by_chance = math.erfc(gains.sum() / math.sqrt(2 * spread)) / 2
        points = 100 * gains.sum() / max(weight.sum(), SMALLEST)
        return cls(len(gains), n_better, n_worse, points, by_chance)

    def __str__(self) -> str:
        return f"{self.points:+.1f} points on {self.n} held-out rows" if self.n else ""


def learn_prompt(
    task: Task,
    candidates: Sequence[Candidate],
    n_all: int,
    least_agreement: float | None = None,
    *,
    is_single: bool = False,
    on_fit: Callable[[], None] = lambda: None,
    read_more: Callable[[Task], FloatArray] | None = None,
) -> tuple[LearntPrompt, Head | None]:
    """What was learnt for a prompt, and its head if that is better than the prompt, or answers as it does; one that is
    better without proof is not said to be kept.

    n_all: the number of all rows; least_agreement: see `learn_heads`; is_single: its own text costs no more than a
    common one; read_more: gives the prompt's answers to more rows, which are asked for where a gain is no proof. Chance
    may then pass either test half as often.
    """
    truth, labels, n, from_labels = task.truth, task.prompt.labels, task.n_rows, least_agreement is None
    counts = Counter(labels[label] for label in (truth.first if from_labels else task.p.argmax(axis=1)))
    unlearnt = [label for label in labels if counts[label] < (1 if from_labels else _LEAST_A_LABEL)]
    if unlearnt and from_labels:  # their texts answer for them, which only a head beside these leaves to them
        candidates = [candidate for candidate in candidates if candidate.scores is not None]
    reason = why_not(task.prompt, counts, n)
    if reason is None and not candidates:
        lacking = listed(list(map(shown, unlearnt)), "label")
        reason = f"no rows for {lacking}, and too many others to read their texts' scores"
    if reason is not None:
        return LearntPrompt(**_told(task), unlearnt=tuple(unlearnt) * from_labels, reason=reason), None
    at, fold = np.searchsorted(task.index[:n], truth.index), task.fold[:n]
    fits = task.fits(candidates, on_fit)
    costs = [(one.text is None and not is_single, one.depth, one.scores is not None) for one in candidates]
    best = cheapest(losses := [fit.losses for fit, _ in fits], costs)
    (found, head), of_words = fits[best], None
    odds = task.odds(candidates[best], head, n_all)
    log_p, shift = held_out(losses, lambda place: fits[place][0].log_p, fold, costs), np.log(odds)
    if from_labels:
        words = task.cross_fit_words()
        on_fit()
        of_words = float(right_answers(words.log_p, truth.accepted).mean())
        if words.weight.any(axis=0).all():
            log_p, head = beside_words(log_p, head, words, task.target[:n], fold)
    else:
        answer, others = task.p.argmax(axis=1), [fold != k for k in range(N_FOLDS)]
        shift = shift + share_biases(log_p, answer)
        log_p += np.array([share_biases(log_p[rows], answer[rows]) for rows in others])[fold]
    p = np.exp(log_p) * odds
    p /= p.sum(axis=1, keepdims=True)
    learnt = prompt_statistics(replace(truth, index=at), p)[0] if len(at) else None
    bias = (head.bias + shift).astype(np.float32)
    head = replace(head, bias=bias, n_rows=n, accuracy=learnt.accuracy if learnt else None)
    gain, significant = Gain.of(task, p[at], odds), SIGNIFICANT if read_more is None else SIGNIFICANT / 2
    if read_more is not None and gain.points > 0 and gain.p > significant:
        task = replace(task, p=read_more(task))
        gain = Gain.of(task, p[at], odds)
    told = _told(task) | {"unlearnt": tuple(unlearnt), "learnt": learnt, "depth": head.depth, "text": head.text}
    told |= {"reads_labels": head.reads_labels, "reads_words": head.words is not None, "words": of_words}
    if from_labels:
        reason = str(gain)
        if gain.n and (odds != 1).any():
            given = odds * task.target[:n].mean(axis=0)
            told["shares"] = dict(zip(labels, (given / given.sum()).tolist(), strict=True))
        is_kept, (least, _) = gain.p <= significant, (learnt and learnt.accuracy_ci) or (0.0, 0.0)
        is_likely = gain.points > 0 and gain.n >= _LEAST_COMPARED and least > max(counts.values()) / n
        if not is_kept:
            reason += ", no gain" if gain.points <= 0 else f", which is no proof (p = {gain.p:.2g})"
        if is_kept or is_likely:
            if (odds == 1).all() and min(counts.values()) > _EVEN * max(counts.values()):
                reason += "; these have all labels about equally often: if queries do not, check by `eval` on such rows"
        else:
            reason += f": {_rows_of(task.prompt, n)}"
        told |= {"p": gain.p, "reason": reason, "of_half": _of_half(task, candidates[best], head, found.penalty)}
    else:
        same = p.argmax(axis=1) == task.p.argmax(axis=1)
        reason = f"{same.mean():.1%} of {n} held-out answers are the same"
        is_kept, is_likely = bool(same.mean() >= least_agreement), False
        if gain.n >= _LEAST_COMPARED:
            is_kept = sign_test(gain.n_worse, gain.n_better) > SIGNIFICANT
            reason += f", {gain}{'' if is_kept else ', more than chance explains'}"
        elif not is_kept:
            reason += f", {least_agreement:.0%} are wanted"
        told |= {"agreement": float(same.mean()), "agreement_ci": wilson(int(same.sum()), n), "reason": reason}
    return LearntPrompt(**told, kept=is_kept), head if is_kept or is_likely else None


def _told(task: Task) -> dict[str, Any]:
    """What a record says of the prompt as it is."""
    k = len(task.compared.index)
    zero_shot = prompt_statistics(task.compared, task.p)[0] if k else None
    return {"n_rows": task.n_rows, "n_compared": k, "zero_shot": zero_shot}


def _of_half(task: Task, candidate: Candidate, head: Head, penalty: float) -> float | None:
    """Held-out accuracy of heads as the given one, learnt from every other row; None where these are few."""
    n = task.n_rows
    if n // 2 < 2 * len(task.prompt.labels):
        return None
    log_p = candidate.fit(task.target, task.fold, [penalty], every=2)[0].log_p
    if head.words is not None:
        log_p, _ = beside_words(log_p, head, task.cross_fit_words(every=2), task.target[:n], task.fold[:n])
    return float(right_answers(log_p, task.truth.accepted).mean())


def why_not(prompt: PromptConfig, counts: Counter[str], n: int) -> str | None:
    """Why nothing can be learnt for a prompt; None where it can be tried."""
    if n < _LEAST_ROWS:
        return _rows_of(prompt, n)
    if len(counts) == 1:
        return f"all {counted(n, 'row')} have one label, {shown(next(iter(counts)))}"
    return None


def _rows_of(prompt: PromptConfig, n: int) -> str:
    return f"{counted(n, 'labelled row')} for {counted(len(prompt.labels), 'label')}: 100 to 300 are usual"
