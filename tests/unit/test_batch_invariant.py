"""Models that a batch-invariant context is refused for, or its exact scores: what matrices its kernels do not take."""

import pytest

from qcls_gguf.engine.open import check_tensors
from qcls_gguf.errors import ConfigError
from qcls_gguf.model.header import TensorInfo

F32, F16, Q8_0, Q4_K, Q5_K, Q6_K = 0, 1, 8, 12, 13, 14


def tensor(name: str, ggml_type: int, *shape: int) -> TensorInfo:
    return TensorInfo(name=name, shape=shape, ggml_type=ggml_type, offset=0, n_bytes=0)


SOUND = (
    tensor("token_embd.weight", F16, 4096, 151_936),  # rows of it are looked up, no product
    tensor("output.weight", Q6_K, 4096, 151_936),
    tensor("blk.0.attn_norm.weight", F32, 4096),
    tensor("blk.0.attn_q.weight", Q4_K, 4096, 4096),
    tensor("blk.0.attn_v.weight", Q6_K, 4096, 1024),
    tensor("blk.0.ffn_up.weight", Q8_0, 4096, 12_288),
)


def model(*changed: TensorInfo, without: str = "") -> dict[str, TensorInfo]:
    return {each.name: each for each in (*SOUND, *changed) if each.name != without}


def test_models_of_the_usual_files_are_taken() -> None:
    assert check_tensors(model()) is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (tensor("blk.0.attn_q.weight", Q5_K, 4096, 4096), "'blk.0.attn_q.weight' is Q5_K"),
        (tensor("blk.0.attn_v.weight", Q6_K, 4352, 1024), r"shape \(4352, 1024\).* multiple of 512"),
        (tensor("blk.0.ffn_up.weight", Q8_0, 4096, 12_280), "the second a multiple of 32"),
        (tensor("blk.0.ffn_up.weight", Q8_0, 4096, 28_672), "at most 26112"),
        (tensor("blk.0.ffn_up.weight", Q8_0, 4096, 12_288, 8), r"\(4096, 12288, 8\)"),  # of several experts
    ],
)
def test_other_matrices_are_named(changed: TensorInfo, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^runtime.batch_invariant: tensor .*{says}.*without it, max_batch 1"):
        check_tensors(model(changed))


@pytest.mark.parametrize(
    ("changed", "without", "says"),
    [
        (tensor("output.weight", F16, 4096, 151_936), "", "'output.weight' is F16"),
        (tensor("output.weight", Q6_K, 4096, 151_937), "", "the second a multiple of 32"),
        (tensor("blk.0.attn_q.weight", Q4_K, 4096, 4096), "output.weight", "'token_embd.weight' is F16"),  # a tied head
    ],
)
def test_another_head_costs_the_exact_scores_alone(changed: TensorInfo, without: str, says: str) -> None:
    why = check_tensors(model(changed, without=without))
    assert why
    assert says in why
    assert "scoring: tree" in why
