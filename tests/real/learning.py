"""What `learn` gains on real texts, over draws of the labelled rows: the tables of docs/learn.md.

Draws stay in the cache folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union

from qcls_gguf import PromptConfig
from qcls_gguf.config.prompt import CONTENT_FREE_QUERIES
from qcls_gguf.config.scoring import JOINT, MEAN, TREE
from qcls_gguf.data.labelled import LabelledQuery
from qcls_gguf.evaluation.passes import truth_of
from qcls_gguf.learning.fit import Candidate, HeadFit, cheapest
from qcls_gguf.learning.learn import COMMON_TEXT, candidates_of, learn_prompt
from qcls_gguf.learning.passes import HalfArray, Scores, common_text, read_states, tried_depths
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.prompts.compiled import Prompt
from qcls_gguf.score.adjustment import log_prior
from qcls_gguf.statistics import AnyFloats, FloatArray, IntArray
from qcls_gguf.statistics.fitting import cross_validate

from .sweep import prompts
from .texts import CACHE, Task, config_of

ROWS = {4: 100, 16: 5, 64: 5, 256: 5}
"""The draws, by the number of rows of each label."""
_LOW = 0.7
"""The share of the layers that a head on lower layers reads at most."""


class Read(NamedTuple):
    """The texts of a task, read."""

    prompt: PromptConfig
    compiled: Prompt
    rows: list[LabelledQuery]
    label: IntArray
    """(n,) of the rows"""
    table: Scores
    depths: tuple[int, ...]
    own: HalfArray
    common: HalfArray
    place: Path
    """what the names of its files begin with"""


class Draw(NamedTuple):
    """The share of right answers to the texts that were not drawn, in %; of the labels' texts the best way, chosen on
    these texts."""

    n: int
    n_tested: int
    texts: float
    own: float
    common: float
    both: float
    low: float
    """a head that reads at most _LOW of the layers"""
    kept: bool
    """whether `learn` keeps `both`"""
    depth: int
    is_common: bool
    tf_idf: float


def read(task: Task) -> Read:
    """All of the task's texts by the prompt that `init` writes, and by the common text."""
    own = prompts(task, "list")[0].changed(name=task.ask)
    config = config_of([own], max_query_tokens=400)
    pairs = (*task.rows, *task.others)
    rows = [LabelledQuery(line=0, query=text, labels={task.ask: (label,)}) for text, label in pairs]
    queries = [*(text for text, _ in pairs), *CONTENT_FREE_QUERIES]
    with ClassifierOpener() as opener, opener.open(config, audit=True, scoring=TREE) as classifier:
        depths, place = tried_depths(classifier), CACHE / f"learning-{task.name.replace(' ', '-')}"
        loaded = classifier
        tables, states = read_states(classifier, loaded, queries, depths, lambda n: None)
        with classifier.prompt_set(common_text(classifier, COMMON_TEXT)) as text:
            common = read_states(classifier, text, queries, depths, lambda n: None)[1]
        label = np.array([task.labels.index(label) for _, label in pairs])
        table, compiled = tables[0], loaded.prompts[0]
        return Read(compiled.settings, compiled, rows, label, table, depths, states[0], common[0], place)


