"""What can be stated of answers to real texts: thresholds for an error rate and label sets, over redraws of the rows.

A task's texts are answered once; then half of them, drawn at random, state, and the other half check, a thousand times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from rich.progress import track

from qcls_gguf import Classifier
from qcls_gguf.score.adjustment import drawn
from qcls_gguf.statistics import FloatArray, IntArray
from qcls_gguf.statistics.stated import (
    conformal_quantile,
    conformity_scores,
    error_thresholds,
    label_sets,
    p_value_of_coverage,
    p_value_of_error,
)

from .sweep import prompts
from .texts import CACHE, Task, config_of

TARGETS = {"film reviews": (0.1, 0.15), "product reviews": (0.15, 0.2), "sections": (0.2, 0.3)}
"""the error rates that are asked for, by task"""
N_REDRAWS = 1000
CONFIDENCE, LEVEL = 0.95, 0.05
SETS = (("lac", False), ("aps", False), ("aps", True))
N_TEXTS = 800


class Answered(NamedTuple):
    """A task's texts, answered."""

    texts: list[str]
    p: FloatArray
    """(n, n_labels)"""
    truth: IntArray
    """(n,)"""


def answered(task: Task) -> Answered:
    """The task's texts with the cue `{name}:` and the content-free prior; kept in the cache."""
    kept = CACHE / f"{task.name} answered.npz".replace(" ", "-")
    pairs = (*task.rows, *task.others)[:N_TEXTS]
    if not kept.exists():
        prompt = replace(prompts(task, "list")[0], name=task.ask, prior="content_free")
        with Classifier.from_config(config_of([prompt])) as classifier:
            found = [classifier.classify(text).results[0] for text, _ in track(pairs, task.name)]
        np.savez(kept, p=np.array([[score.probability for score in each.scores] for each in found]))
    p = np.load(kept)["p"]
    return Answered([text for text, _ in pairs], p, np.array([task.labels.index(label) for _, label in pairs]))


def error_row(rows: Answered, target: float) -> list[str]:
    """Over redraws: how often a threshold is found, what it answers, the error of the others; of all redraws, how often
    that is above the target, and how often the check fails."""
    answer, sureness = rows.p.argmax(axis=1), rows.p.max(axis=1)
    wrong, half = answer != rows.truth, len(rows.p) // 2
    found = []
    for order in redraws(len(rows.p)):
        own, new = order[:half], order[half:]
        accepted = [step for step in error_thresholds(sureness[own], wrong[own], target, CONFIDENCE) if step.accepted]
        if accepted:
            counts = sureness[new] >= accepted[-1].threshold
            n, k = int(counts.sum()), int(wrong[new][counts].sum())
            found.append((n / len(new), k / max(n, 1), k > target * n, p_value_of_error(k, n, target) < LEVEL))
    if not found:
        return [f"{target:.0%}", "0 %", *["–"] * 4]
    (share, error), stated = np.mean(found, axis=0)[:2], len(found) / N_REDRAWS
    above, fails = np.sum(found, axis=0)[2:] / N_REDRAWS
    return [f"{target:.0%}", *(f"{each:.1%}" for each in (stated, share, error, above, fails))]


def sets_row(rows: Answered, method: str, randomised: bool) -> list[str]:
    """Over redraws: the coverage of the other half, the sets' sizes, and how often the check fails."""
    u, half, every = drawn(rows.texts) if randomised else None, len(rows.p) // 2, np.arange(len(rows.p))
    scores = conformity_scores(rows.p, method, 1.0 if u is None else u)[every, rows.truth]
    found = []
    for order in redraws(len(rows.p)):
        own, new = order[:half], order[half:]
        threshold = conformal_quantile(scores[own], 0.9)
        sets = label_sets(rows.p[new], threshold, method, None if u is None else u[new])
        n, size = int(sets[np.arange(len(new)), rows.truth[new]].sum()), sets.sum(axis=1)
        is_bad = p_value_of_coverage(n, len(new), 0.9, half) < LEVEL
        found.append((n / len(new), size.mean(), (size == 0).mean(), (size == sets.shape[1]).mean(), is_bad))
    coverage, size, empty, full, fails = np.mean(found, axis=0)
    return [f"{coverage:.1%}", f"{size:.2f}", *(f"{each:.1%}" for each in (empty, full, fails))]


def redraws(n: int) -> list[IntArray]:
    """Orders of n rows."""
    random = np.random.default_rng(5)
    return [random.permutation(n) for _ in range(N_REDRAWS)]


def tables(found: dict[str, Task]) -> str:
    """Both tables, for docs/stated-error.md."""
    lines = [
        "| task | error at most | stated | answers | error | above | check fails |",
        "|---|---|---|---|---|---|---|",
    ]
    answers = {name: answered(found[name]) for name in TARGETS if name in found}
    for name, rows in answers.items():
        lines += [f"| {' | '.join([name, *error_row(rows, target)])} |" for target in TARGETS[name]]
    lines += [
        "",
        "| task | sets | coverage | labels a set | empty | full | check fails |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in answers.items():
        for method, randomised in SETS:
            how = f"{method}{', randomised' * randomised}"
            lines.append(f"| {' | '.join([name, how, *sets_row(rows, method, randomised)])} |")
    return "\n".join(lines)
