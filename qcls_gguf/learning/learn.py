"""From labelled queries to a file of heads, which read one common text for all prompts; kept where they are better."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..classifier import Classifier
from ..config.fitted import Head, heads_content
from ..config.prompt import SLOT, PromptConfig
from ..config.schema import Config, chosen_prompts
from ..config.words import counted, listed, shown
from ..core.handle import PromptHandle
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns, LabelledQuery
from ..errors import CapacityError, ConfigError, PlanError
from ..evaluation.evaluate import data_record, prompt_statistics
from ..evaluation.passes import Truth, probabilities_of, raw_scores, read_rows, truth_of, usable_rows
from ..opening import ClassifierOpener, OnProgress
from ..prompts.compiled import Prompt
from ..score.result import PromptResult
from ..statistics import BoolArray, FloatArray, IntArray, binomial_cdf
from ..statistics.logistic import N_FOLDS, PENALTIES, CrossFit, cross_fit, word_statistics
from .fit import SIGNIFICANT, Candidate, cheapest, folds, held_out
from .passes import HalfArray, common_text, common_texts, read_states, states_file, tried_depths, with_heads
from .report import LearnRecord, LearntPrompt, RequestCost

_TOO_LONG = (CapacityError, PlanError)
_LEAST_ROWS = 4 * N_FOLDS
"""With fewer, a head may pass the test by luck, and is mostly worse (docs/learn.md)."""
_MOST_ROWS, _MOST_NUMBERS, _MOST_CELLS = 20_000, 1 << 25, 4_000_000
"""of which heads are learnt, of their states at a depth, and of their labels; of more rows a random choice is taken"""
_N_SCOUTS = 160
"""rows by which the common text is chosen"""
_LEAST_A_LABEL = 5
"""such rows for a label, for texts to be tried"""
_LEAST_COMPARED = 60
"""rows on which heads are compared with the labels' texts"""
_OWN_TOKENS = 12_000
"""which the prompts' own texts feed for such rows; where all rows take no more, heads may read these texts, too"""
_CURVE = (4, 2)
"""The learning curve has heads of every so many-th row."""
_WORD_PENALTY, _MOST_WORD_ROWS = 0.1, 2000
_EVEN = 0.8
"""The rarest label has this share of the rows of the most frequent one, as a rule only in rows that were chosen so."""


