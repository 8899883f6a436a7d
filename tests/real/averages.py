"""Labels listed in every turn of their order: what one order, and the averages over several, answer."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from rich.progress import track
from rich.table import Table

from qcls_gguf import Classifier, PromptConfig
from qcls_gguf.statistics import FloatArray, log_softmax

from .sweep import WORDINGS
from .texts import Task, config_of

N_TEXTS = 240
TASKS = ("film reviews", "product reviews", "kinds", "topics")


def averages_table(task: Task, *, after: bool) -> Table:
    """Accuracy, log-loss and moves of averages over K orders; after: the list stands after the query."""
    pairs = (*task.rows, *task.others)[:N_TEXTS]
    log_p = _by_order(task, [text for text, _ in pairs], after=after)
    truth = np.array([task.labels.index(label) for _, label in pairs])
    n = len(task.labels)
    single = log_p.argmax(axis=2)
    accuracies = (single == truth[:, None]).mean(axis=0)
    one = ", ".join(f"{each:.1%}" for each in (accuracies.min(), accuracies.mean(), accuracies.max()))
    title = f"{task.name}{', list after the query' if after else ''}: one order {one}, moves {_moves(single):.1%}"
    table = Table("K", "mean of", "accuracy", "log-loss", "moves", title=title)
    for k in sorted({2, 3, 4, n} & set(range(2, n + 1))):
        turns = np.array([[(first + i * n // k) % n for i in range(k)] for first in range(n)])
        for name, averaged in (
            ("logarithms", log_softmax(log_p[:, turns].mean(axis=2))),
            ("probabilities", np.log(np.exp(log_p[:, turns]).mean(axis=2))),
        ):
            p = averaged[:, 0]  # as written
            accuracy, loss = (p.argmax(axis=1) == truth).mean(), -p[np.arange(len(truth)), truth].mean()
            table.add_row(str(k), name, f"{accuracy:.1%}", f"{loss:.3f}", f"{_moves(averaged.argmax(axis=2)):.1%}")
    return table


def _moves(answers: FloatArray) -> float:
    """The share of answers that differ between two columns, (n_texts, n_columns)."""
    return float(
        np.mean([answers[:, one] != answers[:, other] for one, other in combinations(range(answers.shape[1]), 2)])
    )


def _by_order(task: Task, texts: list[str], *, after: bool) -> FloatArray:
    """(n_texts, n_orders, n_labels) log-probabilities, the labels in the task's order."""
    prompts = []
    for first in range(len(task.labels)):
        listed = ", ".join(task.labels[first:] + task.labels[:first])
        list_text = WORDINGS["list"][0].format(about=task.about, name=task.ask, labels=listed)
        system, user = (None, f"text: {{query}}\n{list_text}") if after else (list_text, "text: {query}")
        cue = f"{task.ask}:"
        prompts.append(PromptConfig(name=f"{first}", system=system, user=user, answer_cue=cue, labels=task.labels))
    with Classifier.from_config(config_of(prompts)) as classifier:
        answers = [classifier.classify(text).results for text in track(texts, task.name)]
    return np.array([[[score.score for score in each.scores] for each in results] for results in answers])
