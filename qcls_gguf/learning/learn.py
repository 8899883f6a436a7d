"""From labelled queries to a file of heads: one pass, then a head for each prompt, kept if it is better."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..classifier import Classifier
from ..config.fitted import Head, heads_content
from ..config.prompt import CONTENT_FREE_QUERIES, SLOT, Prior, PromptConfig
from ..config.schema import Config, chosen_prompts
from ..config.scoring import TREE, Scoring
from ..config.words import counted, shown
from ..core.handle import PromptHandle
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns, LabelledQuery
from ..engine.capacity import MOST_TOGETHER
from ..errors import CapacityError, ConfigError
from ..evaluation.evaluate import data_record, prompt_statistics
from ..evaluation.passes import Truth, not_applicable, read_rows, truth_of, usable_rows
from ..opening import ClassifierOpener, OnProgress
from ..score.adjustment import log_prior
from ..statistics import BoolArray, FloatArray, IntArray, binomial_cdf, softmax
from .fit import N_FOLDS, SIGNIFICANT, Candidate, choose, held_out
from .passes import HalfArray, Scores, common_text, read_states, tried_depths
from .report import LearnRecord, LearntPrompt

COMMON_TEXT = f"Text: {SLOT}"
_LEAST_ROWS = 4 * N_FOLDS
"""With fewer, a head may pass the test by luck, and is mostly worse (docs/learn.md)."""
_CURVE = (4, 2)
"""The learning curve has heads of every so many-th row."""
_MOST_CELLS = 4_000_000
"""Rows times labels, which are fitted some 200 times at a depth."""
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
    common: str = COMMON_TEXT,
    depths: Sequence[int] = (),
    seed: int = 0,
) -> tuple[LearnRecord, bytes | None]:
    """Learn, and return the record that `qcls-gguf learn` prints as JSON, and the content of the file of heads.

    path: labelled queries; names: prompts, empty: all; common: a text that heads of all prompts may read, beside the
    prompts' own; depths: to try, empty: six between 0.4 and 0.85 of the layers, and all; seed: of the folds.
    The content has the heads that were kept, and is None where there are none. Nothing is written. Raises ConfigError
    for what cannot be used, before anything is computed; and what Classifier raises.
    """
    if common.count(SLOT) != 1:
        raise ConfigError(f"`common_text` {shown(common)}: needs exactly one {SLOT}")
    chosen = [prompt.name for prompt in chosen_prompts(config, names)]
    data = read_rows(config, path, columns, skip_bad=skip_bad)
    config = config.changed(prompts=chosen_prompts(config, names))
    with opener.open(config, audit=True, scoring=TREE, max_batch=MOST_TOGETHER) as classifier:
        rows, bad = usable_rows(data, classifier, skip_bad=skip_bad)
        rows = [row for row in rows if row.labels.keys() & chosen]
        # with whole texts, which a head's hash is of, and scored as configured
        scorings = {prompt.name: prompt.scoring for prompt in config.prompts}
        prompts = [prompt.settings.changed(scoring=scorings[prompt.name]) for prompt in classifier.prompts]
        learnt = learn_heads(
            classifier, prompts, rows, common=common, depths=depths, seed=seed, on_progress=opener.on_progress
        )
        model, n_embd = classifier.model, classifier.engine.model.facts.n_embd
    heads, depths = learnt.heads, learnt.depths
    record = LearnRecord(
        data=data_record(data, len(rows), bad),
        model=model,
        warnings=opener.warnings,
        n_layer=depths[-1],
        depths=depths,
        n_contradictions=_n_contradictions(rows),
        prompts=learnt.prompts,
    )
    return record, heads_content(model.sha256, depths[-1], n_embd, heads) if heads else None


class LearntHeads(NamedTuple):
    """What was learnt for some prompts."""

    prompts: dict[str, LearntPrompt]
    """by name"""
    heads: dict[str, tuple[PromptConfig, Head]]
    """the heads that were kept, by name"""
    depths: tuple[int, ...]
    """that were tried"""


def learn_heads(
    classifier: Classifier,
    prompts: Sequence[PromptConfig],
    rows: Sequence[LabelledQuery],
    *,
    common: str = COMMON_TEXT,
    depths: Sequence[int] = (),
    seed: int = 0,
    on_progress: OnProgress = lambda part, done, total: None,
) -> LearntHeads:
    """Learn heads for prompts from labelled queries.

    classifier: of these prompts with one `scoring`, with exact scores; the rest as in `learn`. Raises as `read_states`
    does.
    """
    tried = tried_depths(classifier, depths)
    queries = [*(row.query for row in rows), *CONTENT_FREE_QUERIES]

    def read(handle: PromptHandle, part: str) -> tuple[list[Scores], HalfArray]:
        return read_states(classifier, handle, queries, tried, lambda n: on_progress(part, n, len(queries)))

    tables, own = read(classifier, "read the prompts")
    of_common = None
    with suppress(CapacityError), classifier.prompt_set(common_text(classifier, common)) as text:
        of_common = read(text, "read the common text")[1][0]  # unless it is longer than the prompts
    learnt: dict[str, LearntPrompt] = {}
    heads: dict[str, tuple[PromptConfig, Head]] = {}
    for index, prompt in enumerate(prompts):
        truth, scores = truth_of(classifier.prompts[index], rows), tables[index]
        candidates = candidates_of(tried, own[index], of_common, common, scores[prompt.scoring], truth.index)
        learnt[prompt.name], head = learn_prompt(prompt, truth, scores, candidates, seed)
        if head is not None:
            heads[prompt.name] = prompt, head
        on_progress("fit", len(learnt), len(prompts))
    return LearntHeads(learnt, heads, tried)


def candidates_of(
    depths: Sequence[int], own: HalfArray, common: HalfArray | None, text: str, scores: FloatArray, index: IntArray
) -> list[Candidate]:
    """What a prompt's head may read, cheapest first: fewer layers, then the text that other prompts read as well.

    own, common: (n_depths, n_all, n_embd) the states at the ends of the prompt and of the common text; text: the common
    one; scores: (n_all, n_labels) of the labels' texts; index: the prompt's rows.
    """
    candidates = []
    for at, depth in enumerate(depths):
        if common is not None:
            candidates.append(Candidate(depth=depth, states=common[at], text=text, index=index))
        candidates.append(Candidate(depth=depth, states=own[at], index=index))
    return [*candidates, replace(candidates[-1], scores=scores)]


def learn_prompt(
    prompt: PromptConfig, truth: Truth, scores: Scores, candidates: Sequence[Candidate], seed: int
) -> tuple[LearntPrompt, Head | None]:
    """What was learnt for a prompt, and its head if that is better than its labels' texts.

    scores: of the rows, and behind them of CONTENT_FREE_QUERIES.
    """
    n, labels, first, accepted = len(truth.first), prompt.labels, truth.first, truth.accepted
    counts = Counter(labels[label] for label in first)
    (scoring, prior), zero_shot = _best_zero_shot(truth, scores)
    own_rows = replace(truth, index=np.arange(n))
    unlearnt = [label for label in labels if label not in counts]
    if unlearnt:  # their texts answer for them, which only a head beside these leaves to them
        candidates = [candidate for candidate in candidates if candidate.scores is not None]
    reason = why_not(prompt, counts, n)
    learnt = p_value = head = None
    curve: dict[int, float] = {}
    if reason is None:
        for every in (*_CURVE, 1):
            n_learnt = len(range(0, n - n // N_FOLDS, every))
            if every == 1 or n_learnt >= 2 * len(labels):
                p = np.exp(held_out(candidates, first, len(labels), seed, every))
                learnt = prompt_statistics(own_rows, p)[0]
                curve[n_learnt] = learnt.accuracy or 0.0
        before, after = _right(zero_shot, accepted), _right(p, accepted)
        n_better, n_worse = int((after & ~before).sum()), int((before & ~after).sum())
        p_value = binomial_cdf(n_worse, n_better + n_worse, 0.5)  # so few, if each of these rows were a coin's toss
        absent = np.array([labels.index(label) for label in unlearnt], np.intp)
        head = choose(candidates, first, len(labels), absent).head
        head = replace(head, n_rows=n, accuracy=float(after.mean()))
        reason = f"{100 * (after.mean() - before.mean()):+.1f} points on held-out rows"
        if p_value > SIGNIFICANT:
            no_gain = ", no gain" if after.sum() <= before.sum() else f", which is no proof (p = {p_value:.2g})"
            reason += f"{no_gain}: {_rows_of(prompt, n)}"
        elif min(counts.values()) > _EVEN * max(counts.values()):
            reason += "; these have all labels about equally often: if queries do not, check it by `eval` on such rows"
    is_kept = p_value is not None and p_value <= SIGNIFICANT
    found = LearntPrompt(
        n_rows=n,
        scoring=scoring,
        prior=prior,
        zero_shot=prompt_statistics(own_rows, zero_shot)[0] if n else None,
        learnt=learnt,
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


def _best_zero_shot(truth: Truth, by_scoring: Scores) -> tuple[tuple[Scoring, Prior], FloatArray]:
    """How the labels' texts answer most rows rightly, and the (n, n_labels) probabilities."""
    ways: dict[tuple[Scoring, Prior], FloatArray] = {}
    for scoring, scores in by_scoring.items():
        if not not_applicable(truth.prompt, scoring):
            own = scores[truth.index]
            prior = log_prior(scores[-len(CONTENT_FREE_QUERIES) :])
            ways[scoring, "none"] = np.asarray(softmax(own), np.float64)
            ways[scoring, "content_free"] = np.asarray(softmax(own - prior), np.float64)
    best = max(ways, key=lambda way: int(_right(ways[way], truth.accepted).sum()))
    return best, ways[best]


def why_not(prompt: PromptConfig, counts: Counter[str], n: int) -> str | None:
    """Why nothing can be learnt for a prompt; None where it can be tried."""
    if n < _LEAST_ROWS:
        return _rows_of(prompt, n)
    if n * len(prompt.labels) > _MOST_CELLS:
        most = _MOST_CELLS // len(prompt.labels)
        return f"{n} rows for {len(prompt.labels)} labels: at most {most} can be learnt from"
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
