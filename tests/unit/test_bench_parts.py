"""Which weights a decode reads, the roofline by made-up rates, and the least tokens by an obvious count."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_prompts import made_prompt

from qcls_gguf.bench.records import RooflineRecord
from qcls_gguf.bench.roofline import count_weights
from qcls_gguf.bench.workloads import least_tokens
from qcls_gguf.model.header import GgufHeader, Scalar, TensorInfo
from qcls_gguf.prompts.compiled import Prompt

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
) -> RooflineRecord:
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
    return count_weights(header, tensors, head=head, depth=depth)


def test_without_a_head_the_layers_count() -> None:
    found = weights()
    assert found.weight_bytes == 2 * (10 + 100 + 200 + 100 + 200)
    assert found.n_weights_per_token == 100 + 200 + 100
    assert found.n_weights_per_row == 200  # of the last layer, after attention
    assert found.weight_type == "Q8_0"


def test_with_a_head_its_rows_count_too() -> None:
    assert weights(head=True).n_weights_per_row == 200 + 1000
    assert weights(head=True).weight_bytes == weights().weight_bytes + 2000
    tied = weights("output.weight", head=True)
    assert (tied.n_weights_per_row, tied.weight_bytes) == (1200, weights(head=True).weight_bytes)
    assert weights("output.weight") == weights()


def test_above_the_depth_of_all_heads_no_layer_counts() -> None:
    found = weights(depth=1)
    assert found.weight_bytes == 2 * (10 + 100 + 200)
    assert (found.n_weights_per_token, found.n_weights_per_row) == (100, 200)  # the last layer that is computed
    assert weights(depth=2) == weights()


def test_of_experts_the_used_share_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TENSORS, "blk.0.ffn_up_exps.weight", (10, 80, Q8_0))
    found = weights(scalars={"a.expert_count": 8, "a.expert_used_count": 2})
    assert found.n_weights_per_token == weights().n_weights_per_token - 800 + 200
    assert found.weight_bytes == weights().weight_bytes - 1600 + 400


def test_the_roofline_is_the_larger_of_the_two() -> None:
    counts = {"weight_bytes": 1_000_000, "n_weights_per_token": 500_000, "n_weights_per_row": 100_000}
    found = RooflineRecord.model_validate(
        {**counts, "weight_type": "Q8_0", "bytes_per_s": 1e9, "operations_per_s": 1e10}
    )
    assert found.ms(n_tokens=20, n_rows=5) == pytest.approx(2.1)
    assert found.ms(n_tokens=1, n_rows=1) == pytest.approx(1.0)


def test_without_rates_there_is_no_least_time() -> None:
    assert weights().ms(n_tokens=1, n_rows=1) is None


LABELS = ((1,), (2,)), ((1, 2), (1, 3), (4,)), ((1, 2, 3), (1, 2, 4), (1, 5))


SHORT = st.lists(st.integers(1, 2), max_size=3).map(tuple)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Prompt], list[list[list[int]]]]:
    prompts = draw(
        st.lists(
            st.builds(made_prompt, st.just("p"), st.sampled_from(LABELS), SHORT, SHORT, SHORT), min_size=1, max_size=4
        )
    )
    fragment = st.lists(st.integers(1, 2), min_size=1, max_size=4)
    queries = draw(st.lists(st.lists(fragment, min_size=len(prompts), max_size=len(prompts)), min_size=1, max_size=3))
    return prompts, queries


@given(cases())
def test_least_tokens_by_walking_every_label(case: tuple[list[Prompt], list[list[list[int]]]]) -> None:
    """A score of a label reads the state before each of its tokens at which labels part."""
    prompts, queries = case
    fed = set()
    for fragments in queries:
        for prompt, fragment in zip(prompts, fragments, strict=True):
            base = prompt.opening + tuple(fragment) + prompt.closing
            for label in prompt.label_tokens:
                for n in range(len(label)):
                    if (
                        len({other[n] for other in prompt.label_tokens if other[:n] == label[:n] and len(other) > n})
                        > 1
                    ):
                        path = base + label[:n]
                        fed.add(path)
                        for end in range(1, len(path)):
                            if not any(other.prefix[:end] == path[:end] for other in prompts):
                                fed.add(path[:end])
    assert least_tokens(prompts, queries) == len(fed)