def learn(
    config: Config,
    path: Path,
    opener: ClassifierOpener,
    *,
    names: Sequence[str] = (),
    columns: LabelledColumns = PLAIN_COLUMNS,
    skip_bad: bool = False,
    common: str | None = None,
    depths: Sequence[int] = (),
    seed: int = 0,
) -> tuple[LearnRecord, bytes | None]:
    """Learn, and return the record that `qcls-gguf learn` prints as JSON, and the content of the file of heads.

    path: labelled queries; names: prompts, empty: all; common: the text that heads read, None: see `common_texts`;
    depths: to try, empty: four between 0.5 and 0.9 of the layers, and all; seed: of the folds.
    The content has the heads that were kept, and is None where there are none. Nothing is written. Raises ConfigError
    for what cannot be used, before anything is computed; and what Classifier raises.
    """
    if common is not None and common.count(SLOT) != 1:
        raise ConfigError(f"`common_text` {shown(common)}: needs exactly one {SLOT}")
    data = read_rows(config, path, columns, skip_bad=skip_bad)
    config = config.changed(prompts=chosen_prompts(config, names), heads=None)
    with opener.open(config, calibrated=False) as classifier:
        rows, bad = usable_rows(data, classifier, skip_bad=skip_bad)
        chosen = {prompt.name for prompt in classifier.prompts}
        rows = [row for row in rows if row.labels.keys() & chosen]
        learnt = learn_heads(classifier, rows, common=common, depths=depths, seed=seed, on_progress=opener.on_progress)
        model, n_embd = classifier.model, classifier.engine.model.facts.n_embd
    record = LearnRecord(
        data=data_record(data, len(rows), bad),
        model=model,
        warnings=opener.warnings,
        n_layer=learnt.depths[-1],
        depths=learnt.depths,
        text=learnt.text,
        before=learnt.before,
        after=learnt.after,
        n_contradictions=_n_contradictions(rows),
        prompts=learnt.prompts,
    )
    return record, heads_content(model.sha256, learnt.depths[-1], n_embd, learnt.heads) if learnt.heads else None


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
    before: RequestCost
    after: RequestCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be learnt for a prompt."""

    prompt: PromptConfig
    truth: Truth
    target: FloatArray
    """(n, n_labels) the labels' shares of the rows `truth.index`"""
    fold: IntArray
    """(n,) of these rows"""
    p: FloatArray
    """(n_own, n_labels) the prompt's answers to the first of all rows"""
    scores: FloatArray
    """(n_own, n_labels) by its labels' texts"""

    def fits(self, candidates: Sequence[Candidate]) -> list[tuple[CrossFit, Head]]:
        """The candidates' fits; what reads one text has the penalty of its deepest state."""
        penalties: dict[tuple[str | None, bool], tuple[float, ...]] = {}
        fits = []
        for candidate in reversed(candidates):
            key = candidate.text, candidate.scores is not None
            fits.append(candidate.fit(self.target, self.fold, penalties.get(key, PENALTIES)))
            penalties[key] = (fits[-1][0].penalty,)
        return fits[::-1]

    def first(self, n: int) -> Task:
        """The same for the first n of all rows."""
        of, truth = self.truth.index < n, self.truth
        few = replace(truth, index=truth.index[of], accepted=truth.accepted[of], first=truth.first[of])
        return replace(self, truth=few, target=self.target[of], fold=self.fold[of])


def learn_heads(
    classifier: Classifier,
    rows: Sequence[LabelledQuery],
    *,
    common: str | None = None,
    depths: Sequence[int] = (),
    seed: int = 0,
    on_progress: OnProgress = lambda part, done, total: None,
) -> LearntHeads:
    """Learn heads for a classifier's prompts, which have none, from labelled queries; the rest as in `learn`.

    Raises ConfigError where the disk cannot hold the states, and what `classify_batch` raises.
    """
    n_embd, prompts = classifier.engine.model.facts.n_embd, classifier.prompts
    n_labels = max(len(prompt.labels) for prompt in prompts)
    n = min(len(rows), _MOST_ROWS, _MOST_NUMBERS // n_embd, _MOST_CELLS // n_labels)
    rows = [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))[:n]]
    queries, tried = [row.query for row in rows], tried_depths(classifier, depths)
    n_own = min(n, max(_LEAST_COMPARED, int(_OWN_TOKENS / _fed(classifier, queries))))

    def read(
        handle: PromptHandle, part: str, states: HalfArray, first: int, last: int
    ) -> list[tuple[PromptResult, ...]]:
        def tell(done: int) -> None:
            on_progress(part, done, last - first)

        return read_states(handle, queries[first:last], tried, states[:, :, first:last], tell)

    own = states_file((len(prompts), len(tried), n_own, n_embd))
    answers = read(classifier, "read the prompts", own, 0, n_own)
    tasks = [_task(prompt, rows, [of_row[place] for of_row in answers], seed) for place, prompt in enumerate(prompts)]
    texts = [common] if common else common_texts([task.prompt for task in tasks], queries)
    n_scouts = min(n, _N_SCOUTS)
    if n < 4 * n_scouts or n_scouts < _LEAST_A_LABEL * min(len(task.prompt.labels) for task in tasks):
        texts = texts[:1]
    states: dict[str, HalfArray] = {}
    for number, text in enumerate(texts, 1):
        with suppress(*_TOO_LONG), classifier.prompt_set(common_text(classifier, text)) as handle:
            states[text] = states_file((1, len(tried), n, n_embd))
            read(handle, f"common text {number} of {len(texts)}", states[text], 0, n_scouts)
    text = _best_text(tasks, states, tried, n_scouts) if len(states) > 1 else next(iter(states), texts[0])
    with classifier.prompt_set(common_text(classifier, text)) as handle:
        read(handle, "read the common text", states[text], n_scouts, n)
    learnt: dict[str, LearntPrompt] = {}
    heads: dict[str, tuple[PromptConfig, Head]] = {}
    for place, task in enumerate(tasks):
        candidates = []
        for at, depth in enumerate(tried):
            candidates.append(Candidate(depth=depth, states=states[text][0, at], text=text, index=task.truth.index))
            if n_own == n:
                candidates.append(Candidate(depth=depth, states=own[place, at], index=task.truth.index))
        if n_own == n:
            candidates.append(replace(candidates[-1], scores=task.scores))
        learnt[task.prompt.name], head = learn_prompt(task, candidates, queries)
        if head is not None:
            heads[task.prompt.name] = task.prompt, head
        on_progress("fit", len(learnt), len(tasks))
    before = RequestCost(tokens=_fed(classifier, queries), layers=tried[-1])
    return LearntHeads(learnt, heads, tried, text, before, _cost(classifier, queries, heads) if heads else before)


