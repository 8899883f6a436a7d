"""What can be stated of answers to real texts: thresholds for an error rate, over redraws of the rows.

A task's texts are answered once; then half of them, drawn at random, state, and the other half check, a thousand times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from rich.progress import track

from qcls_gguf import Classifier
from qcls_gguf.statistics import FloatArray, IntArray
from qcls_gguf.statistics.fitting import error_thresholds, p_value_of_error

from .sweep import prompts
from .texts import CACHE, Task, config_of

TARGETS = {"film reviews": (0.1, 0.15), "product reviews": (0.15, 0.2), "sections": (0.2, 0.3)}
"""the error rates that are asked for, by task"""
N_REDRAWS = 1000
CONFIDENCE, LEVEL = 0.95, 0.05
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
        prompt = prompts(task, "list")[0].changed(name=task.ask, prior="content_free")
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


def redraws(n: int) -> list[IntArray]:
    """Orders of n rows."""
    random = np.random.default_rng(5)
    return [random.permutation(n) for _ in range(N_REDRAWS)]


def tables(found: dict[str, Task]) -> str:
    """The table, for docs/stated-error.md."""
    lines = [
        "| task | error at most | stated | answers | error | above | check fails |",
        "|---|---|---|---|---|---|---|",
    ]
    answers = {name: answered(found[name]) for name in TARGETS if name in found}
    for name, rows in answers.items():
        lines += [f"| {' | '.join([name, *error_row(rows, target)])} |" for target in TARGETS[name]]
    return "\n".join(lines)
