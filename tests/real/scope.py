"""Whether hidden states tell queries out of scope: the figures of docs/stated-error.md."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from rich.progress import track
from rich.table import Table

from qcls_gguf import Classifier, Config, ModelConfig, PromptConfig, RuntimeConfig
from qcls_gguf.score.heads import unit_states
from qcls_gguf.statistics import Float32Array, FloatArray
from qcls_gguf.statistics.stated import conformal_quantile

from .sweep import WORDINGS
from .texts import Task, model_file

SCOPES = {"film reviews": 500, "product reviews": 500, "topics": 200}
"""the tasks whose texts are in scope, and how many of these are the reference"""
FALSE_REFUSALS = 0.05
DEPTHS = (12, 18, 24)
_N_OTHERS, _N_SCOPE = 250, 1000
Distance = Callable[[FloatArray], FloatArray]


def distances(reference: FloatArray, labels: Sequence[int]) -> dict[str, Distance]:
    """What grows with the distance of states (n, n_embd) from the reference; labels: the model's answers to these."""
    centre = reference.mean(axis=0)
    whole = _mahalanobis(reference - centre, [centre])
    of_label = np.array(labels)
    groups = [group for group in (reference[of_label == label] for label in set(labels)) if len(group) > 4]
    within = np.concatenate([group - group.mean(axis=0) for group in groups])
    by_label = _mahalanobis(within, [group.mean(axis=0) for group in groups])
    found = {
        "mean": lambda z: np.linalg.norm(z - centre, axis=1),
        "Mahalanobis": whole,
        "Mahalanobis by label": by_label,
        "relative": lambda z: by_label(z) - whole(z),
    }
    return found | {f"neighbour {k}": lambda z, k=k: _neighbour(z, reference, k) for k in (1, 10)}


def _neighbour(states: FloatArray, reference: FloatArray, k: int) -> FloatArray:
    """The cosine distance of the k-th nearest neighbour (Sun et al. 2022)."""
    one, other = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (states, reference))
    return np.asarray(np.partition(1 - one @ other.T, k - 1, axis=1)[:, k - 1])


def _mahalanobis(centred: FloatArray, centres: Sequence[FloatArray]) -> Distance:
    """The distance from the nearest centre, by a covariance shrunk as Ledoit and Wolf 2004 do (Lee et al. 2018)."""
    n, n_embd = centred.shape
    covariance = centred.T @ centred / n
    identity = np.trace(covariance) / n_embd * np.eye(n_embd)
    spread = ((covariance - identity) ** 2).sum()
    noise = ((centred**2).sum(axis=1) ** 2).sum() / n**2 - (covariance**2).sum() / n
    share = min(1.0, noise / spread)
    inverse = np.linalg.inv(share * identity + (1 - share) * covariance)
    return lambda z: np.min([(((z - each) @ inverse) * (z - each)).sum(axis=1) for each in centres], axis=0)


def scope_table(tasks: dict[str, Task], scope: str) -> Table:
    """The share of other texts that are found, by distance and depth, with the share of false refusals."""
    texts = {name: [text for text, _ in (*task.rows, *task.others)] for name, task in tasks.items() if name != "kinds"}
    texts["languages"] = [t for t, of in (*tasks["languages"].rows, *tasks["languages"].others) if of != "english"]
    words = [word for text in texts["film reviews"][:_N_SCOPE] for word in text.split()]
    generator = random.Random(1)
    texts["random words"] = [" ".join(generator.choices(words, k=generator.randint(5, 25))) for _ in range(_N_OTHERS)]
    texts = {name: some[: _N_SCOPE if name == scope else _N_OTHERS] for name, some in texts.items()}
    states, answers = _states(tasks[scope], texts)
    order = np.random.default_rng(0).permutation(len(texts[scope]))
    reference, rest = order[: SCOPES[scope]], order[SCOPES[scope] :]
    fitted, checked = np.array_split(rest, 2)
    others = [name for name in texts if name != scope]
    table = Table("depth", "distance", "false refusals", *others, title=scope)
    for number, depth in enumerate((*DEPTHS, "all")):
        z = {name: unit_states(found[:, number]).astype(np.float64) for name, found in states.items()}
        for name, distance in distances(z[scope][reference], [answers[i] for i in reference]).items():
            threshold = conformal_quantile(distance(z[scope][fitted]), 1 - FALSE_REFUSALS)
            refused = [(distance(each) > threshold).mean() for each in (z[scope][checked], *(z[o] for o in others))]
            table.add_row(str(depth), name, *(f"{share:.0%}" for share in refused))
    return table


def _states(task: Task, texts: dict[str, list[str]]) -> tuple[dict[str, Float32Array], list[int]]:
    """(n, n_depths, n_embd) the states at the end of the task's prompt by group of texts, and the answers in scope."""
    system = WORDINGS["list"][0].format(about=task.about, name=task.ask, labels=", ".join(task.labels))
    prompt = PromptConfig(
        name=task.name, system=system, user="text: {query}", answer_cue=f"{task.ask}:", labels=task.labels
    )
    runtime = RuntimeConfig(n_threads=1, n_gpu_layers=0, state_cache=False, max_query_tokens=400)
    config = Config(prompts=(prompt,), model=ModelConfig(path=model_file()), runtime=runtime)
    found: dict[str, Float32Array] = {}
    answers = []
    with Classifier.from_config(config) as classifier:
        for name, some in texts.items():
            states = []
            for text in track(some, f"{task.name}: {name}"):
                ((answer,),), state = classifier.core.run(
                    classifier.core.answers_and_states, classifier.configured, [text], DEPTHS
                )
                states.append(state[0, 0])
                if name == task.name:
                    answers.append(task.labels.index(answer.label))
            found[name] = np.array(states, np.float32)
    return found, answers