def _cost(
    classifier: Classifier, queries: Sequence[str], heads: Mapping[str, tuple[PromptConfig, Head]]
) -> RequestCost:
    """Of a request with heads, to prompts that have none yet."""
    learnt = {name: head for name, (_, head) in heads.items()}
    with classifier.prompt_set(
        with_heads(classifier, [prompt.settings for prompt in classifier.prompts], learnt)
    ) as handle:
        tokens = _fed(handle, queries)
    reads_all = len(learnt) < len(classifier.prompts) or any(head.reads_labels for head in learnt.values())
    n_layer = classifier.engine.model.facts.n_layer
    return RequestCost(tokens=tokens, layers=n_layer if reads_all else max(head.depth for head in learnt.values()))


def _fed(handle: PromptHandle, queries: Sequence[str]) -> float:
    """Tokens that a query feeds, on the mean of the first queries."""
    return float(np.mean([handle.estimated_fed(query) for query in queries[:_N_SCOUTS]]))


def _task(prompt: Prompt, rows: Sequence[LabelledQuery], answers: Sequence[PromptResult], seed: int) -> Task:
    truth = truth_of(prompt, rows)
    return Task(
        prompt=prompt.settings,
        truth=truth,
        target=np.eye(len(prompt.labels))[truth.first],
        fold=folds(truth.first, [rows[row].query for row in truth.index], seed),
        p=probabilities_of(answers),
        scores=raw_scores(answers),
    )


def _best_text(tasks: Sequence[Task], states: Mapping[str, HalfArray], depths: Sequence[int], n_scouts: int) -> str:
    """The text whose heads have the least loss of the first rows, over all prompts; the first if others are no better
    than chance explains.
    """
    losses = []
    few = [task.first(n_scouts) for task in tasks]
    for text, of_text in states.items():
        by_task = [
            task.fits([
                Candidate(depth=depth, states=of_text[0, at], text=text, index=task.truth.index)
                for at, depth in enumerate(depths)
            ])
            for task in few
            if len(task.truth.index)
        ]  # fmt: skip
        best = [min((fit.losses for fit, _ in fits), key=lambda loss: float(loss.mean())) for fits in by_task]
        losses.append(np.concatenate(best))
    return list(states)[cheapest(losses)]


