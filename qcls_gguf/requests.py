"""Requests to an engine from any thread: impossible ones are refused at once, the others wait for their turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter, perf_counter_ns
from typing import ParamSpec, TypeVar

from .active_set import ActiveSet, Item
from .config.schema import RuntimeConfig
from .config.words import shown
from .decodes import Tokenized
from .engine.batcher import Batcher
from .engine.call import Taker
from .engine.capacity import pays_to_repeat_shapes, pays_to_share
from .engine.turns import TurnCost
from .errors import DecodeError, PlanError, QclsError, ScoreError
from .pipeline import Pipeline, Prepared, check_queries
from .score.result import Counts, Result

P = ParamSpec("P")
T = TypeVar("T")

_MENTIONED_MS = 0.05  # shorter waits are reported as 0
_LONGEST_S = 1e9  # the longest deadline
_LETTERS = [chr(n) for n in range(ord("a"), ord("z") + 1)]
_TURN_WORDS = 6
"""of the queries that turns are measured by"""
_N_TURNS = 8
_TURNS_S = 0.5


class Requests:
    """Asks prompt sets of one engine. While one request is computed others wait, and share the next decode."""

    def __init__(self, pipeline: Pipeline, runtime: RuntimeConfig, n_gpu_layers: int) -> None:
        """n_gpu_layers: the model's layers on the GPU; they decide whether sharing a decode pays."""
        self._pipeline = pipeline
        self._runtime = runtime
        self._n_gpu_layers = n_gpu_layers
        self.batcher: Batcher[Item, Result] = Batcher(
            pipeline.run, max_batch=runtime.max_batch, max_waiting=runtime.max_waiting, joins=self._joins
        )
        self._turn_cost: TurnCost | None = None
        self._pid = os.getpid()

    def measure_turns(self, active: ActiveSet) -> TurnCost:
        """Measure the fixed cost of a decode; from then on callers share one only if that saves time."""
        self.check_process()
        self._turn_cost = self.run_alone(_turn_cost, self._pipeline, active, self._runtime.max_batch)
        return self._turn_cost

    def _joins(self, turn: Sequence[Sequence[Item]], items: Sequence[Item], n_behind: int) -> bool:
        if self._turn_cost is None:
            together = [item for call in (*turn, items) for item in call]
            return all(pays_to_share(self._n_gpu_layers, active.n_prefixes) for active, _ in together)
        n_tokens = sum(active.n_fed(query) for active, query in items)
        return self._turn_cost.pays(len(turn), n_tokens, n_behind)

    def ask(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """A result for each item. This is the hot path. Raises what Classifier.classify_batch raises."""
        began = perf_counter_ns()
        self._check(items, deadline_s)
        return with_wait(self.batcher.submit(items, deadline_s), began) if items else []

    async def ask_async(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """`ask` without blocking the event loop."""
        began = perf_counter_ns()
        self._check(items, deadline_s)
        if not items:
            return []
        import asyncio  # callers that await have imported it; for others it would take 40 ms

        answers = await self.batcher.submit_future(asyncio.get_running_loop(), items, deadline_s)
        return with_wait(answers, began)

    def ask_for(self, taker: Taker[Sequence[Result]], items: Sequence[Item], deadline_s: float | None = None) -> None:
        """`ask` for a taker that receives the results later, in the thread of an event loop, without `wait_ms`: see
        `with_wait`.

        Only if `has_steps` is true. Raises errors that are known at once; the taker receives later ones.
        """
        self._check(items, deadline_s)
        self.batcher.submit_for(taker, items, deadline_s)

    def ask_each(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result | QclsError]:
        """The results, with an error in place of each failed query's. If no query is refused all are asked together."""
        errors: dict[int, QclsError] = {}
        try:
            return list(self.ask(items, deadline_s))
        except PlanError:  # nothing was computed yet: find the refused ones, and ask the others together
            for index, (active, query) in enumerate(items):
                try:
                    self.check(active, query)
                except PlanError as e:
                    errors[index] = e
        except ScoreError:  # it does not say whose scores are wrong
            pass
        good = [index for index in range(len(items)) if index not in errors]
        if errors:
            try:
                results = self.ask([items[index] for index in good], deadline_s)
                found: dict[int, Result | QclsError] = dict(zip(good, results, strict=True))
                return [errors.get(index) or found[index] for index in range(len(items))]
            except ScoreError:
                pass
        return [errors.get(index) or self._ask_one(item, deadline_s) for index, item in enumerate(items)]

    def _ask_one(self, item: Item, deadline_s: float | None) -> Result | QclsError:
        try:
            return self.ask([item], deadline_s)[0]
        except (PlanError, ScoreError) as e:
            return e

    @property
    def has_steps(self) -> bool:
        """Whether `ask` equals `tokenize`, `prepare` and `compute` in turn."""
        return True

    def tokenize(self, item: Item) -> Tokenized:
        """The first of the three steps of `ask`, for callers that run them separately: then `prepare` and `compute`.

        One thread may tokenise and prepare the next items while another one computes. Raises PlanError.
        """
        check_queries([item[1]], self._runtime)
        self.check_process()
        return self._pipeline.tokenize(item)

    def prepare(self, tokenized: Sequence[Tokenized], *, on_rungs: bool = False) -> Prepared:
        """Plan the decodes of at least one item, which feed all of its query; one thread at a time.

        on_rungs: see Pipeline.prepare.
        """
        return self._pipeline.prepare(tokenized, on_rungs=on_rungs)

    @property
    def pays_on_rungs(self) -> bool:
        """Whether padding decodes to few shapes saves time when there are many of them."""
        return pays_to_repeat_shapes(self._runtime, self._n_gpu_layers)

    def compute(self, prepared: Prepared) -> list[Result]:
        """A result for each item of a plan. Raises DecodeError, ScoreError."""
        self.check_process()
        return self.run_alone(self._pipeline.compute, prepared)

    def run_alone(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an action between two turns and return its result. Raises DecodeError if the classifier was closed."""

        def checked() -> T:
            self.check_open()
            return action(*args, **kwargs)

        return self.batcher.run_alone(checked)

    def check(self, active: ActiveSet, query: str) -> None:
        """Raise PlanError for a query that `ask` would refuse; nothing is computed."""
        check_queries([query], self._runtime)
        self.check_process()
        self.run_alone(self._pipeline.check, active, query)

    def counts(self, active: ActiveSet, query: str) -> Counts:
        """The counts of `ask` for a query all of which is fed; computes nothing. Raises PlanError as `ask` does."""
        check_queries([query], self._runtime)
        self.check_process()
        return self.run_alone(self._pipeline.counts, active, query)

    def _check(self, items: Sequence[Item], deadline_s: float | None) -> None:
        check_queries([query for _, query in items], self._runtime)
        if deadline_s is not None and not (isinstance(deadline_s, int | float) and abs(deadline_s) < _LONGEST_S):
            raise PlanError(
                f"deadline_s: {shown(deadline_s)} is not a number of seconds below {_LONGEST_S:g}: leave it out to wait"
            )
        self.check_process()

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked from the one in which it was created; there nothing is computed."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raise DecodeError in a forked process, and if this thread would wait for itself."""
        if not self.is_of_this_process:
            raise DecodeError("this Classifier was made in another process: make one in each process after forking")
        if self.batcher.is_inside:
            raise DecodeError(
                "this Classifier is asked, or a prompt set closed, in the middle of a request of the same thread, by a "
                "finaliser or a signal's handler: do it outside of them"
            )

    def check_open(self) -> None:
        """Raise DecodeError where the classifier was closed."""
        if self.batcher.is_closed:
            raise DecodeError("this Classifier is closed")


def with_wait(results: Sequence[Result], began_ns: int) -> list[Result]:
    """The results with wait_ms: the time since began_ns that is not in their stages, before and after the turn.

    began_ns: the time of the request, by perf_counter_ns.
    """
    wait_ms = (perf_counter_ns() - began_ns) / 1e6 - results[0].total_ms
    return [result.after(wait_ms) for result in results] if wait_ms > _MENTIONED_MS else list(results)


def _turn_cost(pipeline: Pipeline, active: ActiveSet, max_batch: int) -> TurnCost:
    """The fixed cost of a decode, from the shortest decodes of one query and of max_batch queries, run in turns.

    0, so that no decode is shared, if max_batch is 1 or short queries are too long for the configuration.
    """
    queries = [" ".join(_LETTERS[n : n + _TURN_WORDS]) for n in range(min(max_batch, len(_LETTERS) - _TURN_WORDS))]
    if len(queries) < 2:
        return TurnCost(0.0)
    few, many = [(active, query) for query in queries[:1]], [(active, query) for query in queries]
    shortest: dict[int, float] = {}
    until = perf_counter() + _TURNS_S
    for n_round in range(_N_TURNS):
        for items in (few, many):
            began = perf_counter()
            try:
                counts = pipeline.run(items, as_new=True)[0].counts
            except PlanError:  # of more tokens than are allowed, in some vocabulary
                return TurnCost(0.0)
            took = perf_counter() - began
            if n_round:  # the first one makes plans and graphs
                shortest[counts.n_tokens_new] = min(took, shortest.get(counts.n_tokens_new, took))
        if n_round and perf_counter() > until:
            break
    least, most = min(shortest), max(shortest)
    return TurnCost.through((least, shortest[least]), (most, shortest[most]))
