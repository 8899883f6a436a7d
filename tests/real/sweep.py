"""Real texts scored by prompts that differ in their last words, and what calibrates these scores.

All cues of a wording are one request: they share the text up to and past the query. The scores of a task are kept in
the cache folder, so that an interrupted run goes on.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from rich.progress import track

from qcls_gguf import Classifier, PromptConfig
from qcls_gguf.config.prompt import CONTENT_FREE_QUERIES
from qcls_gguf.score.adjustment import log_prior
from qcls_gguf.statistics import FloatArray, calibration_error, log_losses, log_softmax, wilson

from .texts import CACHE, Task, config_of

N_ROWS, N_OTHERS = 200, 80
CUES = ("{name}:", "{Name}:", "label:", "Answer:", "{name}: [", "")
"""{Name} is the name with a capital letter; after the last two labels have no prefix"""
WORDINGS = {
    "list": ("Label {about}. Output exactly one label from the list.\n{name}: [{labels}]", "text: {query}"),
    "question": ("{question} Answer with one of: {labels}.", "{query}"),
}
"""system and user"""
STRENGTHS = (0.5, 0.75, 1)
PRIORS = ("none", "content free", *(f"batch {strength}" for strength in STRENGTHS))
TUNED_ON = ("film reviews", "product reviews", "sections")
"""the tasks by which the defaults were chosen; the others were looked at afterwards"""


class Figures(NamedTuple):
    """How well one way labels the rows of one task."""

    accuracy: float
    interval: tuple[float, float] | None
    log_loss: float
    ece: float | None
    most_frequent: float
    """the share of the label that is answered most"""


def prompts(task: Task, wording: str) -> list[PromptConfig]:
    """One prompt for each of CUES."""
    system, user = WORDINGS[wording]
    labels = ", ".join(task.labels)
    system = system.format(about=task.about, question=task.question, name=task.ask, labels=labels)
    return [
        PromptConfig(
            name=cue or "none",
            system=system,
            user=user,
            answer_cue=cue.replace("{name}", task.ask).replace("{Name}", task.ask.capitalize()),
            label_prefix="" if cue in CUES[-2:] else " ",
            labels=task.labels,
        )
        for cue in CUES
    ]


def scores(task: Task, wording: str) -> dict[str, FloatArray]:
    """(n, n_labels) by cue: of the rows, of the other texts, and of the queries without content."""
    kept = CACHE / f"{task.name} {wording}.npz".replace(" ", "-")
    if kept.exists():
        return dict(np.load(kept))
    texts = [text for text, _ in (*task.rows[:N_ROWS], *task.others[:N_OTHERS])]
    found: dict[str, list[list[float]]] = {cue: [] for cue in CUES}
    with Classifier.from_config(config_of(prompts(task, wording))) as classifier:
        for text in track([*texts, *CONTENT_FREE_QUERIES], f"{task.name}, {wording}"):
            for cue, answer in zip(CUES, classifier.classify(text).results, strict=True):
                found[cue].append([score.score for score in answer.scores])
    arrays = {cue: np.array(rows) for cue, rows in found.items()}
    np.savez(kept, **arrays)  # type: ignore[arg-type]
    return arrays


def figures(task: Task, wording: str) -> Iterator[tuple[str, str, Figures]]:
    """(cue, prior, its figures) in the scoring `tree`."""
    n = min(N_ROWS, len(task.rows))
    truth = np.array([task.labels.index(label) for _, label in task.rows[:n]])
    for cue, score in scores(task, wording).items():
        rows, others, empty = np.split(score, [n, -len(CONTENT_FREE_QUERIES)])
        shifts = (None, log_prior(empty), *(strength * log_prior(others) for strength in STRENGTHS))
        for prior, shift in zip(PRIORS, shifts, strict=True):
            p = np.exp(log_softmax(rows if shift is None else rows - shift))
            answer, confidence = p.argmax(axis=1), p.max(axis=1)
            right = answer == truth
            yield (
                cue,
                prior,
                Figures(
                    accuracy=float(right.mean()),
                    interval=wilson(int(right.sum()), n),
                    log_loss=float(log_losses(p[np.arange(n), truth]).mean()),
                    ece=calibration_error(confidence, right),
                    most_frequent=float(np.bincount(answer).max() / n),
                ),
            )


def majority(task: Task) -> float:
    """The share of the most frequent label among the rows."""
    labels = [label for _, label in task.rows[:N_ROWS]]
    return max(labels.count(label) for label in task.labels) / len(labels)
