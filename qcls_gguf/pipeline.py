"""Requests on an engine: queries to tokens, one decode, scores, answers, with the time of every stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .active_set import ActiveSet, Item
from .config.schema import RuntimeConfig
from .config.words import shown
from .engine.engine import Engine, Float32Array
from .engine.kept_queries import Continuation
from .errors import DecodeError, PlanError, ScoreError
from .plan.planner import Addition, DecodePlan, IndexArray, additions_of, plan_decodes
from .plan.rungs import on_a_rung
from .plan.templates import Template, Templates
from .plan.tree import Int32Array
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
            raise PlanError(f"character {e.start} of the query is not valid Unicode ({e.reason})") from None
        if n > most:
            raise PlanError(
                f"the query has {n} {unit}, more than runtime.max_query_bytes: {most} bytes: shorten it or raise the "
                "limit"
            )


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the decodes of a request feed."""

    decodes: Sequence[DecodePlan]
    tokens: Sequence[Int32Array]
    """of each decode"""
    n_cached: int
    """tokens of the rendered prompts that come from the cache"""
    fast_path: Sequence[bool]
    """item by item, prompt by prompt"""
    behind: Sequence[Int32Array] | None = None
    """of a single item that may go on from a kept query, each distinct fragment's tokens behind its stable ones"""
    continued: Continuation | None = None
    order: Sequence[int] | None = None
    """the items in the order in which they are planned, where it is another one; of this order are the decodes' rows"""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """An item with its tokens."""

    item: Item
    fragments: Sequence[Int32Array]
    """of each distinct fragment of its set with the query in it"""

    @property
    def n_tokens(self) -> int:
        """Tokens of all distinct fragments."""
        return sum(map(len, self.fragments))


