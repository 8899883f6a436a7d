"""The direct matrix kernels against stock's on a CUDA device: right within rounding, at work where they should be."""

from __future__ import annotations

import pytest
from conftest import MakeModel, OpenClassifier
from oracle import PromptSpec

from qcls_gguf.bench_ab import compare_variants
from qcls_gguf.native import build_info, multiprocessors

pytestmark = pytest.mark.skipif(multiprocessors() is None, reason="needs a CUDA device")
LEFT_TO_STOCK = 1
TAKEN = (2, 3, 7, 8, 9, 16, 17, 26, 33, 40, 57, 64, 65, 72, 81, 104, 112, 113, 128, 129, 160, 161, 225, 300)
SPECS = [PromptSpec(name="item", template="query: {query}\nlabel:", labels=("dress", "coat", "none"))]


@pytest.mark.parametrize("weight_type", ["Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize(("n_embd", "n_ff"), [(512, 1024), (768, 512)])
def test_hidden_states_are_stock_s_within_rounding(
    weight_type: str, n_embd: int, n_ff: int, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    path = make_model(weight_type=weight_type, n_embd=n_embd, n_ff=n_ff, head_type=weight_type)
    classifier = open_classifier(path, SPECS, n_gpu_layers="all")
    is_turing = "architectures 75" in build_info().backend
    for n, size in compare_variants(classifier, [LEFT_TO_STOCK, *TAKEN], 1, lambda: None).items():
        differences = {name: max(measured.differences) for name, measured in size.variants.items()}
        if not is_turing:
            assert set(differences.values()) == {0.0}
            continue
        # the cached prefix, which has more tokens than one, is theirs in any case
        assert all(0 < differences[name] < 0.05 for name in list(differences)[1:]), (n, size.rounding, differences)
        assert differences["+ quantize once"] == differences["+ direct"]  # the same numbers, quantised less often
