"""The parts of a benchmark: queries, loops, groups of classifiers, the state of a GPU. No time is asserted."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeModel, OpenClassifier, WriteConfig
from oracle import COLOR, PromptSpec

from qcls_gguf import Classifier, load_config
from qcls_gguf.bench.classifiers import (
    MeasuredClassifier,
    QuerySource,
    classifier_groups,
    config_names,
    fits_in_memory,
    started_classifier,
)
from qcls_gguf.bench.load import Workload, send_in_turns
from qcls_gguf.bench.records import Memory
from qcls_gguf.bench.workloads import QuerySet, generated_queries, least_tokens, mixed_queries
from qcls_gguf.config.schema import Config
from qcls_gguf.errors import QclsError
from qcls_gguf.model import placement
from qcls_gguf.native import Device, NativeModel
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.system.timing import STAGES

CONFIGS = Path(__file__).parents[2] / "configs"
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
    for samples in (workload.samples for workload in workloads):
        assert len(samples.total_ms) == len(samples.counts) == 3
        for i, total in enumerate(samples.total_ms):
            assert total >= sum(samples.stage_ms[stage][i] for stage in STAGES)


def test_names_tell_configurations_apart() -> None:
    configs = [*(load_config(CONFIGS / f"{name}.yaml") for name in ("fashion-8", "fashion-8-joint", "fashion-8"))]
    assert config_names(configs) == ["fashion-8", "fashion-8-joint", "fashion-8 (2)"]


@pytest.mark.parametrize("together", [True, False])
def test_classifiers_are_opened_as_memory_allows(
    together: bool, make_model: MakeModel, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[Config] = [load_config(write_config(make_model(), SPECS[:n])) for n in (1, 2, 3)]
    if not together:
        monkeypatch.setattr("qcls_gguf.bench.classifiers.available_bytes", lambda: 1 << 10)
    queries = QuerySet(name="q", queries=("red dress", "coat"))
    source = QuerySource(queries=queries, lengths=(), first_batch=1, largest_batch=2)
    opener = ClassifierOpener(offline=True)
    opened: list[Classifier] = []
    sizes = []
    for group in classifier_groups(configs, lambda name, config: started_classifier(name, config, source, opener)):
        sizes.append(len(group))
        opened += [measured.classifier for measured in group]
        for measured in group:
            assert measured.first_request_ms > 0
            assert len(measured.classifier.classify("red dress").labels) == len(measured.classifier.prompts)
    assert sizes == ([3] if together else [1, 1, 1])
    for classifier in opened:
        with pytest.raises(QclsError, match="closed"):
            classifier.classify("red dress")


@pytest.mark.parametrize("n_others", [0, 2])
@pytest.mark.parametrize(("after", "n_more"), [(9.0, 1), (3.3, 1), (5.7, 2), (3.1, 0)])
def test_a_gpu_holds_more_classifiers_in_what_the_first_left(
    after: float, n_more: int, n_others: int, classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first took 2 GiB; each further one is counted as 2.4, and 1 GiB stays free. Other GPUs do not count."""
    gib = 1 << 30
    free = [int(after * gib)] + [80 * gib] * n_others
    devices = [Device(kind="GPU", name="a", free_bytes=each, total_bytes=80 * gib) for each in free]
    monkeypatch.setattr(placement, "gpus", lambda: devices)
    monkeypatch.setattr(classifier.engine.model, "placement", placement.Placement((9,)))
    info = dataclasses.replace(classifier.model, n_gpu_layers=9)
    memory = Memory.model_construct(vram_free_before_bytes=sum(free) + 2 * gib, vram_free_after_bytes=sum(free))
    first = MeasuredClassifier(name="s", classifier=classifier, query_sets=(), first_request_ms=0.0, memory=memory)
    with monkeypatch.context() as patch:
        patch.setattr(classifier.core, "info", info)
        assert fits_in_memory(first, n_more) == (after >= 1 + 2.4 * n_more)
    assert fits_in_memory(first, n_more)  # on the CPU the memory of a GPU does not matter
