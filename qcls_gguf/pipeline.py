"""Requests on an engine: queries to tokens, one decode, scores, answers, with the time of every stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .active_set import ActiveSet, Item
from .config.schema import RuntimeConfig
from .config.words import shown
from .decodes import Decodes, Tokenized, additions_of_item, decodes_of, filled_up
from .engine.engine import Engine, Float32Array
from .errors import DecodeError, PlanError, ScoreError
from .plan.planner import IndexArray
from .score.result import Counts, ModelInfo, PromptResult, Result
from .timing import Stopwatch

MAX_QUERIES = 10_000
"""Queries of one call, during which nobody else is answered."""
_BYTES_A_TOKEN = 32
"""For max_query_bytes: auto. Text has 3 to 6 bytes a token; only long runs of one character have more than these."""


def check_queries(queries: Sequence[object], runtime: RuntimeConfig) -> None:
    """Raise PlanError for what is no query, or too much to tokenise; takes no time that grows with a query's length."""
    if len(queries) > MAX_QUERIES:
        raise PlanError(f"{len(queries)} queries in one call, at most {MAX_QUERIES} are answered: ask in several calls")
    most = runtime.max_query_bytes
    most = runtime.max_query_tokens * _BYTES_A_TOKEN if most == "auto" else most
    for query in queries:
        if not isinstance(query, str):
            raise PlanError(f"a query is text, not {type(query).__name__}: {shown(query)}")
        try:
            # Of more characters than bytes are allowed, the bytes are not counted.
            n, unit = (len(query), "characters") if len(query) > most else (len(query.encode()), "bytes")
        except UnicodeEncodeError as e:
            raise PlanError(
                f"character {e.start} of the query is not valid Unicode ({e.reason}): write the text in UTF-8"
            ) from None
        if n > most:
            raise PlanError(
                f"the query has {n} {unit}, more than runtime.max_query_bytes: {most} bytes: shorten it or raise the "
                "limit"
            )


@dataclass(frozen=True, slots=True)
class Prepared:
    """Items whose decodes are planned; they are open as long as their sets are."""

    items: Sequence[Item]
    decodes: Decodes
    watch: Stopwatch

    @property
    def n_decodes(self) -> int:
        """Decodes that they take."""
        return len(self.decodes.plans)

    @property
    def n_tokens(self) -> int:
        """Tokens that they feed."""
        return sum(decode.plan.n_tokens for decode in self.decodes.plans)


