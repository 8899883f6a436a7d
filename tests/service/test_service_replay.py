"""Replays of queries that come again, `make load`: what kept answers save, and what kept queries save."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
from served import ROOT, Server

from qcls_gguf import Classifier, load_config

pytestmark = pytest.mark.load

N_QUERIES, N_KEPT = 2000, 200
N_QUERIES_KEPT = (1, 4, 16)
ROWS = [json.loads(line)["query"] for line in (ROOT / "models/tiny/heldout.jsonl").read_text().splitlines()]


def typed(query: str) -> Iterator[str]:
    """A query as somebody types it, word by word."""
    words = query.split()
    for n in range(1, len(words) + 1):
        yield " ".join(words[:n])


def zipf() -> list[str]:
    """Queries of which the n-th most frequent comes 1/n as often as the first."""
    weights = 1 / np.arange(1, len(ROWS) + 1)
    chosen = np.random.default_rng(0).choice(len(ROWS), N_QUERIES, p=weights / weights.sum())
    return [ROWS[n] for n in chosen]


@pytest.mark.parametrize("log", ["zipf", "typing"])
def test_kept_answers(log: str) -> None:
    queries = zipf() if log == "zipf" else [text for query in ROWS[:200] for text in typed(query)]
    for n_kept in (0, N_KEPT):
        with Server("--log-format", "none", "--keep-results", str(n_kept)) as server:
            ms = []
            for query in queries:
                began = perf_counter()
                assert server.classify(query=query).status_code == 200
                ms.append((perf_counter() - began) * 1e3)
            n_found = server.metric("qcls_results_found_total")
            memory = server.metric("process_resident_memory_bytes") / 2**20
        share = n_found / len(queries)
        print(f"{log}: {len(queries)} queries, {n_kept} kept: {share:.0%} found, mean {np.mean(ms):.1f} ms, "
              f"p50 {np.median(ms):.1f}, {memory:.0f} MiB")  # fmt: skip


def typing(n_people: int) -> list[str]:
    """Queries as several people type them at once, who take turns at random."""
    rng = random.Random(0)
    people = [[text for query in ROWS[n : n + 12] for text in typed(query)] for n in range(0, 12 * n_people, 12)]
    order = [n for n, texts in enumerate(people) for _ in texts]
    rng.shuffle(order)
    left = [iter(texts) for texts in people]
    return [next(left[n]) for n in order]


@pytest.mark.parametrize("name", ["mission", "fashion-8", "fashion-8-joint"])
def test_kept_queries(name: str) -> None:
    """Classifiers that keep some queries in turns with one that keeps none, one thread: time, and equal answers."""
    config = load_config(ROOT / f"configs/{name}.yaml")
    logs = {
        "different queries": random.Random(0).sample(ROWS, 300),
        "Zipf": zipf()[:300],
        "1 typing": typing(1)[:500],
        "4 typing": typing(4)[:500],
    }
    with ExitStack() as stack:
        classifiers = {}
        for n in (0, *N_QUERIES_KEPT):
            runtime = replace(config.runtime, n_threads=1, n_gpu_layers=0, kept_queries=n)
            classifiers[n] = stack.enter_context(Classifier.from_config(replace(config, runtime=runtime)))
        print(f"\n{name}")
        for log, queries in logs.items():
            ms = {n: np.zeros(len(queries)) for n in classifiers}
            fed = dict.fromkeys(classifiers, 0)
            for at, query in enumerate(queries):
                answers = []
                for n, classifier in classifiers.items():
                    result = classifier.classify(query)
                    ms[n][at], fed[n] = result.total_ms, fed[n] + result.counts.n_tokens_new
                    answers.append([(each.label, each.probability) for each in result.results])
                assert all(each == answers[0] for each in answers)
            print(f"  {log}, {len(queries)} requests: " + "; ".join(
                f"{n} kept: {fed[n] / len(queries):.1f} tokens, {ms[n].mean():.2f} ms, "
                f"{ms[n].sum() / ms[0].sum():.2f} of the time (median {np.median(ms[n] / ms[0]):.2f})"
                for n in classifiers
            ))  # fmt: skip