def learn_prompt(
    task: Task, candidates: Sequence[Candidate], queries: Sequence[str]
) -> tuple[LearntPrompt, Head | None]:
    """What was learnt for a prompt, and its head if that is better than its labels' texts.

    candidates: cheapest first.
    """
    truth, labels, n = task.truth, task.prompt.labels, len(task.truth.index)
    counts = Counter(labels[label] for label in truth.first)
    unlearnt = [label for label in labels if label not in counts]
    if unlearnt:  # their texts answer for them, which only a head beside these leaves to them
        candidates = [candidate for candidate in candidates if candidate.scores is not None]
    compared = truth.index[truth.index < len(task.p)]
    of_compared = replace(
        truth,
        index=np.arange(len(compared)),
        accepted=truth.accepted[: len(compared)],
        first=truth.first[: len(compared)],
    )
    p_before = task.p[compared]
    reason = why_not(task.prompt, counts, n)
    if reason is None and not candidates:
        reason = f"no rows for {listed(list(map(shown, unlearnt)), 'label')}, and too many others to read the texts of"
    learnt = p_value = head = words = None
    curve: dict[int, float] = {}
    if reason is None:
        fits = task.fits(candidates)
        best = cheapest([fit.losses for fit, _ in fits])
        p = np.exp(held_out([fit for fit, _ in fits], task.fold))
        learnt = prompt_statistics(replace(truth, index=np.arange(n)), p)[0]
        for every in _CURVE:
            n_learnt = len(range(0, n - n // N_FOLDS, every))
            if n_learnt >= 2 * len(labels):
                part, _ = candidates[best].fit(task.target, task.fold, [fits[best][0].penalty], every)
                curve[n_learnt] = float(_right(part.log_p, truth.accepted).mean())
        curve[n - n // N_FOLDS] = learnt.accuracy or 0.0
        of = slice(_MOST_WORD_ROWS)
        texts = [queries[row] for row in truth.index[of]]
        by_words = cross_fit(word_statistics(texts), task.target[of], task.fold[of], [_WORD_PENALTY])
        words = float(_right(by_words.log_p, truth.accepted[of]).mean())
        before, after = _right(p_before, of_compared.accepted), _right(p[: len(compared)], of_compared.accepted)
        n_better, n_worse = int((after & ~before).sum()), int((before & ~after).sum())
        p_value = binomial_cdf(n_worse, n_better + n_worse, 0.5)  # so few, if each of these rows were a coin's toss
        head = replace(fits[best][1], n_rows=n, accuracy=learnt.accuracy)
        reason = f"{100 * (after.mean() - before.mean()):+.1f} points on {len(compared)} held-out rows"
        if p_value > SIGNIFICANT:
            no_gain = ", no gain" if after.sum() <= before.sum() else f", which is no proof (p = {p_value:.2g})"
            reason += f"{no_gain}: {_rows_of(task.prompt, n)}"
        elif min(counts.values()) > _EVEN * max(counts.values()):
            reason += "; these have all labels about equally often: if queries do not, check it by `eval` on such rows"
    is_kept = p_value is not None and p_value <= SIGNIFICANT
    found = LearntPrompt(
        n_rows=n,
        n_compared=len(compared),
        zero_shot=prompt_statistics(of_compared, p_before)[0] if n else None,
        learnt=learnt,
        words=words,
        curve=curve,
        p=p_value,
        kept=is_kept,
        depth=head.depth if head else None,
        text=head.text if head else None,
        reads_labels=head is not None and head.reads_labels,
        unlearnt=tuple(unlearnt),
        reason=reason,
    )
    return found, head if is_kept else None


def why_not(prompt: PromptConfig, counts: Counter[str], n: int) -> str | None:
    """Why nothing can be learnt for a prompt; None where it can be tried."""
    if n < _LEAST_ROWS:
        return _rows_of(prompt, n)
    if len(counts) == 1:
        return f"all {counted(n, 'labelled row')} have one label, {shown(next(iter(counts)))}"
    return None


def _rows_of(prompt: PromptConfig, n: int) -> str:
    return f"{counted(n, 'labelled row')} for {counted(len(prompt.labels), 'label')}: 100 to 300 are usual"


def _right(p: FloatArray, accepted: BoolArray) -> BoolArray:
    return np.asarray(accepted[np.arange(len(p)), p.argmax(axis=1)])


def _n_contradictions(rows: Sequence[LabelledQuery]) -> int:
    """Queries with different labels of one prompt in several rows."""
    labels: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        for name, accepted in row.labels.items():
            labels[row.query, name].add(accepted)
    return len({query for (query, _), several in labels.items() if len(several) > 1})