class Pipeline:
    """Answers items, all in one decode where the limits allow it. One thread at a time.

    A second thread may `tokenize` and `prepare` the next items while this one computes.
    """

    def __init__(self, engine: Engine, model: ModelInfo, max_query_tokens: int) -> None:
        self._engine = engine
        self._model = model
        self._max_query_tokens = max_query_tokens

    def run(self, items: Sequence[Item], *, as_new: bool = False) -> list[Result]:
        """A result for each item. Raises PlanError before anything is computed, DecodeError, ScoreError.

        as_new: feed all of each query, also where a kept one begins like it, and keep none.
        """
        watch = Stopwatch()
        tokenized = [self.tokenize(item) for item in items]
        watch.mark("tokenize")
        decodes = decodes_of(tokenized, self._engine, from_kept=not as_new)
        watch.mark("plan")
        return self._compute(items, decodes, watch)

    def prepare(self, tokenized: Sequence[Tokenized], *, on_rungs: bool = False) -> Prepared:
        """Plan the decodes of some items, which feed all of each query. Raises PlanError for nothing to feed.

        on_rungs: fill the decodes up, so that shapes repeat.
        """
        watch = Stopwatch()
        decodes = decodes_of(tokenized, self._engine)
        if on_rungs:
            decodes = filled_up(decodes, self._engine)
        watch.mark("plan")
        return Prepared([each.item for each in tokenized], decodes, watch)

    def compute(self, prepared: Prepared) -> list[Result]:
        """A result for each item of a plan, which is used once. Raises DecodeError, ScoreError."""
        prepared.watch.go_on()
        return self._compute(prepared.items, prepared.decodes, prepared.watch)

    def _compute(self, items: Sequence[Item], decodes: Decodes, watch: Stopwatch) -> list[Result]:
        hidden, rows = self._decode(decodes, watch)
        if decodes.order is not None:
            rows = _by_item(rows, items, decodes.order)
        try:
            answers = _answers(items, hidden, rows, decodes.fast_path)
        except ScoreError:
            self._engine.restore()
            raise
        watch.mark("score")
        counts = _counts(len(items), decodes)
        return [
            Result(
                query=query,
                total_ms=watch.total_ms,
                stage_ms=dict(watch.stage_ms),
                counts=counts,
                results=answer,
                model=self._model,
            )
            for (_, query), answer in zip(items, answers, strict=True)
        ]

    def check(self, active: ActiveSet, query: str) -> None:
        """Raise PlanError for a query that `run` would refuse; nothing is computed."""
        additions_of_item(self.tokenize((active, query)))

    def counts(self, active: ActiveSet, query: str) -> Counts:
        """What `run` would feed and read for a query all of which is fed; nothing is computed. Raises PlanError as
        `run` does.
        """
        return _counts(1, decodes_of([self.tokenize((active, query))], self._engine))

    def tokenize(self, item: Item) -> Tokenized:
        """The tokens of each distinct fragment of an item's set with its query in it.

        Raises PlanError for a query with too many of them.
        """
        active, query = item
        if not active.is_open:
            raise DecodeError("this prompt set is closed: ask the classifier for it again")
        found = []
        for (before, after), n_empty in active.prompts.fragments.items():
            tokens = self._engine.model.tokenize(before + query + after, parse_special=False)
            if len(tokens) > n_empty + self._max_query_tokens:
                raise PlanError(
                    f"the query has {len(tokens) - n_empty} tokens ({len(query)} characters), more than "
                    f"runtime.max_query_tokens: {self._max_query_tokens}: shorten it or raise the limit"
                )
            found.append(tokens)
        return Tokenized(item, found)

    def _decode(self, decodes: Decodes, watch: Stopwatch) -> tuple[Float32Array, IndexArray]:
        """The hidden states of all decodes, and in which row is that of each edge of the label tries."""
        hidden, rows, n_rows = [], [], 0
        is_one = len(decodes.plans) == 1
        for decode, token, kept in zip(decodes.plans, decodes.tokens, decodes.kept, strict=True):
            decoded = self._engine.decode(decode.plan, decode.leaf_roots, token, kept)
            watch.mark("decode")
            watch.move("decode", "batch", decoded.batch_us)
            watch.move("decode", "cleanup", decoded.trim_us)
            if is_one:
                return decoded.hidden, decode.rows
            hidden.append(decoded.hidden.copy())  # the next decode overwrites it
            rows.append(decode.rows + n_rows)
            n_rows += len(decoded.hidden)
        return np.concatenate(hidden), np.concatenate(rows)


def _by_item(rows: IndexArray, items: Sequence[Item], order: Sequence[int]) -> IndexArray:
    """Rows item by item, of those of the items in this order."""
    ends = np.cumsum([items[item][0].n_edges for item in order])
    parts = dict(zip(order, np.split(rows, ends[:-1]), strict=True))
    return np.concatenate([parts[item] for item in range(len(items))])


def _answers(
    items: Sequence[Item], hidden: Float32Array, rows: IndexArray, fast_path: Sequence[bool]
) -> Sequence[tuple[PromptResult, ...]]:
    """The answers to each item; rows and fast_path stand item by item, prompt by prompt."""
    first = items[0][0]
    if all(active is first for active, _ in items):
        return first.answers.of(hidden, rows.reshape(len(items), -1), fast_path)
    answers: list[tuple[PromptResult, ...]] = []
    row = prompt = 0
    for active, _ in items:
        n_prompts = len(active.prompts.prompts)
        own = rows[None, row : row + active.n_edges]
        answers += active.answers.of(hidden, own, fast_path[prompt : prompt + n_prompts])
        row, prompt = row + active.n_edges, prompt + n_prompts
    return answers


def _counts(n_queries: int, decodes: Decodes) -> Counts:
    return Counts(
        n_queries=n_queries,
        n_decodes=sum(decode.n_passes for decode in decodes.plans),
        n_tokens_new=sum(decode.plan.n_tokens for decode in decodes.plans),
        n_tokens_cached=decodes.n_cached,
        n_positions=sum(decode.plan.n_outputs for decode in decodes.plans),
    )
