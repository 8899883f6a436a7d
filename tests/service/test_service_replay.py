"""Replays of queries that come again, `make load`: what kept answers save, and what kept cells could."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
from served import ROOT, Server

from qcls_gguf import Classifier, load_config
from qcls_gguf.loaded_prompts import LoadedPrompts
from qcls_gguf.prompts.compiled import common_prefix

pytestmark = pytest.mark.load

CONFIGS = ("mission", "fashion-8", "fashion-8-joint")
N_QUERIES, N_KEPT = 1000, 200
N_TYPED = 25
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


def continued(classifier: Classifier, before: str, query: str) -> LoadedPrompts:
    """The configured prompts, with what a former query and this one begin alike already cached."""
    compiled = classifier.configured.active.prompts
    tokenize = classifier.engine.model.tokenize
    prompts = []
    for prompt in compiled.prompts:
        texts = (f"{prompt.before}{each}{prompt.after}" for each in (before, query))
        was, now = (tokenize(text, parse_special=False).tolist() for text in texts)
        n = max(common_prefix(was, now), len(prompt.stable))
        prompts.append(replace(prompt, stable=tuple(now[:n])))
    return classifier.prompt_set(replace(compiled, prompts=tuple(prompts)))


@pytest.mark.parametrize("name", CONFIGS)
def test_what_cells_of_queries_could_save(name: str) -> None:
    """The least time with and without the cells of the query before it, none of which is counted for keeping them."""
    config = load_config(ROOT / f"configs/{name}.yaml")
    runtime = replace(config.runtime, n_threads=1, question_cells=8192, question_prefixes=64)
    whole_ms, rest_ms, whole, rest = 0.0, 0.0, 0, 0
    with Classifier.from_config(replace(config, runtime=runtime)) as classifier:
        for query in [row for row in ROWS if 2 <= len(row.split()) <= 7][:N_TYPED]:
            for before, now in pairwise(typed(query)):
                with continued(classifier, before, now) as loaded:
                    took = least_ms([classifier.configured, loaded], now)
                    whole_ms, rest_ms = whole_ms + took[0], rest_ms + took[1]
                    whole += classifier.classify(now).counts.n_tokens_new
                    rest += loaded.classify(now).counts.n_tokens_new
    print(f"{name}: {rest / whole:.2f} of the tokens, {rest_ms / whole_ms:.2f} of the time")
    assert rest < whole


def least_ms(sets: Sequence[LoadedPrompts], query: str) -> list[float]:
    found: list[list[float]] = [[] for _ in sets]
    for _ in range(4):
        for ms, loaded in zip(found, sets, strict=True):
            began = perf_counter()
            loaded.classify(query)
            ms.append((perf_counter() - began) * 1e3)
    return list(map(min, found))
