"""The direct matrix kernels against stock's on a CUDA device: right within rounding, at work where they should be."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier, sees_cuda_gpu
from kernels.variants import LANES, compare_variants, variants
from oracle import ITEM, PromptSpec

from qcls_gguf.native.device import OWN_TYPES

pytestmark = pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
LEFT_TO_STOCK = 1
LARGEST_OF_HEAD = 0.05  # measured: 0.012, of scores down to -36
TAKEN = (2, 3, 7, 8, 9, 16, 17, 26, 33, 40, 57, 64, 65, 72, 81, 104, 112, 113, 128, 129, 160, 161, 225, 300)


SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"n_embd": 512, "n_ff": 1024, "tied": False}),
    ("qwen3", {"n_embd": 768, "n_ff": 512, "tied": True, "heads": (128, 6, 2)}),
    ("llama", {"n_embd": 512, "n_ff": 1024}),
    ("qwen2", {"n_embd": 512, "n_ff": 1024}),
]
IN_ALL_SHAPES = {"Q4_K", "Q6_K", "Q8_0"}


@pytest.mark.parametrize(
    ("weight_type", "name", "shape"),
    [
        (weight_type, *shape)
        for weight_type in sorted(OWN_TYPES["GPU"])
        for shape in (SHAPES if weight_type in IN_ALL_SHAPES else SHAPES[:1])
    ],
)
def test_hidden_states_are_stock_s_within_rounding(
    weight_type: str, name: str, shape: dict[str, Any], make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    path = make_model(name, weight_type=weight_type, head_type=weight_type, **shape)
    classifier = open_classifier(path, [ITEM], n_gpu_layers="all")
    # the one token is stock's: what differs, the kernels computed in the decode that is compared
    assert len(classifier.prompts[0].prefix) == 1
    sizes = compare_variants(classifier, [LEFT_TO_STOCK, *TAKEN], 1).sizes
    rounding = max(size.rounding for size in sizes)
    for size in sizes:
        n = size.n_tokens
        differences = {name: max(measured.differences) for name, measured in size.variants.items()}
        differences.pop(LANES, None)
        assert differences.pop("+ visible cells") < 3 * rounding  # which is no kernel of products
        if n == LEFT_TO_STOCK:
            before_rope = [differences[name] for name in list(differences)[: list(differences).index("+ rope")]]
            assert set(before_rope) == {0.0}, (n, differences)
        else:
            assert all(differences[name] > 0 for name in list(differences)[1:]), (n, differences)
        assert all(value < 3 * rounding for value in differences.values()), (n, rounding, differences)
        assert differences["+ quantize once"] == differences["+ direct"]  # the same numbers, quantised less often
        assert differences["+ short loops"] == differences["+ rope"]  # the same sums in the same order


@pytest.mark.parametrize("head_type", ["Q4_K", "Q6_K", "Q8_0"])
def test_the_head_is_taken_too(head_type: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Its 151,936 rows are more tiles than any other matrix has; nothing else of this model is quantised."""
    path = make_model("qwen3", n_embd=512, n_ff=512, n_vocab=151_936, tied=True, head_type=head_type)
    labels = ("jump", "jumper", "jumpsuit", "tank top", "trench coat", "none")
    specs = [PromptSpec(name="item", template="item of {query}\nlabel:", labels=labels, scoring="joint")]
    scores = []
    for variables in list(variants().values())[:: len(variants()) - 1]:
        with patch.dict("os.environ", variables):
            classifier = open_classifier(path, specs, n_gpu_layers="all")
        scores.append([score.score for score in classifier.classify("red dress for girl").results[0].scores])
    assert scores[0] != scores[1]
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=LARGEST_OF_HEAD)