@dataclass(frozen=True, slots=True)
class Prepared:
    """Items whose decodes are planned; they are open as long as their sets are."""

    items: Sequence[Item]
    planned: _Planned
    watch: Stopwatch

    @property
    def n_decodes(self) -> int:
        """Decodes that they take."""
        return len(self.planned.decodes)

    @property
    def n_tokens(self) -> int:
        """Tokens that they feed."""
        return sum(decode.plan.n_tokens for decode in self.planned.decodes)


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

        as_new: feed all of a query, also where a kept one begins like it.
        """
        watch = Stopwatch()
        tokenized = [self.tokenize(item) for item in items]
        watch.mark("tokenize")
        return self.compute(self.prepare(tokenized, watch), as_new=as_new)

    def prepare(
        self, tokenized: Sequence[Tokenized], watch: Stopwatch | None = None, *, on_rungs: bool = False
    ) -> Prepared:
        """Plan the decodes of some items; watch: whose time goes on. Raises PlanError for nothing to feed.

        on_rungs: fill the decodes up, so that few shapes come again and again.
        """
        watch = watch or Stopwatch()
        items = [each.item for each in tokenized]
        planned = self._plan(items, [each.fragments for each in tokenized])
        if on_rungs:
            planned = self._on_rungs(planned)
        watch.mark("plan")
        return Prepared(items, planned, watch)

    def compute(self, prepared: Prepared, *, as_new: bool = False) -> list[Result]:
        """A result for each item of a plan, which is used once. as_new: see `run`. Raises DecodeError, ScoreError."""
        items, planned, watch = prepared.items, prepared.planned, prepared.watch
        watch.go_on()
        if self._engine.kept_queries and planned.behind is not None:
            planned = self._continued(items[0][0].templates, planned, planned.behind, as_new=as_new)
            watch.mark("plan")
        hidden, rows = self._decode(planned, watch)
        if planned.order is not None:
            rows = _by_item(rows, items, planned.order)
        try:
            answers = _answers(items, hidden, rows, planned.fast_path)
        except ScoreError:
            self._engine.restore()
            raise
        watch.mark("score")
        counts = _counts(len(items), planned)
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

    def rehearse(self, active: ActiveSet, template: Template) -> None:
        """One decode like that of a request with this template, whatever the tokens. Raises DecodeError."""
        found, plan = self._engine.continuation(active.templates.layout, None), template.decode.plan
        if found:
            plan = template.continued(0, found.slot.seq, found.n_new)
        self._engine.decode(plan, template.decode.leaf_roots, template.any_tokens(), found)

    def check(self, active: ActiveSet, query: str) -> None:
        """Raise PlanError for a query that `run` would refuse; nothing is computed."""
        _additions(active, self.tokenize((active, query)).fragments)

    def counts(self, active: ActiveSet, query: str) -> Counts:
        """What `run` would feed and read for a query; nothing is computed. Raises PlanError as `run` does."""
        return _counts(1, self._plan([(active, query)], [self.tokenize((active, query)).fragments]))

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

    def _plan(self, items: Sequence[Item], fragments: Sequence[Sequence[Int32Array]]) -> _Planned:
        if len(items) == 1:
            templates = items[0][0].templates
            behind = templates.behind(fragments[0])
            if behind is not None and (template := templates.of_lengths(tuple(map(len, behind)))):
                fast_path = [True] * len(template.additions)
                return _Planned((template.decode,), (template.fill(behind),), template.n_cached, fast_path, behind)
        by_item = [_additions(active, texts) for (active, _), texts in zip(items, fragments, strict=True)]
        order = None
        if self._engine.capacity.pass_tokens is not None and len(items) > 1:
            # queries of one length stand together: where they take several decodes, each takes few passes
            order = sorted(range(len(items)), key=lambda item: sum(map(len, fragments[item])))
        decodes = plan_decodes(
            [addition for item in order or range(len(items)) for addition in by_item[item]], self._engine.capacity
        )
        additions = [addition for each in by_item for addition in each]
        return _Planned(
            decodes,
            [decode.plan.token for decode in decodes],
            sum(addition.root.n_cached for addition in additions),
            [addition.fast_path for addition in additions],
            order=order,
        )

    def _continued(
        self, templates: Templates, planned: _Planned, behind: Sequence[Int32Array], *, as_new: bool
    ) -> _Planned:
        """The plan that feeds only what follows a kept query, where this one begins like it, and keeps this one."""
        found = self._engine.continuation(templates.layout, None if as_new else behind)
        if found is None:
            return planned
        rest = [tokens[found.n_kept :] for tokens in behind]
        template = templates.of_lengths(tuple(map(len, rest)))
        if template is None:
            return planned
        plan = template.continued(found.n_kept, found.slot.seq, found.n_new)
        return replace(
            planned,
            decodes=(replace(template.decode, plan=plan),),
            tokens=(template.fill(rest),),
            n_cached=template.n_cached + found.n_kept * len(template.additions),
            continued=found,
        )

    def _on_rungs(self, planned: _Planned) -> _Planned:
        capacity, n_positions = self._engine.capacity, self._engine.model.facts.n_ctx_train
        if capacity.pass_tokens is not None:  # the shapes of its passes would not be fewer
            return planned
        filled = [
            on_a_rung(decode, token, most_tokens=capacity.n_tokens, n_positions=n_positions)
            for decode, token in zip(planned.decodes, planned.tokens, strict=True)
        ]
        return replace(planned, decodes=[each for each, _ in filled], tokens=[each for _, each in filled], behind=None)

    def _decode(self, planned: _Planned, watch: Stopwatch) -> tuple[Float32Array, IndexArray]:
        """The hidden states of all decodes, and in which row is that of each edge of the label tries."""
        hidden, rows, n_rows = [], [], 0
        is_one = len(planned.decodes) == 1
        for decode, token in zip(planned.decodes, planned.tokens, strict=True):
            decoded = self._engine.decode(decode.plan, decode.leaf_roots, token, planned.continued)
            watch.mark("decode")
            watch.move("decode", "batch", decoded.batch_us)
            watch.move("decode", "cleanup", decoded.trim_us)
            if is_one:
                return decoded.hidden, decode.rows
            hidden.append(decoded.hidden.copy())  # the next decode overwrites it
            rows.append(decode.rows + n_rows)
            n_rows += len(decoded.hidden)
        return np.concatenate(hidden), np.concatenate(rows)


def _additions(active: ActiveSet, fragments: Sequence[npt.NDArray[np.int32]]) -> list[Addition]:
    tokens = {text: found.tolist() for text, found in zip(active.prompts.fragments, fragments, strict=True)}
    prompts = active.prompts.prompts
    return additions_of(prompts, active.holders, [tokens[prompt.fragment] for prompt in prompts])


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


def _counts(n_queries: int, planned: _Planned) -> Counts:
    return Counts(
        n_queries=n_queries,
        n_decodes=sum(decode.n_passes for decode in planned.decodes),
        n_tokens_new=sum(decode.plan.n_tokens for decode in planned.decodes),
        n_tokens_cached=planned.n_cached,
        n_positions=sum(decode.plan.n_outputs for decode in planned.decodes),
    )
