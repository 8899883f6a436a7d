"""Real weights: label log-probabilities against stock llama.cpp and F32 arithmetic; real reviews are labelled.

`make test` fetches model and texts (100 MB, once) into build/real for the reviews; without a network that test is
skipped, and the reason is shown at the end. `make test QCLS_REAL=0` fetches nothing, and neither does pytest by itself.
"""

import os
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from conftest import sees_cuda_gpu
from oracle import Oracle, PromptSpec

from qcls_gguf import Classifier, Config, ModelConfig, Result
from qcls_gguf.native.device import instruction_sets
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.statistics import FloatArray

from .reference import Reference, in_floats
from .texts import WORDINGS, Task, config_of, film_reviews, model_file, prompt_of, tasks

N_TEXTS = 8
Limits = tuple[float, float, float]
"""The largest mean and largest |difference| of log p(label | prompt), and the largest share of other answers."""
ROUNDED: Limits = 0.2, 1.0, 0.15
"""Weights of Q4_1 with which llama.cpp multiplies activations rounded to 8 bits, 30 layers deep: measured 0.08 to 0.15
and 0.4 to 0.7."""
OURS: dict[str, Limits] = {"product reviews": (0.05, 0.2, 0.15), "kinds": (0.2, 0.6, 0.15)}
"""This project's products, by the task: measured 0.029 and 0.093 against F32, 0.040 and 0.121 against stock's attention
with the same products; of labels of two tokens 0.115 and 0.31, 0.161 and 0.46."""
FINE: Limits = 0.005, 0.02, 0.0
"""The same with activations of 16 bits, against F32: measured 0.0012 and 0.0026; 0.0021 and 0.0050."""
GPU: dict[str, Limits] = {"product reviews": (0.3, 0.9, 0.25), "kinds": (0.6, 2.0, 0.5)}
"""On an H100 with code for 7.5, measured 0.11 to 0.14 and 0.39; 0.31 to 0.40 and 1.4. There llama.cpp's own products
differ by as much from the same references, 0.09 to 0.21 and 0.84; 0.28 to 0.59 and 2.0."""
GPU_FLOATS: Limits = 0.02, 0.1, 0.0
"""There with the weights in F32, against F32: what the rest of the path and the cache of F16 leave."""
ASKED: dict[str, Callable[[Classifier, Sequence[str]], list[Result]]] = {
    "alone": lambda classifier, texts: [classifier.classify(text) for text in texts],
    "in batches": lambda classifier, texts: classifier.classify_batch(texts),
    "as typed": lambda classifier, texts: [
        [classifier.classify(text[:end]) for end in (len(text) // 2, len(text))][-1] for text in texts
    ],
}


@cache
def real_tasks() -> dict[str, Task]:
    return tasks()


@cache
def expected(name: str) -> tuple[FloatArray, FloatArray]:
    """(N_TEXTS, n_labels) log-probabilities of the labels: by stock llama.cpp, and in F32."""
    task = real_tasks()[name]
    with ClassifierOpener() as opener, opener.open(config(name)) as classifier:
        (prompt,) = classifier.config.prompts
    spec = PromptSpec(name="x", template=prompt.expanded_template, labels=task.labels)
    reference = Reference(model_file())
    stock: list[list[float]] = []
    exact: list[list[float]] = []
    with Oracle(model_file()) as oracle:
        for text, _ in task.rows[:N_TEXTS]:
            stock.append([sum(steps) for steps in oracle.joint(spec, text)])
            start = oracle.rendered(spec.template, text)
            exact.append([])
            for path in oracle.label_tokens(spec, text):
                rows = reference.log_probabilities([*start, *path], len(start) - 1)
                exact[-1].append(sum(row[token] for row, token in zip(rows, path, strict=False)))
    return np.array(stock), np.array(exact)


def config(name: str, *, n_prompts: int = 1, floats: bool = False, **runtime: Any) -> Config:
    """Prompts that differ in their last words only; the first is compared."""
    prompts = [prompt_of(real_tasks()[name], cue=cue) for cue in ("{name}:", "label:", "Answer:")[:n_prompts]]
    found = config_of((prompt.changed(scoring="joint") for prompt in prompts), **runtime)
    return found.changed(model=ModelConfig(path=in_floats(model_file()))) if floats else found


@pytest.mark.real
@pytest.mark.parametrize("device", ["cpu", "cpu, fine", "gpu", "gpu, floats"])
@pytest.mark.parametrize("n_prompts", [1, 3], ids=["separate", "one common text"])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", ["product reviews", "kinds"])  # the second has labels of two tokens
def test_log_probabilities_are_those_of_the_weights(name: str, asked: str, n_prompts: int, device: str) -> None:
    if device.startswith("gpu") and not sees_cuda_gpu():
        pytest.skip("needs a CUDA device")
    texts = [text for text, _ in real_tasks()[name].rows[:N_TEXTS]]
    placed = {"n_gpu_layers": 999 if device.startswith("gpu") else 0}
    precision = "fine" if device == "cpu, fine" else "default"
    is_floats = device == "gpu, floats"
    settings = config(name, n_prompts=n_prompts, floats=is_floats, cpu_activations=precision, **placed)
    with Classifier.from_config(settings) as classifier:
        results = ASKED[asked](classifier, texts)
        assert len(set(classifier.compiled.prefixes)) == 1, "a query is computed once"
    ours = np.array([[score.score for score in result.results[0].scores] for result in results])
    for other, limits in zip(expected(name), limits_of(name, device), strict=True):
        if limits is None:
            continue
        mean, largest, other_answers = limits
        difference = np.abs(ours - other)
        assert difference.mean() < mean
        assert difference.max() < largest
        assert (ours.argmax(axis=1) != other.argmax(axis=1)).mean() <= other_answers


def limits_of(name: str, device: str) -> tuple[Limits | None, Limits]:
    """Against stock, and against F32."""
    if device.startswith("gpu"):
        return (None, GPU_FLOATS) if device == "gpu, floats" else (GPU[name], GPU[name])
    if not {"AVX2", "DOTPROD"} & set(instruction_sets()):
        return ROUNDED, ROUNDED
    return OURS[name], FINE if device == "cpu, fine" else OURS[name]


@pytest.fixture
def reviews(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Fetched, with the model, where that is wanted."""
    monkeypatch.setenv("QCLS_REAL", os.environ.get("QCLS_REAL", "0"))
    try:
        model_file()
        return film_reviews()
    except (FileNotFoundError, subprocess.CalledProcessError) as e:
        pytest.skip(f"no real model: {e}: `make test` fetches it where there is a network")


def test_reviews_are_labelled_far_above_chance(reviews: Task) -> None:
    """Asked in two ways with the default cue and `prior: content_free`: measured 75.5 and 80.5 % of 200 reviews.

    The answer `positive` is right for 57.0 %.
    """
    own = {"answer_cue": f"{reviews.ask}:", "prior": "content_free"}
    prompts = [prompt_of(reviews, wording).changed(name=wording, **own) for wording in WORDINGS]
    rows = reviews.rows[:200]
    with Classifier.from_config(config_of(prompts)) as classifier:
        results = [classifier.classify(text) for text, _ in rows]
    for wording in WORDINGS:
        n_right = sum(result.labels[wording] == label for result, (_, label) in zip(results, rows, strict=True))
        assert n_right > 0.68 * len(rows), wording
