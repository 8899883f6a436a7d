"""Which weights a decode reads."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from qcls_gguf.bench.benchmark import weight_bytes
from qcls_gguf.model.header import GgufHeader, Scalar, TensorInfo

F32, Q8_0 = 0, 8
TENSORS = {
    "token_embd.weight": (10, 100, Q8_0),
    "output.weight": (10, 100, Q8_0),
    "output_norm.weight": (10, None, F32),
    "blk.0.attn_q.weight": (10, 10, Q8_0),
    "blk.0.ffn_up.weight": (10, 20, Q8_0),
    "blk.1.attn_q.weight": (10, 10, F32),
    "blk.1.ffn_up.weight": (10, 20, Q8_0),
}


def weights(
    *without: str, head: bool = False, depth: int = 0, scalars: Mapping[str, Scalar] = MappingProxyType({})
) -> int:
    tensors = [
        TensorInfo(
            name=name, shape=(n,) if m is None else (n, m), ggml_type=kind, offset=0, n_bytes=n * (m or 1) * 2
        )
        for name, (n, m, kind) in TENSORS.items()
        if name not in without
    ]  # fmt: skip
    header = GgufHeader(
        path=Path("m.gguf"),
        stamp=("m.gguf", 0, 0, 0),
        scalars={"general.architecture": "a", "a.block_count": 2, **scalars},
        tensors={},
    )
    return weight_bytes(header, tensors, head=head, depth=depth)


def test_the_layers_count_and_the_head_where_logits_are_computed() -> None:
    assert weights() == weights("output.weight") == 2 * (10 + 100 + 200 + 100 + 200)
    assert weights(head=True) == weights("output.weight", head=True) == weights() + 2000


def test_above_the_depth_of_all_heads_no_layer_counts() -> None:
    assert weights(depth=1) == 2 * (10 + 100 + 200)
    assert weights(depth=2) == weights()


def test_of_experts_the_used_share_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    without = weights()
    monkeypatch.setitem(TENSORS, "blk.0.ffn_up_exps.weight", (10, 80, Q8_0))
    assert weights(scalars={"a.expert_count": 8, "a.expert_used_count": 2}) == without + 400