def draw(found: Read, n: int, seed: int, *, whole: bool) -> Draw:
    """Learn from n rows of each label, at most 60 % of those that there are; whole: with all that is compared."""
    random = np.random.default_rng(seed)
    by_label = [random.permutation(np.flatnonzero(found.label == label)) for label in range(len(found.prompt.labels))]
    drawn = np.sort(np.concatenate([each[: min(n, len(each) * 3 // 5)] for each in by_label]))
    rest = np.setdiff1d(np.arange(len(found.label)), drawn)
    label, n_labels = found.label[drawn], len(found.prompt.labels)

    def candidates(index: IntArray) -> list[Candidate]:
        scores = found.table[found.prompt.scoring]
        return candidates_of(found.depths, found.own, found.common, COMMON_TEXT, scores, index)

    def accuracy(log_p: AnyFloats) -> float:
        return float(100 * (log_p.argmax(axis=1) == found.label[rest]).mean())

    some = candidates(drawn)
    fitted = [each.fit(label, n_labels) for each in some]

    def chosen(wanted: Callable[[Candidate], bool]) -> tuple[float, HeadFit]:
        fit = cheapest([fit for each, fit in zip(some, fitted, strict=True) if wanted(each)])
        (tested,) = [each for each in candidates(rest) if each.is_read_by(fit.head)]
        return accuracy(tested.log_p(fit.head)), fit

    ways = [each[rest] - prior for scores in found.table.values()
            for each in [scores] for prior in (0, log_prior(scores[-len(CONTENT_FREE_QUERIES):]))]  # fmt: skip
    truth = truth_of(found.compiled, [found.rows[i] for i in drawn])
    learnt, _ = learn_prompt(found.prompt, replace(truth, index=drawn), found.table, some, seed)
    both, fit = chosen(lambda each: True)
    most = _LOW * found.depths[-1]
    return Draw(
        n=len(drawn),
        n_tested=len(rest),
        texts=max(map(accuracy, ways)),
        own=chosen(lambda each: each.text is None)[0],
        common=chosen(lambda each: each.text is not None)[0],
        both=both,
        low=chosen(lambda each: each.depth <= most)[0],
        kept=learnt.kept,
        depth=fit.head.depth,
        is_common=fit.head.text is not None,
        tf_idf=accuracy(_tf_idf(found, drawn, rest)) if whole else np.nan,
    )


def _tf_idf(found: Read, drawn: IntArray, rest: IntArray) -> FloatArray:
    """(n, n_labels) probabilities by words, pairs of words and pieces of 2 to 5 characters."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    model = make_pipeline(make_union(words, pieces), LogisticRegression(C=10, max_iter=1000))
    model.fit([found.rows[i].query for i in drawn], found.label[drawn])
    return np.asarray(model.predict_proba([found.rows[i].query for i in rest]))


def scorings(found: Read) -> dict[tuple[str, str], list[float]]:
    """By scoring and prior accuracy in %, log-loss and ECE of all texts, before and after a temperature that was fitted
    to the other folds."""
    n, figures = len(found.label), {}
    accepted = np.eye(len(found.prompt.labels), dtype=np.bool_)[found.label]
    for scoring in (TREE, JOINT, MEAN):
        scores, empty = np.split(found.table[scoring], [n])
        for prior, shift in (("none", 0.0), ("content-free", log_prior(empty))):
            fitted = cross_validate(scores - shift, accepted)
            right = (scores - shift).argmax(axis=1) == found.label
            figures[scoring, prior] = [
                100 * float(right.mean()),
                fitted.log_loss_before,
                fitted.log_loss_after,
                fitted.ece_before,
                fitted.ece_after,
            ]
    return figures


def draws(found: Read) -> Iterator[tuple[int, list[Draw]]]:
    """By the number of rows of each label."""
    for n, n_draws in ROWS.items():
        kept = CACHE / f"{found.place.name}-{n}.jsonl"
        done = [Draw(*json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
        with kept.open("a") as file:
            for seed in range(len(done), n_draws):
                done.append(draw(found, n, seed, whole=n > 4))
                print(json.dumps(done[-1]), file=file, flush=True)
        yield n, done


def tables(tasks: Mapping[str, Task]) -> Iterator[Table]:
    """Of each task the means over draws, and of all of them the scorings."""
    by_task = []
    for name, task in tasks.items():
        found = read(task)
        by_task.append(scorings(found))
        yield learning_table(name, list(draws(found)))
    table = Table(
        "scoring", "prior", "accuracy", "log-loss", "with a temperature", "ECE", "with it", title="mean of all tasks"
    )
    for way in by_task[0]:
        table.add_row(*way, *(f"{each:.3f}" for each in np.mean([each[way] for each in by_task], axis=0)))
    yield table


def learning_table(name: str, found: Sequence[tuple[int, list[Draw]]]) -> Table:
    """The means over draws by the number of rows of each label."""
    columns = ["rows a label", "rows", "tested", "texts", "own", "common", "both", "low", "kept", "learn", "worst",
               "usual head", "TF-IDF"]  # fmt: skip
    table = Table(*columns, title=name)
    for n, some in found:
        mean = dict(zip(Draw._fields, np.mean(np.array(some, float), axis=0), strict=True))
        got = np.array([each.both if each.kept else each.texts for each in some])
        errors = [100 * np.sqrt(each.texts / 100 * (1 - each.texts / 100) / each.n_tested) for each in some]
        worst = min((g - each.texts) / e for g, each, e in zip(got, some, errors, strict=True))
        usual = max({(each.depth, each.is_common) for each in some}, key=[(e.depth, e.is_common) for e in some].count)
        table.add_row(
            *(str(n), f"{mean['n']:.0f}", f"{mean['n_tested']:.0f}"),
            *(f"{mean[each]:.1f}" for each in ("texts", "own", "common", "both", "low")),
            *(f"{sum(each.kept for each in some)} of {len(some)}", f"{got.mean():.1f}", f"{worst:+.1f}"),
            *(f"{usual[0]}, {'common' if usual[1] else 'own'}", f"{mean['tf_idf']:.1f}"),
        )
    return table
