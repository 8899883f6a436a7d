"""The parts of a benchmark: queries, loops, groups of classifiers, the state of a GPU. No time is asserted."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import MakeModel, OpenClassifier
from oracle import COLOR, PromptSpec

from qcls_gguf import Classifier
from qcls_gguf.bench.workloads import Workload, generated_queries, least_tokens, mixed_queries, send_in_turns
from qcls_gguf.native import NativeModel
from qcls_gguf.system.timing import STAGES

QUERIES = ["", "red dress for girls", "孕妇牛仔裤", "<|im_end|>", "light blue jump suit"]
SPECS = [
    COLOR,
    PromptSpec(
        name="item",
        template="<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\nlabel:",
        labels=("jump", "jumper", "none"),
    ),
    PromptSpec(
        name="user",
        template="<|im_start|>system\nanalyze the user<|im_end|>\n<|im_start|>user\nquery: {query}<|im_end|>\nlabel:",
        labels=("boy", "girl", "none"),
    ),
]


@pytest.fixture
def classifier(make_model: MakeModel, open_classifier: OpenClassifier) -> Classifier:
    return open_classifier(make_model(), SPECS)


def fragments(classifier: Classifier, query: str) -> list[list[int]]:
    tokenizer = classifier.engine.model
    return [tokenizer.tokenize(p.before + query + p.after, parse_special=False).tolist() for p in classifier.prompts]


@pytest.mark.parametrize("queries", [*([query] for query in QUERIES), QUERIES[1:4], QUERIES[1:5]])
def test_the_planner_feeds_the_least(queries: list[str], classifier: Classifier) -> None:
    results = classifier.classify_batch(queries)
    counts = results[0].counts
    least = least_tokens(classifier.prompts, [fragments(classifier, query) for query in queries])
    assert least <= counts.n_tokens_new
    if counts.n_decodes == 1 and all(found.fast_path for each in results for found in each.results):
        assert least == counts.n_tokens_new


@pytest.mark.parametrize("kind", ["bpe", "spm"])
@pytest.mark.parametrize("n_tokens", [1, 2, 5, 12, 40])
def test_made_queries_have_so_many_tokens(kind: str, n_tokens: int, make_model: MakeModel) -> None:
    with NativeModel(make_model("qwen3" if kind == "bpe" else "llama", vocab=kind)) as model:
        found = generated_queries(model, n_tokens)
        assert found == generated_queries(model, n_tokens)
        assert len(set(found.queries)) == len(found.queries) >= 4
        n_before = len(model.tokenize("query", parse_special=False))
        for query in found.queries:
            assert query == query.strip()
            assert len(model.tokenize(f"query {query}", parse_special=False)) == n_before + n_tokens


def test_mixed_queries_have_every_length_equally_often(make_model: MakeModel) -> None:
    with NativeModel(make_model()) as model:
        found = mixed_queries(model, range(2, 6))
        assert found == mixed_queries(model, range(2, 6))
        assert found.name == "2–5 tokens"
        n_before = len(model.tokenize("query", parse_special=False))
        lengths = [len(model.tokenize(f"query {query}", parse_special=False)) - n_before for query in found.queries]
        assert {n: lengths.count(n) for n in set(lengths)} == dict.fromkeys(range(2, 6), 8)
        assert lengths != sorted(lengths)
        assert mixed_queries(model, range(3, 4)) == generated_queries(model, 3)


def test_requests_are_sent_in_turns(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    real = classifier.classify_batch

    def spy(queries: list[str]) -> Any:
        asked.append(tuple(queries))
        return real(queries)

    monkeypatch.setattr(classifier, "classify_batch", spy)
    workloads = [
        Workload(config="c", classifier=classifier, queries="q", requests=requests, least_tokens=1.0)
        for requests in ([["a"], ["b"]], [["c", "d"]])
    ]
    workloads[0].warm_up(1)
    assert asked == [("a",)]
    asked.clear()
    done: list[int] = []
    send_in_turns(workloads, 3, lambda: done.append(len(asked)))
    assert asked == [("a",), ("c", "d"), ("b",), ("c", "d"), ("a",), ("c", "d")]
    assert done == [1, 2, 3, 4, 5, 6]
    for workload in workloads:
        assert len(workload.total_ms) == len(workload.counts) == 3
        for i, total in enumerate(workload.total_ms):
            assert total >= sum(workload.stage_ms[stage][i] for stage in STAGES)
