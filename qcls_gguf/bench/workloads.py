"""The queries of a benchmark, of a file or made of words with a given number of tokens; their requests, and what these
took.

Also the least tokens that any plan must feed for them, from the prompts alone: nothing is taken from the planner, so
that the planner can be judged by it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns

from ..classifier import Classifier
from ..config.words import counted
from ..data.rows import PLAIN, Reading, all_queries
from ..errors import ConfigError
from ..prompts.compiled import Prompt, Tokenizer
from ..score.result import Counts
from ..system.timing import STAGES

N_GENERATED = 16
"""Queries that are made of one number of tokens."""
_N_OF_MIXED = 8
"""Queries of each of several numbers."""
_BEFORE = "query"
_WORDS = """
red dress for girls with long sleeves and pockets blue jeans slim fit for men warm wool coat in dark green size
large cheap cotton shirt white linen summer trousers black leather jacket on sale soft grey cashmere jumper for
a wedding in spring light pink silk skirt plus size office wear
""".split()  # noqa: SIM905  (a word a line would be 50 lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySet:
    """Queries that are measured together, and their name."""

    name: str
    queries: tuple[str, ...]


def file_queries(source: str, reading: Reading = PLAIN) -> QuerySet:
    """The queries of a file, or of standard input for `-`.

    Raises ConfigError for one that is empty or not UTF-8.
    """
    different = dict.fromkeys(all_queries(source, reading))  # equal queries of a batch would be computed once
    if not different:
        raise ConfigError(f"`queries` {source}: has no queries: give one a line")
    return QuerySet(name="stdin" if source == "-" else Path(source).name, queries=tuple(different))


def made_queries(tokenizer: Tokenizer, lengths: range) -> QuerySet:
    """Different queries of so many tokens after a word, all lengths equally often, always the same queries.

    Raises ConfigError where the built-in words do not give one of the lengths.
    """
    one = len(lengths) == 1
    queries: list[str] = []
    for n in lengths:
        cuts = dict.fromkeys(_cut(tokenizer, start, n) for start in range(len(_WORDS)))
        texts = [text for text in cuts if text]
        if not texts:
            raise ConfigError(
                f"`query_tokens` {n}: this model's tokenizer makes no text of {n} tokens from the built-in words: "
                "choose another number, or give queries with `queries`"
            )
        queries += texts[: N_GENERATED if one else _N_OF_MIXED]
    if not one:
        random.Random(0).shuffle(queries)
    name = counted(lengths[0], "token") if one else f"{lengths[0]}–{lengths[-1]} tokens"
    return QuerySet(name=name, queries=tuple(queries))


def _cut(tokenizer: Tokenizer, start: int, n_tokens: int) -> str | None:
    """The words from number `start` on, cut where they have n_tokens tokens; None where no cut has so many."""

    def tokens_after_word(text: str) -> list[int]:
        """The tokens of a text after a word and a space, where most templates have the query."""
        tokens = tokenizer.tokenize(f"{_BEFORE} {text}", parse_special=False)
        return [int(token) for token in tokens[n_before:]]

    n_before = len(tokenizer.tokenize(_BEFORE, parse_special=False))
    text = " ".join(_WORDS[(start + i) % len(_WORDS)] for i in range(n_tokens))  # each word has a token at least
    tokens = tokens_after_word(text)[:n_tokens]
    cut = b"".join(tokenizer.piece(token)[0] for token in tokens).decode(errors="ignore").strip()
    return cut if len(tokens_after_word(cut)) == n_tokens else None


def requests_of(queries: Sequence[str], batch: int) -> list[list[str]]:
    """The requests of one cycle, `batch` consecutive queries in each: n requests for n queries."""
    return [[queries[(i * batch + j) % len(queries)] for j in range(batch)] for i in range(len(queries))]


def least_tokens(prompts: Sequence[Prompt], fragments: Iterable[Sequence[Sequence[int]]]) -> int:
    """The distinct token paths from position 0 to every hidden state that a score reads, without stored ones.

    fragments: for each query, for each prompt, the tokens of before + query + after. The last token of a stored prefix
    counts if a score reads its hidden state, because only its keys and values are stored.
    """
    stored = {path for prompt in prompts for path in _path_prefixes(prompt.prefix)}
    needed: set[tuple[int, ...]] = set()
    read: set[tuple[int, ...]] = set()
    for query_fragments in fragments:
        for prompt, fragment in zip(prompts, query_fragments, strict=True):
            ends = [(*prompt.opening, *fragment, *prompt.closing)]
            for parent, token in prompt.trie.fed:
                ends.append((*ends[parent], token))
            for node in prompt.trie.read:
                read.add(ends[node])
                needed.update(_path_prefixes(ends[node]))
    return len((needed - stored) | read)


def _path_prefixes(path: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    return (path[:n] for n in range(1, len(path) + 1))


@dataclass(slots=True, kw_only=True)
class Workload:
    """Requests of one size to one classifier, sent in a cycle, and what they took; a value for each in every list."""

    config: str
    """the name of the classifier's configuration"""
    classifier: Classifier
    queries: str
    """the name of the queries"""
    requests: list[list[str]]
    """the queries of each"""
    least_tokens: float
    """tokens that any plan must feed for a request, on average"""
    total_ms: list[float] = field(default_factory=list)
    """from the call until the answer"""
    stage_ms: dict[str, list[float]] = field(default_factory=lambda: {stage: [] for stage in STAGES})
    counts: list[Counts] = field(default_factory=list)
    n_reused: int = 0
    """decodes that found their graph built"""
    n_cuda_graphs: int | None = None
    """CUDA graphs that were launched; None in a build without CUDA"""

    @property
    def batch(self) -> int:
        """The number of queries in a request."""
        return len(self.requests[0])

    def warm_up(self, n: int) -> None:
        """Send n requests that are not counted."""
        for i in range(n):
            self.classifier.classify_batch(self.requests[i % len(self.requests)])

    def send(self, number: int) -> None:
        """Send a request by its number, from 0, and keep what it took."""
        context = self.classifier.engine.context
        before = context.counters()
        begun = perf_counter_ns()
        results = self.classifier.classify_batch(self.requests[number % len(self.requests)])
        self.total_ms.append((perf_counter_ns() - begun) / 1e6)
        after = context.counters()
        self.n_reused += after.n_graphs_reused - before.n_graphs_reused
        if after.n_cuda_graphs >= 0:
            self.n_cuda_graphs = (self.n_cuda_graphs or 0) + after.n_cuda_graphs - before.n_cuda_graphs
        for stage, ms in results[0].stage_ms.items():
            self.stage_ms[stage].append(ms)
        self.counts.append(results[0].counts)


def send_in_turns(workloads: Sequence[Workload], n_requests: int, on_request: Callable[[], None]) -> None:
    """Send n_requests of each workload, in turns, so that a machine that becomes slower or faster affects all alike.

    The next request is sent when the answer to the last one is there.
    """
    for number in range(n_requests):
        for workload in workloads:
            workload.send(number)
            on_request()
