"""Which weights a decode reads, and the least tokens by an obvious count."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_prompts import made_prompt

from qcls_gguf.bench.benchmark import weight_bytes
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
