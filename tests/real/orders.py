"""Labels scored by their own text, and by code letters, with the options listed in every order."""

from itertools import permutations

import numpy as np
from rich.progress import track
from rich.table import Table

from qcls_gguf import Classifier, Config, ModelConfig, PromptConfig, RuntimeConfig
from qcls_gguf.score.adjustment import Adjustment, adjusted_scores, log_prior
from qcls_gguf.statistics import FloatArray

from .sweep import WORDINGS
from .texts import Task, model_file

_LETTERS = "ABCDEFGHIJ"
_LETTER = "Label {about}. Output exactly one letter from the list.\n{name}:\n{labels}"
Way = tuple[str, str, tuple[str, ...]]
"""text or letters, cue, order"""


def order_table(task: Task, n_rows: int) -> Table:
    """Accuracies of all orders, and the share of texts whose answers differ, without and with a batch prior."""
    rows = [*task.rows, *task.others][:n_rows]
    truth = np.array([task.labels.index(label) for _, label in rows])
    found = _scores(task, [text for text, _ in rows])
    table = Table("labels as", "cue", "prior", "accuracy by order", "answers that differ", title=task.name)
    for kind, cue in dict.fromkeys((kind, cue) for kind, cue, _ in found):
        scores = [score for way, score in found.items() if way[:2] == (kind, cue)]
        for prior in ("none", "batch 1"):
            shifts = [log_prior(score) if prior != "none" else None for score in scores]
            p = [adjusted_scores(score, Adjustment(prior=shift)) for score, shift in zip(scores, shifts, strict=True)]
            answers = np.array([each.argmax(axis=1) for each in p])
            accuracies = ", ".join(f"{(answer == truth).mean():.1%}" for answer in answers)
            table.add_row(kind, cue, prior, accuracies, f"{(answers != answers[0]).any(axis=0).mean():.1%}")
    return table


def _scores(task: Task, texts: list[str]) -> dict[Way, FloatArray]:
    """(n_texts, n_labels) by way, the labels in the task's order."""
    ways: dict[Way, PromptConfig] = {}
    for order in permutations(task.labels):
        letters = _LETTERS[: len(order)]
        lines = "\n".join(f"{letter}. {label}" for letter, label in zip(letters, order, strict=True))
        asked = {"text": (WORDINGS["list"][0], ", ".join(order), order), "letters": (_LETTER, lines, tuple(letters))}
        for cue in ("Answer:", f"{task.ask}:"):
            for kind, (system, options, labels) in asked.items():
                system = system.format(about=task.about, name=task.ask, labels=options)
                name = f"{kind} {cue} {order}"
                ways[kind, cue, order] = PromptConfig(
                    name=name, system=system, user="text: {query}", answer_cue=cue, labels=labels
                )
    runtime = RuntimeConfig(n_threads=1, n_gpu_layers=0, state_cache=False)
    config = Config(prompts=tuple(ways.values()), model=ModelConfig(path=model_file()), runtime=runtime)
    found: dict[Way, list[list[float]]] = {way: [] for way in ways}
    with Classifier.from_config(config) as classifier:
        for text in track(texts, f"{task.name} in every order"):
            for way, answer in zip(ways, classifier.classify(text).results, strict=True):
                found[way].append([answer.scores[way[2].index(label)].score for label in task.labels])
    return {way: np.array(scores) for way, scores in found.items()}
