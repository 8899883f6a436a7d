"""Replays of queries that come again, `make load`: what kept answers save, and what kept cells could."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
from served import ROOT, Server

from qcls_gguf import Classifier, load_config
from qcls_gguf.bench.forward import sweep
from qcls_gguf.loaded_prompts import LoadedPrompts
from qcls_gguf.prompts.compiled import common_prefix

pytestmark = pytest.mark.load

N_QUERIES, N_KEPT = 2000, 200
N_FEW = 4
SIZES = (1, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384)
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


class KeptCells:
    """The tokens of the last queries, least recently used first to go, as a radix tree has them.

    A query that begins with all of another one needs no room beside it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self.most_cells = 0

    def found(self, tokens: tuple[int, ...]) -> int:
        """How many of a query's first tokens are kept; from then on all are."""
        n = max((common_prefix(each, tokens) for each in self._kept), default=0)
        for each in [each for each in self._kept if each == tokens[: len(each)]]:
            del self._kept[each]
        longer = next((each for each in self._kept if each[: len(tokens)] == tokens), tokens)
        self._kept[longer] = None
        self._kept.move_to_end(longer)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        self.most_cells = max(self.most_cells, len({each[:n] for each in self._kept for n in range(1, len(each) + 1)}))
        return n


class KeptAnswers:
    """Whether a query's answer is kept, as `--keep-results` keeps them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, None] = OrderedDict()

    def found(self, query: str) -> bool:
        is_kept = query in self._kept
        self._kept[query] = None
        self._kept.move_to_end(query)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return is_kept


def query_tokens(classifier: Classifier, query: str) -> tuple[int, ...]:
    """The tokens behind the cached prefix that depend on the query and on nothing behind it."""
    prompt = classifier.prompts[0]
    tokenize = classifier.engine.model.tokenize
    whole, open_ended = (
        tokenize(text, parse_special=False).tolist()
        for text in (prompt.before + query + prompt.after, prompt.before + query)
    )
    return tuple(whole[len(prompt.stable) : common_prefix(whole, open_ended)])


def n_rooms(classifier: Classifier) -> int:
    """For how many queries the sequences of a context are enough, beside those that the configuration needs."""
    active = classifier.configured.active
    plan = active.templates.of_query(6)
    assert plan is not None
    return int((256 - active.n_prefixes - plan.decode.plan.n_leaves) // active.n_prefixes)


@pytest.mark.parametrize("name", ["fashion-8", "fashion-8-joint"])
def test_what_kept_cells_would_save(name: str) -> None:
    """Tokens by the plans' counts, time by a measured curve of decodes; looking up, keeping and dropping cells costs
    nothing here, so that this is the most that it could save.
    """
    config = load_config(ROOT / f"configs/{name}.yaml")
    runtime = replace(config.runtime, n_threads=1, question_cells=2048, question_prefixes=32)
    logs = {"Zipf": zipf(), "typing": [text for query in ROWS[:200] for text in typed(query)]}
    with Classifier.from_config(replace(config, runtime=runtime)) as classifier:
        check(classifier)
        sizes = [n for n in SIZES if n <= classifier.engine.context.n_batch]
        curve = sweep(classifier, sizes, 6, lambda: None)
        least = [float(np.percentile(curve[n], 25)) for n in sizes]
        print(f"\n{name}: decodes, ms by tokens: {dict(zip(sizes, np.round(least, 2).tolist(), strict=True))}")
        n_copies, most = classifier.configured.active.n_prefixes, n_rooms(classifier)
        for log, queries in logs.items():
            tokens = [query_tokens(classifier, query) for query in queries]
            fed = np.array([classifier.plan_counts(query).n_tokens_new for query in queries])

            def shown(what: str, n: Sequence[int] | np.ndarray, fed: np.ndarray = fed) -> str:
                ms = np.where(np.array(n) > 0, np.interp(n, sizes, least), 0.0)
                whole_ms = np.interp(fed, sizes, least).mean()
                return f"{what} {np.mean(n):.1f} tokens {ms.mean():.2f} ms ({ms.mean() / whole_ms:.2f})"

            answers = KeptAnswers(N_KEPT)
            is_kept = np.array([answers.found(query) for query in queries])
            print(f"  {log}: {len(queries)} queries: {shown('nothing kept', fed)}; "
                  f"{shown(f'{N_KEPT} answers', np.where(is_kept, 0, fed))}")  # fmt: skip
            for n_kept in (N_FEW, most):
                cells = KeptCells(n_kept)
                rest = fed - n_copies * np.array([cells.found(each) for each in tokens])
                print(f"    cells of {n_kept} queries ({n_copies * cells.most_cells} cells, "
                      f"{n_copies * n_kept} sequences): {shown('alone', rest)}, "
                      f"{shown('with the answers', np.where(is_kept, 0, rest))}")  # fmt: skip


def check(classifier: Classifier) -> None:
    """The counts are those of plans in which what two queries begin alike with is cached."""
    for before, now in (("red", "red dress"), ("red dress", "red dress for"), ("blue", "red")):
        with continued(classifier, before, now) as loaded:
            n_found = common_prefix(query_tokens(classifier, before), query_tokens(classifier, now))
            n_saved = n_found * classifier.configured.active.n_prefixes
            assert loaded.classify(now).counts.n_tokens_new == classifier.plan_counts(now).n_tokens_new - n_saved
