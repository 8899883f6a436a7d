"""What a comparison computes from answers and times, without a model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qcls_gguf.compare.method import Answer, WorkloadPrompt
from qcls_gguf.compare.methods import METHODS, check_methods, check_peers
from qcls_gguf.compare.peers import METHOD_NAMES, Peers
from qcls_gguf.compare.reader import LabelReader, log_normaliser
from qcls_gguf.compare.records import WinnerAgreement
from qcls_gguf.compare.statistics import Reference, agreement, latency
from qcls_gguf.compare.torch_rows import bucket_size, row_layout
from qcls_gguf.errors import ConfigError
from qcls_gguf.prompts.compiled import Prompt

DISTINCT = LabelReader(["red", "blue", "light blue"], [(1,), (2,), (3, 2)])
SHARED = LabelReader(["light blue", "light pink", "red"], [(3, 2), (3, 4), (1,)])
LOGITS = np.array([0.5, 2.0, -1.0, 1.5, 0.0])


def log_p(logits: np.ndarray, token: int, among: list[int]) -> float:
    return float(logits[token] - math.log(sum(math.exp(logits[other]) for other in among)))


def test_distinct_first_tokens_are_read_at_one_node() -> None:
    assert [tokens.tolist() for tokens in DISTINCT.edge_tokens] == [[1, 2, 3]]
    edges = [LOGITS[tokens] for tokens in DISTINCT.edge_tokens]
    assert DISTINCT.tree(edges) == pytest.approx([log_p(LOGITS, token, [1, 2, 3]) for token in (1, 2, 3)])
    joint = DISTINCT.joint(edges, [log_normaliser(LOGITS)])
    assert joint[:2] == pytest.approx([log_p(LOGITS, token, [0, 1, 2, 3, 4]) for token in (1, 2)])
    assert joint[2] is None  # its second token is not read
    assert DISTINCT.winner(DISTINCT.tree(edges)) == "red"


def test_shared_first_tokens_are_read_along_the_tree() -> None:
    other = LOGITS[::-1].copy()
    edges = [row[tokens] for row, tokens in zip((LOGITS, other), SHARED.edge_tokens, strict=True)]
    assert [SHARED.node_path(node) for node in SHARED.trie.read] == [(), (3,)]
    found = SHARED.tree(edges)
    first = log_p(LOGITS, 3, [1, 3])
    assert found == pytest.approx(
        [first + log_p(other, 2, [2, 4]), first + log_p(other, 4, [2, 4]), log_p(LOGITS, 1, [1, 3])]
    )
    assert sum(map(math.exp, found)) == pytest.approx(1)
    joint = SHARED.joint(edges, [log_normaliser(LOGITS), log_normaliser(other)])
    assert joint[0] == pytest.approx(log_p(LOGITS, 3, [*range(5)]) + log_p(other, 2, [*range(5)]))


def test_first_tokens_alone_tell_what_they_can() -> None:
    found = {1: -0.5, 2: -2.0, 3: -1.0}
    label, tree, joint = DISTINCT.first_tokens(found)
    assert (label, joint) == ("red", (-0.5, -2.0, None))
    assert tree == pytest.approx([log_p(np.array([0, -0.5, -2.0, -1.0]), token, [1, 2, 3]) for token in (1, 2, 3)])
    assert DISTINCT.first_tokens({2: -2.0}) == ("blue", None, (None, -2.0, None))
    assert DISTINCT.first_tokens({9: -0.1}) == (None, None, (None, None, None))
    assert SHARED.first_tokens({3: -0.1, 1: -3.0}) == (None, None, (None, None, -3.0))
    assert SHARED.first_tokens({3: -3.1, 1: -1.0})[0] == "red"


def test_a_ratio_and_its_range_are_quantiles_of_the_rounds_ratios() -> None:
    ours = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [4.0, 2.0, 2.0]])
    found = latency(ours * np.array([[2.0], [3.0], [4.0]]), ours)
    assert found.p50_ms == 6.0
    assert found.ratio_to_qcls == 3.0
    assert found.ratio_range == pytest.approx([2.2, 3.8])
    # a slow round of both, whose times a ratio of all medians would mix up with those of the others
    slow = ours * np.array([[1.0], [100.0], [1.0]])
    assert latency(slow * np.array([[2.0], [3.0], [4.0]]), slow).ratio_to_qcls == 3.0


def test_agreement_counts_winners_and_the_largest_differences() -> None:
    references = [
        Reference(label="a", joint_label="b", joint=(-1.0, -0.5), tree=(-0.7, -0.7)),
        Reference(label="b", joint_label="b", joint=(-3.0, -0.1), tree=(-3.0, -0.05)),
    ]
    answers = [
        Answer(label="a", tree=(-0.6, -0.8), joint=(-1.25, None)),
        Answer(label=None, joint=(None, -0.2)),
    ]
    found = agreement(answers, references)
    assert found.agreement == WinnerAgreement(scoring=1.0, joint=0.0, n_answers=1, n_without_answer=1)
    assert found.largest_log_probability_difference == 0.25
    assert (found.n_log_probabilities, found.n_tree_log_probabilities) == (2, 2)
    assert found.largest_tree_difference == pytest.approx(0.1)
    nobody = agreement([Answer(label=None)] * 2, references)
    assert nobody.agreement == WinnerAgreement(scoring=None, joint=None, n_answers=0, n_without_answer=2)
    assert nobody.largest_log_probability_difference is None


@pytest.mark.parametrize(("n", "size"), [(1, 8), (8, 8), (9, 16), (128, 128), (129, 256), (300, 384)])
def test_buckets_are_the_smallest_that_hold_the_tokens(n: int, size: int) -> None:
    assert bucket_size(n) == size


def test_methods_are_named_and_ours_is_always_there() -> None:
    assert check_methods(("naive",)) == ("qcls", "naive")
    assert tuple(METHODS) == METHOD_NAMES
    assert METHOD_NAMES[0] == "qcls"
    with pytest.raises(ConfigError, match="`method` nave: is not one of qcls, naive"):
        check_methods(("nave",))


@pytest.mark.parametrize(
    ("peers", "message"),
    [
        (Peers(ollama="http://127.0.0.1:11434"), "`ollama` and `ollama_model` belong together"),
        (Peers(llama_server="127.0.0.1:8080"), "`llama_server`: '127.0.0.1:8080' is not a server's address"),
        (Peers(llama_server="http://127.0.0.1:x"), "is not a server's address"),
    ],
)
def test_options_that_lead_nowhere_are_refused(peers: Peers, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_peers(peers)


def prompt_of(reader: LabelReader) -> WorkloadPrompt:
    compiled = Prompt(
        name="p",
        labels=reader.labels,
        label_tokens=reader.paths,
        trie=reader.trie,
        before="",
        after="",
        head=(),
        stable=(),
        tail=(9,),
    )
    return WorkloadPrompt(template="{query}", label_prefix="", compiled=compiled, reader=reader)


def test_a_batch_has_a_row_for_each_path_that_scores_read() -> None:
    """`light` is fed once, behind the prompt of the second reader, and both its reads lie in that one row."""
    layout = row_layout([prompt_of(DISTINCT), prompt_of(SHARED)])
    assert [(row.prompt, row.path) for row in layout.rows] == [(0, ()), (1, (3,))]
    assert layout.row_of_read.tolist() == [0, 1, 1]
    assert layout.depth_of_read.tolist() == [0, 0, 1]
    assert layout.read_of_edge.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert layout.token_of_edge.tolist() == [1, 2, 3, 3, 1, 2, 4]
