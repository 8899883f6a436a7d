"""Batch-invariant contexts on a CUDA device: rows and answers have the same bits alone and in company."""

from typing import Any, Literal

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier, sees_cuda_gpu
from kernels.decodes import hidden_states
from oracle import PromptSpec

pytestmark = pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
LABELS = ("dress", "jump", "jumper", "tank top", "none")
TEXTS = {"short": "what is", "long": "one of many words, " * 34 + "what is"}  # the second: more than 256 cells
RUNTIME: dict[str, Any] = {"n_gpu_layers": "all", "batch_invariant": True, "max_query_tokens": 32}
QUERIES = ["a", "red dress", "a light blue tank top for boys, made of cotton", "jump", "no item at all"]
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"n_embd": 512, "n_ff": 1024, "tied": False}),
    ("qwen3", {"n_embd": 1024, "n_ff": 3072, "tied": True, "heads": (128, 8, 2)}),
    ("llama", {"n_embd": 512, "n_ff": 4096}),
    ("qwen2", {"n_embd": 512, "n_ff": 8192}),
]


def specs(scoring: Literal["tree", "joint"] = "tree") -> list[PromptSpec]:
    return [
        PromptSpec(name=name, template=f"<|im_start|>{text} {{query}}<|im_end|>label:", labels=LABELS, scoring=scoring)
        for name, text in TEXTS.items()
    ]


@pytest.mark.parametrize("weight_type", ["Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_rows_do_not_depend_on_what_else_is_decoded(
    name: str, shape: dict[str, Any], weight_type: str, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    path = make_model(name, weight_type=weight_type, head_type=weight_type, **shape)
    classifier = open_classifier(path, specs(), **RUNTIME, n_batch=700)
    assert 256 < len(classifier.prompts[1].prefix) < 512
    for n in (1, 2, 3, 8, 9, 26, 64, 104, 130, 260):
        alone = hidden_states(classifier, n, prompt=1)
        for n_other in (1, 7, 33, 120, 390):
            beside = hidden_states(classifier, n, n_other, prompt=1)
            np.testing.assert_array_equal(beside, alone, err_msg=f"{n} tokens beside {n_other}")


@pytest.mark.parametrize("scoring", ["tree", "joint"])
def test_answers_do_not_depend_on_who_shares_the_decode(
    scoring: Literal["tree", "joint"], make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    # joint scoring multiplies the whole head, and the kernels take one with a multiple of 32 rows
    n_vocab = 576 if scoring == "joint" else None
    path = make_model("qwen3", weight_type="Q4_K", head_type="Q6_K", n_vocab=n_vocab, **SHAPES[0][1])
    classifier = open_classifier(path, specs(scoring), **RUNTIME, max_batch=4)

    def scores(results: Any) -> list[list[float]]:
        return [[score.score for prompt in result.results for score in prompt.scores] for result in results]

    alone = scores(classifier.classify(query) for query in QUERIES)
    assert scores(classifier.classify_batch(QUERIES)) == alone
    assert scores(classifier.classify_batch(QUERIES[::-1]))[::-1] == alone
