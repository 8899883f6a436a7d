"""Without layers on it a GPU is not used, whatever a decode has to compute."""

from __future__ import annotations

import pytest
from conftest import MakeModel, RunPython, WriteConfig
from oracle import COLOR

from qcls_gguf.native import sees_cuda_gpu

pytestmark = pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
CODE = """
import os, sys
if sys.argv[2] == "hidden":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
from qcls_gguf import Classifier
with Classifier.from_config(sys.argv[1]) as classifier:
    result = classifier.classify("red " * 60)
print(result.counts.n_tokens_new > 60, result.model.device, [score.score for score in result.results[0].scores])
"""


@pytest.mark.parametrize("weight_type", ["F32", "Q8_0"])
def test_answers_are_those_of_a_machine_without_a_gpu(
    weight_type: str, make_model: MakeModel, write_config: WriteConfig, run_python: RunPython
) -> None:
    """llama.cpp would copy weights to the GPU for decodes of 32 tokens and more, and round otherwise there."""
    config = write_config(make_model(weight_type=weight_type, n_embd=512, n_ff=1024), [COLOR], n_gpu_layers=0)
    visible, hidden = (run_python(CODE, config, kind) for kind in ("visible", "hidden"))
    assert visible.stdout.startswith("True"), visible.stderr
    assert visible.stdout == hidden.stdout
