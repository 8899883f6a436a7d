"""From labelled queries to a file of heads: one pass, then a head for each prompt, kept if it is better."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import numpy as np

from ..classifier import Classifier
from ..config.heads_file import Head, heads_content
from ..config.prompt import CONTENT_FREE_QUERIES, Prior, PromptConfig
from ..config.schema import chosen_prompts, raw_config
from ..config.scoring import TREE, Scoring
from ..config.template import SLOT
from ..config.words import counted, digest_of, listed, shown
from ..core.handle import LoadedPrompts
from ..data.labelled import LabelledQuery, read_labelled
from ..errors import CapacityError, ConfigError
from ..evaluation.metrics import confusions
from ..evaluation.passes import ScoreTable, Truth, not_applicable, truth_of, usable_rows
from ..evaluation.records import data_record
from ..labelling.batches import MOST, with_room
from ..native import build_info
from ..opening import ClassifierOpener, OnProgress
from ..report.files import locked
from ..score.adjustment import log_prior
from ..statistics import (
    BoolArray,
    FloatArray,
    IntArray,
    accepted_probability,
    binomial_cdf,
    calibration_error,
    confusion_matrix,
    log_losses,
    softmax,
    wilson,
)
from ..system.stops import undone_by_a_stop
from .calibrate import FitSettings
from .fit import N_FOLDS, SIGNIFICANT, Candidate, choose, held_out
from .passes import HalfArray, common_text, read_states, tried_depths
from .report import AnswerQuality, LearnRecord, LearntPrompt

Texts = Literal["own", "common", "both"]
COMMON_TEXT = f"Text: {SLOT}"
_LEAST_ROWS = 4 * N_FOLDS
"""With fewer, a head may pass the test by luck, and is mostly worse (docs/learn.md)."""
_CURVE = (4, 2)
"""The learning curve has heads of every so many-th row."""
_MOST_CELLS = 4_000_000
"""Rows times labels, which are fitted some 200 times at each depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadChoices:
    """Which heads are tried."""

    texts: Texts = "both"
    """which texts heads may read"""
    common: str = COMMON_TEXT
    """the text for all prompts"""
    depths: tuple[int, ...] = ()
    """to try; empty: six between 0.4 and 0.85 of the layers, and all"""
    seed: int = 0
    """of the folds"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnSettings(FitSettings):
    """The data, the choices and the output of learning."""

    choices: HeadChoices = HeadChoices()
    resume: bool = False
    """keep what was read of the rows beside `out` until the end, and go on from there"""


def learn(settings: LearnSettings, opener: ClassifierOpener) -> tuple[LearnRecord, bytes | None]:
    """Learn, and return the record that `qcls-gguf learn` prints as JSON, and the content of the file of heads.

    The content has the heads that were kept, and is None where there are none. Nothing is written. Raises ConfigError
    for what cannot be used, before anything is computed; and what Classifier raises.
    """
    settings.check()
    if (text := settings.choices.common).count(SLOT) != 1:
        raise ConfigError(f"`common_text` {shown(text)}: needs exactly one {SLOT}")
    config = opener.rendered(settings.config)
    data = read_labelled(settings.data, {prompt.name: prompt.labels for prompt in config.prompts}, settings.columns)
    usable_rows(data, skip_bad=settings.skip_bad)
    config = config.changed(prompts=chosen_prompts(config, settings.names))
    roomy = with_room(raw_config(config, TREE), MOST)
    with opener.open(roomy, audit=True) as classifier, _folder(settings) as folder:
        rows, bad = usable_rows(data, classifier, skip_bad=settings.skip_bad)
        names = {prompt.name for prompt in config.prompts}
        rows = [row for row in rows if names & row.labels.keys()]
        learnt = learn_heads(classifier, config.prompts, rows, settings.choices, folder, opener.on_progress)
        model, n_embd = classifier.model, classifier.engine.model.facts.n_embd
    heads, depths = learnt.heads, learnt.depths
    record = LearnRecord(
        data=data_record(data, len(rows), bad),
        model=model,
        warnings=opener.warnings,
        written=str(settings.out) if heads else None,
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
    choices: HeadChoices,
    folder: Path,
    on_progress: OnProgress = lambda part, done, total: None,
) -> LearntHeads:
    """Learn a head for each prompt from labelled queries.

    classifier: of these prompts by `raw_config`, with exact scores; folder: for the rows' states, some of which may be
    there. Raises as `read_states` does.
    """
    loaded, texts = classifier.configured, choices.texts
    tried = tried_depths(classifier, choices.depths)
    asked = [*rows, *(LabelledQuery(line=0, query=query, labels={}) for query in CONTENT_FREE_QUERIES)]
    queries = [row.query for row in asked]

    def read(what: LoadedPrompts, part: str) -> tuple[dict[str, ScoreTable], HalfArray]:
        build = build_info().source_digest
        name = digest_of([classifier.model.sha256, build, what.compiled.digest, tried, queries])[:16]
        done = count(1)
        return read_states(
            classifier, what, queries, tried, folder / name, lambda: on_progress(part, next(done), len(queries))
        )

    tables, own = read(loaded, "read the prompts")
    of_common = None
    if texts != "own":
        try:
            text = classifier.prompt_set(common_text(classifier, choices.common))
        except CapacityError:  # a longer text than the prompts'
            if texts == "common":
                raise
        else:
            with text:
                of_common = read(text, "read the common text")[1]
    found: dict[str, LearntPrompt] = {}
    heads: dict[str, tuple[PromptConfig, Head]] = {}
    for index, prompt in enumerate(prompts):
        truth, table = truth_of(loaded.prompts[index], rows), tables[prompt.name]
        candidates = candidates_of(
            tried,
            None if texts == "common" else own[index],
            None if of_common is None else of_common[0],
            choices.common,
            table.by_scoring[prompt.scoring],
            truth.index,
        )
        found[prompt.name], head = learn_prompt(prompt, truth, table, candidates, choices.seed)
        if head is not None:
            heads[prompt.name] = prompt, head
        on_progress("fit", len(found), len(prompts))
    return LearntHeads(found, heads, tried)


@contextmanager
def _folder(settings: LearnSettings) -> Iterator[Path]:
    """The folder for states: a temporary one, or with `resume` one that stays if the run is stopped."""
    if not settings.resume:
        with TemporaryDirectory(prefix="qcls-learn-") as name, undone_by_a_stop(partial(shutil.rmtree, name)):
            yield Path(name)
        return
    folder = settings.out.with_name(f"{settings.out.name}.states")
    with locked(folder, "remove it, or name another output"):
        yield folder
        shutil.rmtree(folder)


def candidates_of(
    depths: Sequence[int],
    own: HalfArray | None,
    common: HalfArray | None,
    text: str,
    scores: FloatArray,
    index: IntArray,
) -> list[Candidate]:
    """What a prompt's head may read, cheapest first: fewer layers, then the text that other prompts read as well.

    own, common: (n_depths, n_all, n_embd) the states at the ends of the prompt and of the common text; text: the common
    one; scores: (n_all, n_labels) of the labels' texts; index: the prompt's rows.
    """
    found = []
    for at, depth in enumerate(depths):
        if common is not None:
            found.append(Candidate(depth=depth, states=common[at], text=text, index=index))
        if own is not None:
            found.append(Candidate(depth=depth, states=own[at], index=index))
    return found if own is None else [*found, replace(found[-1], scores=scores)]


def learn_prompt(
    prompt: PromptConfig, truth: Truth, table: ScoreTable, candidates: Sequence[Candidate], seed: int
) -> tuple[LearntPrompt, Head | None]:
    """What was learnt for a prompt, and its head if that is better than its labels' texts."""
    n = len(truth.first)
    counts = Counter(prompt.labels[label] for label in truth.first)
    (scoring, prior), zero_shot = _best_zero_shot(truth, table)
    unlearnt = [label for label in prompt.labels if label not in counts]
    if unlearnt:  # their texts answer for them, which only a head beside these leaves to them
        candidates = [each for each in candidates if each.scores is not None]
    reason = why_not(prompt, counts, n)
    if reason is None and not candidates:
        labels = listed(list(map(shown, unlearnt)), "label")
        reason = f"no row has the label {labels}, which only its text can answer: add rows"
    learnt = p_value = head = None
    curve: dict[int, float] = {}
    if reason is None:
        for every in (*_CURVE, 1):
            n_learnt = len(range(0, n - n // N_FOLDS, every))
            if every == 1 or n_learnt >= 2 * len(prompt.labels):
                p = np.exp(held_out(candidates, truth.first, len(prompt.labels), seed, every))
                learnt = _measured(p, truth.accepted)
                curve[n_learnt] = learnt.accuracy
        before, after = _right(zero_shot, truth.accepted), _right(p, truth.accepted)
        wrong = confusion_matrix(truth.first[~after], p[~after].argmax(axis=1), len(prompt.labels))
        n_better, n_worse = int((after & ~before).sum()), int((before & ~after).sum())
        p_value = binomial_cdf(n_worse, n_better + n_worse, 0.5)  # so few, if each of these rows were a coin's toss
        absent = np.array([prompt.labels.index(label) for label in unlearnt], np.intp)
        assert learnt is not None
        head = choose(candidates, truth.first, len(prompt.labels), absent).head
        head = replace(head, n_rows=n, accuracy=learnt.accuracy)
        reason = f"{100 * (after.mean() - before.mean()):+.1f} points on held-out rows"
        if p_value > SIGNIFICANT:
            no_gain = ", no gain" if after.sum() <= before.sum() else f", which is no proof (p = {p_value:.2g})"
            reason += f"{no_gain}: {_rows_of(prompt, n)}"
    kept = head is not None and p_value is not None and p_value <= SIGNIFICANT
    found = LearntPrompt(
        n_rows=n,
        rows=dict(counts),
        scoring=scoring,
        prior=prior,
        zero_shot=_measured(zero_shot, truth.accepted) if n else None,
        learnt=learnt,
        curve=curve,
        confusions=() if learnt is None else confusions(prompt.labels, wrong),
        p=p_value,
        kept=kept,
        depth=head.depth if head else None,
        text=head.text if head else None,
        reads_labels=head is not None and head.reads_labels,
        unlearnt=tuple(unlearnt),
        reason=reason,
    )
    return found, head if kept else None


def _best_zero_shot(truth: Truth, table: ScoreTable) -> tuple[tuple[Scoring, Prior], FloatArray]:
    """How the labels' texts answer most rows rightly, and the (n, n_labels) probabilities."""
    ways: dict[tuple[Scoring, Prior], FloatArray] = {}
    for scoring, scores in table.by_scoring.items():
        if not not_applicable(truth.prompt, scoring):
            ways[scoring, "none"] = table.probability(scoring)[truth.index]
            prior = log_prior(scores[-len(CONTENT_FREE_QUERIES) :])
            ways[scoring, "content_free"] = np.asarray(softmax(scores[truth.index] - prior), np.float64)
    best = max(ways, key=lambda way: int(_right(ways[way], truth.accepted).sum()))
    return best, ways[best]


def why_not(prompt: PromptConfig, counts: Counter[str], n: int) -> str | None:
    """Why nothing can be learnt for a prompt; None where it can be tried."""
    if n < _LEAST_ROWS:
        return _rows_of(prompt, n)
    if n * len(prompt.labels) > _MOST_CELLS:
        return (
            f"{n} rows for {len(prompt.labels)} labels: at most {_MOST_CELLS // len(prompt.labels)} can be learnt from"
        )
    if len(counts) == 1:
        return f"all {counted(n, 'labelled row')} have one label, {shown(next(iter(counts)))}"
    return None


def _rows_of(prompt: PromptConfig, n: int) -> str:
    return f"{counted(n, 'labelled row')} for {counted(len(prompt.labels), 'label')}: 100 to 300 are usual"


def _right(p: FloatArray, accepted: BoolArray) -> BoolArray:
    return np.asarray(accepted[np.arange(len(p)), p.argmax(axis=1)])


def _measured(p: FloatArray, accepted: BoolArray) -> AnswerQuality:
    right = _right(p, accepted)
    return AnswerQuality(
        accuracy=float(right.mean()),
        interval=wilson(int(right.sum()), len(right)) or (0.0, 1.0),
        log_loss=float(log_losses(accepted_probability(p, accepted)).mean()),
        ece=calibration_error(p.max(axis=1), right) or 0.0,
    )


def _n_contradictions(rows: Sequence[LabelledQuery]) -> int:
    """Queries with different labels of one prompt in several rows."""
    labels: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        for name, accepted in row.labels.items():
            labels[row.query, name].add(accepted)
    return len({query for (query, _), found in labels.items() if len(found) > 1})
