"""The core: how every request reaches an engine, and how its answers come back.

    any thread          ask: queries are checked, a job is put into the queue, its result is waited for
    executor thread     step: take a turn, tokenise, plan, decode, score, answer

Blocking callers, event loops, the service, tables and tools all enter here. Only `step` and the actions given to `run`
use the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from unicodedata import is_normalized, normalize

import numpy as np
import numpy.typing as npt

from ..config.schema import Config
from ..config.words import shown
from ..engine.capacity import pays_to_share
from ..engine.engine import Engine
from ..errors import DecodeError, PlanError, ScoreError
from ..plan.decodes import padded
from ..plan.planner import Fragments, plan_request
from ..plan.tree import DecodeInput
from ..prompts.prompt_set import read_depths
from ..score.result import Counts, ModelInfo, PromptResult, Result
from ..statistics import Float32Array, Int32Array, IntArray
from .long_queries import LongQuery, LongText
from .queue import Executor, Job
from .sharing import TurnCost, measured_turn_cost

if TYPE_CHECKING:
    from .handle import LoadedPrompts

P = ParamSpec("P")
T = TypeVar("T")

MAX_QUERIES = 10_000
"""The most queries of one call; other callers wait until it ends."""
_BYTES_A_TOKEN = 32
"""A query may have so many for each of max_query_tokens, so that it is tokenised soon. Text has 3 to 6 bytes a token;
only long runs of one character have more than 32."""
_LONGEST_S = 1e9
"""the longest deadline"""
_LEAST_NS = 250_000
"""Shorter waits, such as a thread's wake-up, are reported as 0."""

_MOST_JOINTS = 8
"""requests whose questions come again and again; the rows and templates of each take some megabytes"""

Item = tuple["LoadedPrompts", str]
"""A prompt set, and the query that it is asked."""


class TokenizedItem(NamedTuple):
    """An item with its tokens."""

    prompts: LoadedPrompts
    query: str
    fragments: Fragments
    n_chars_cut: int = 0
    """characters of the query that the fragments lack"""

    @property
    def n_tokens(self) -> int:
        """Tokens of all distinct fragments."""
        return sum(map(len, self.fragments))


class Core:
    """Answers items on one engine. Usable from several threads once `start` has been called."""

    def __init__(self, engine: Engine, info: ModelInfo, config: Config, label_tokens: Int32Array) -> None:
        """config: the classifier's; label_tokens: the tokens whose logits the rows of the open engine hold."""
        self.engine = engine
        self.info = info
        self.config = config
        self._runtime = config.runtime
        self._most_bytes = config.runtime.max_query_tokens * _BYTES_A_TOKEN
        self._tokenize = engine.model.native.tokenize
        self._composes = config.runtime.normalise_queries and not engine.model.composes
        self.n_composed = 0
        """Queries that were brought into Unicode's form NFC."""
        self._turn_cost: TurnCost | None = None
        self._label_tokens = label_tokens
        self._tokens_agree = True  # whether the engine's rows and the scorers have the same label tokens
        self._sets: list[LoadedPrompts] = []
        self._joints: dict[tuple[LoadedPrompts, ...], LoadedPrompts | None] = {}  # the least recently used first
        self.executor: Executor
        """The thread that computes; it exists from `start` on."""

    def start(self) -> None:
        """Start the executor thread; any thread may ask afterwards. Raises DecodeError if it cannot be started."""
        self.executor = Executor(self.step, max_waiting=self._runtime.max_waiting, joins=self._joins)

    # any thread

    def ask(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """Returns a result for each item; this is the hot path. Raises what Classifier.classify_batch raises."""
        self.check(items, deadline_s)
        if not items:
            return []
        job: Job[list[Result]] = Job(items, deadline_s)
        self.executor.put(job)
        return _woken(job, job.result())

    async def ask_async(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """`ask` without blocking the event loop."""
        self.check(items, deadline_s)
        if not items:
            return []
        import asyncio  # callers that await have imported it; for others it would take 40 ms

        job: Job[list[Result]] = Job(items, deadline_s, future=asyncio.get_running_loop().create_future())
        self.executor.put(job)
        assert job.future is not None
        return _woken(job, await job.future)

    def plan(self, tokenized: Sequence[TokenizedItem], *, pads: bool = False) -> tuple[DecodeInput, ...]:
        """The decodes of some items, for `submit`, in any thread. Raises PlanError.

        pads: with tokens whose results are not read, so that shapes repeat.
        """
        decodes = _planned(tokenized)
        if not pads:
            return decodes
        most, n_positions = self.engine.capacity.n_tokens, self.engine.model.facts.n_ctx_train
        return tuple([padded(decode, most_tokens=most, n_positions=n_positions) for decode in decodes])

    def submit(self, tokenized: Sequence[TokenizedItem], plan: tuple[DecodeInput, ...]) -> Job[list[Result]]:
        """Ask planned items; the job's `result` waits for theirs. Raises as Classifier.classify_batch does."""
        job: Job[list[Result]] = Job(tokenized, plan=plan)
        self.executor.put(job)
        return job

    def tokenize(self, prompts: LoadedPrompts, query: str, known: dict[str, Int32Array] | None = None) -> TokenizedItem:
        """A query with the tokens of each distinct fragment of a set with the query in it. known: those of a turn.

        Of a query with too many tokens a part is tokenised, as runtime.long_queries says: the tokens are those of the
        prompts with that part for the query. Raises PlanError if it says refuse.
        """
        if not prompts.is_open:
            raise DecodeError("this prompt set is closed: ask the classifier for it again")
        how = query.how if isinstance(query, LongText) else self._runtime.long_queries
        most = self._runtime.max_query_tokens
        known = {} if known is None else known
        text = self.as_read(query)
        n_more = 1  # a text of any size is cut before it is tokenised
        if how == "refuse" or len(text) <= self._most_bytes:
            fragments, n_more = self._fragments(prompts, text, known)
            if n_more <= 0:
                return TokenizedItem(prompts, query, fragments)
        if how == "refuse":
            raise PlanError(
                f"the query has {most + n_more} tokens ({len(query)} characters), more than runtime.max_query_tokens: "
                f"{most}: shorten it, raise the limit (`max_query_tokens`), or label a part of it (`long_queries`)"
            )
        long, n, n_kept = LongQuery(text, how, self.engine.model, self._most_bytes), most, 0
        while n_more > 0:
            part, n_kept = long.kept(n)
            fragments, n_more = self._fragments(prompts, part, known)
            n = max(0, n - n_more)
        return TokenizedItem(prompts, query, fragments, len(text) - n_kept)

    def as_read(self, query: str) -> str:
        """The query as it is tokenised: in Unicode's form NFC, unless the tokenizer brings it there itself."""
        if not self._composes or query.isascii() or is_normalized("NFC", query):
            return query
        self.n_composed += 1
        return normalize("NFC", query)

    def _fragments(
        self, prompts: LoadedPrompts, query: str, known: dict[str, Int32Array]
    ) -> tuple[list[Int32Array], int]:
        """(the tokens of each distinct fragment with a query, by how many tokens the longest exceeds the limit)."""
        found, n_more = [], -self._runtime.max_query_tokens
        for (before, after), n_empty in prompts.compiled.fragments.items():
            text = before + query + after
            if (tokens := known.get(text)) is None:
                tokens = known[text] = self._tokenize(text, parse_special=False)
            n_more = max(n_more, len(tokens) - n_empty - self._runtime.max_query_tokens)
            found.append(tokens)
        return found, n_more

    def counts(self, prompts: LoadedPrompts, query: str) -> Counts:
        """The counts of `ask` for a query; computes nothing. Raises PlanError."""
        self.check([(prompts, query)])
        return self.run(lambda: _counts(1, self.plan([self.tokenize(prompts, query)])))

    def check(self, items: Sequence[tuple[object, object]], deadline_s: float | None = None) -> None:
        """Raise PlanError for a value that is not a query, or has too many bytes to tokenise; tokenises nothing."""
        if len(items) > MAX_QUERIES:
            raise PlanError(
                f"{len(items)} queries in one call, at most {MAX_QUERIES} are answered: ask in several calls"
            )
        for _, query in items:
            how = query.how if isinstance(query, LongText) else self._runtime.long_queries
            most = self._most_bytes if how == "refuse" else sys.maxsize
            if not isinstance(query, str):
                if _is_missing(query):
                    raise PlanError(f"the query is missing: {shown(query)} is no text; leave it out")
                raise PlanError(f"a query is text, not {type(query).__name__}: {shown(query)}")
            try:
                # A text with more characters than the limit has bytes is refused without being encoded.
                n, unit = (len(query), "characters") if len(query) > most else (len(query.encode()), "bytes")
            except UnicodeEncodeError as e:
                raise PlanError(
                    f"character {e.start} of the query is not valid Unicode ({e.reason}): write the text in UTF-8"
                ) from None
            if n > most:
                raise PlanError(
                    f"the query has {n} {unit}, more than {most} bytes, {_BYTES_A_TOKEN} for each of "
                    "runtime.max_query_tokens: shorten it, raise the limit (`max_query_tokens`), or label a part of it "
                    "(`long_queries`)"
                )
        if deadline_s is not None and not (isinstance(deadline_s, int | float) and abs(deadline_s) < _LONGEST_S):
            raise PlanError(
                f"deadline_s: {shown(deadline_s)} is not a number of seconds below {_LONGEST_S:g}: leave it out to wait"
            )

    def run(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an action between two turns and return its result. Raises DecodeError if the classifier was closed."""
        return self.executor.run(partial(action, *args, **kwargs))

    def measure_turns(self, prompts: LoadedPrompts) -> TurnCost:
        """Measure the fixed cost of a decode; from then on jobs share one only if that saves time."""

        def ask(queries: Sequence[str]) -> int:
            return self.answer([(prompts, query) for query in queries])[0].counts.n_tokens_new

        self._turn_cost = self.run(measured_turn_cost, ask, self._runtime.max_batch)
        return self._turn_cost

    # the executor thread, or the thread that starts

    def step(self, turn: Sequence[Job[Any]]) -> Sequence[Any]:
        """The results of each job of a turn: what its action returns, or a result for each of its items."""
        first = turn[0]
        if first.action is not None:
            return [first.action()]
        if first.plan is not None:
            now_ns = perf_counter_ns()
            return [self._computed(first.items, first.plan, (now_ns, now_ns, now_ns), first.arrived_ns, first.items)]
        if len(turn) == 1:
            return [self.answer(first.items, arrived_ns=first.arrived_ns)]
        results = iter(self.answer([item for job in turn for item in job.items], arrived_ns=first.arrived_ns))
        return [[next(results) for _ in job.items] for job in turn]

    def answer(self, items: Sequence[Item], *, arrived_ns: int | None = None) -> list[Result]:
        """A result for each item, with the time of every stage.

        arrived_ns: when the items began to wait. Raises PlanError before anything is computed, DecodeError, ScoreError.
        """
        start_ns = perf_counter_ns()
        tokenized: list[TokenizedItem] = []
        known: dict[str, Int32Array] = {}  # questions about one text share it
        for prompts, query in items:
            tokenized.append(self.tokenize(prompts, query, known))
        tokenized_ns = perf_counter_ns()
        asked = self._joined(tokenized) if len(tokenized) > 1 else tokenized
        plan = _planned(asked)
        return self._computed(tokenized, plan, (start_ns, tokenized_ns, perf_counter_ns()), arrived_ns, asked)

    def _joined(self, items: Sequence[TokenizedItem]) -> list[TokenizedItem]:
        """The items, several sets' items with one query as that of one set, which has a template and is scored at once.

        Only where the same sets were asked together before, without exact scores, and not as configured.
        """
        asked: list[TokenizedItem] = []
        for query, group in groupby(items, attrgetter("query")):
            own = list(group)
            sets = tuple([item.prompts for item in own])
            may_join = len(set(sets)) == len(own) > 1 and not any(each.stands_alone for each in sets)
            if not may_join or any(item.n_chars_cut for item in own) or not (prompts := self._joint(sets)):
                asked += own
                continue
            fragments: dict[tuple[str, str], Int32Array] = {}
            for item in own:
                fragments.update(zip(item.prompts.compiled.fragments, item.fragments, strict=True))
            asked.append(TokenizedItem(prompts, query, list(fragments.values())))
        return asked

    def _joint(self, sets: tuple[LoadedPrompts, ...]) -> LoadedPrompts | None:
        """Several sets as one; None the first time."""
        was_asked = sets in self._joints
        joint = self._joints.pop(sets, None)
        if len(self._joints) == _MOST_JOINTS:
            del self._joints[next(iter(self._joints))]
        self._joints[sets] = joint = joint or (sets[0].joined(sets) if was_asked else None)
        return joint

    def _computed(
        self,
        tokenized: Sequence[TokenizedItem],
        plan: tuple[DecodeInput, ...],
        began_ns: tuple[int, int, int],
        arrived_ns: int | None,
        asked: Sequence[TokenizedItem],
    ) -> list[Result]:
        """A result for each item. asked: the planned ones, perhaps `_joined`; began_ns: when tokenising, planning,
        computing began. Raises as `answer`.
        """
        start_ns, tokenized_ns, planned_ns = began_ns
        hidden, rows, fast_path, batch_us, trim_us = self._decode(plan)
        decoded_ns = perf_counter_ns()
        first = asked[0].prompts
        try:
            if len(asked) == 1 or all(each.prompts is first for each in asked):
                answers = first.answers.of(hidden, rows.reshape(len(asked), -1), fast_path)
            else:
                answers = _answers_of_sets(asked, hidden, rows, fast_path)
            if len(asked) < len(tokenized):
                every = chain.from_iterable(answers)
                answers = [tuple(islice(every, len(each.prompts.compiled.prompts))) for each in tokenized]
        except ScoreError:
            self.engine.restore()
            raise
        counts = _counts(len(tokenized), plan)
        end_ns = perf_counter_ns()
        stage_ms = {
            "tokenize": (tokenized_ns - start_ns) / 1e6,
            "plan": (planned_ns - tokenized_ns) / 1e6,
            "batch": batch_us / 1e3,
            "decode": (decoded_ns - planned_ns) / 1e6 - (batch_us + trim_us) / 1e3,
            "score": (end_ns - decoded_ns) / 1e6,
            "cleanup": trim_us / 1e3,
        }
        wait_ns = 0 if arrived_ns is None else start_ns - arrived_ns
        total_ms = round(sum(stage_ms.values()), 6)  # nanoseconds, as each of them
        results = []
        for each, answer in zip(tokenized, answers, strict=True):
            result = Result(
                query=each.query,
                total_ms=total_ms,
                stage_ms=stage_ms.copy(),
                counts=counts,
                results=answer,
                model=self.info,
                wait_ms=wait_ns / 1e6 if wait_ns > _LEAST_NS else 0.0,
                n_chars_cut=each.n_chars_cut,
            )
            results.append(result)
        return results

    def _decode(self, plan: tuple[DecodeInput, ...]) -> tuple[Float32Array, IntArray, list[bool], int, int]:
        """Run the decodes of a request.

        Returns the hidden states (n_rows, row size) of all decodes; (n_edges,) for each edge of the label tries the row
        with the hidden state that it reads; (n_prompts,) whether a prompt took its fast path; and the microseconds that
        filling batches and trimming sequences took.
        """
        if len(plan) == 1:
            hidden, batch_us, trim_us = self.engine.decode(plan[0])
            return hidden, plan[0].rows, plan[0].fast_path, batch_us, trim_us
        states, rows, n_rows, batch_us, trim_us = [], [], 0, 0, 0
        for decode in plan:
            decoded = self.engine.decode(decode)
            batch_us, trim_us = batch_us + decoded.batch_us, trim_us + decoded.trim_us
            states.append(decoded.hidden.copy())  # the next decode overwrites it
            rows.append(decode.rows + n_rows)
            n_rows += decode.n_rows
        fast_path = [is_fast for decode in plan for is_fast in decode.fast_path]
        return np.concatenate(states), np.concatenate(rows), fast_path, batch_us, trim_us

    def _joins(self, turn: Sequence[Job[Any]], job: Job[Any], n_waiting: int) -> bool:
        """Whether a job may join a turn of others, while n_waiting jobs wait, including this one."""
        jobs = (*turn, job)
        if any(each.action is not None or each.plan is not None for each in jobs):
            return False
        if sum([len(each.items) for each in jobs]) > self._runtime.max_batch:
            return False
        if self._turn_cost is None:
            n_gpu_layers = self.engine.model.n_gpu_layers
            return all(pays_to_share(n_gpu_layers, prompts.n_prefixes) for each in jobs for prompts, _ in each.items)
        n_tokens = sum([prompts.n_fed(query) for prompts, query in job.items])
        return self._turn_cost.pays(len(turn), n_tokens, n_waiting)

    # prompt sets: the executor thread, or the thread that starts

    def add(self, prompts: LoadedPrompts) -> None:
        """Make a prompt set available; changes nothing if the engine's rows cannot hold the logits that it needs."""
        self._sets.append(prompts)
        try:
            self._use_rows()
        except BaseException:
            self._sets.remove(prompts)
            self._use_rows()
            raise

    def remove(self, prompts: LoadedPrompts) -> None:
        """Unpin a set's prefixes; later requests to it raise an error."""
        prompts.is_open = False
        self._sets.remove(prompts)
        self.engine.release(prompts.held)
        self._use_rows()

    def raw_scores(self, prompts: LoadedPrompts, query: str) -> dict[str, npt.NDArray[np.float64]]:
        """(n_labels,) a query's raw scores by prompt."""
        (result,) = self.answer([(prompts, query)])
        return {each.prompt: np.array([score.score for score in each.scores]) for each in result.results}

    def answers_and_states(
        self, prompts: LoadedPrompts, queries: Sequence[str], depths: tuple[int, ...]
    ) -> tuple[Sequence[tuple[PromptResult, ...]], Float32Array]:
        """The answers to each query, and (n_queries, n_prompts, n_depths, n_embd) the states at each prompt's end.

        depths: layers, ascending, below the last one; after them comes the final-norm hidden state. Every prompt's
        scoring has to read its end. Raises as `answer` does, and ModelError for a model that shows no such states.
        """
        self.engine.set_depths(depths)
        items = [self.tokenize(prompts, query) for query in queries]
        hidden, rows, fast_path, _, _ = self._decode(_planned(items))
        by_item = rows.reshape(len(items), -1)
        ends = by_item[:, prompts.scorer.first_edge]
        columns = map(self.engine.columns, (*depths, self.engine.model.facts.n_layer))
        states = np.stack([hidden[:, each][ends] for each in columns], axis=2)
        return prompts.answers.of(hidden, by_item, fast_path), states

    @property
    def label_tokens(self) -> Int32Array:
        """(n,) the tokens whose logits are in the engine's rows, ascending."""
        return self._label_tokens

    def _use_rows(self) -> None:
        """Let the engine's rows contain what the scorings and heads of all sets need, and compute no more layers."""
        self._joints.clear()  # of sets that may be gone, and for other rows
        depths, end = read_depths([each.compiled for each in self._sets], self.engine.model.facts.n_layer)
        if end == 0:  # logits need all layers
            self.engine.set_depths(depths)
        self._use_label_tokens()
        self.engine.set_depths(depths, end)
        for each in self._sets:
            each.answers.use_columns(self.engine.columns)

    def _use_label_tokens(self) -> None:
        """Let the engine's rows hold the logits that the exact scorings of all sets need."""
        exact = [each for each in self._sets if each.compiled.exact]
        tokens = np.array(sorted({token for each in exact for token in each.compiled.label_tokens.tolist()}), np.int32)
        if not (self._tokens_agree and np.array_equal(tokens, self._label_tokens)):
            self._tokens_agree = False
            self.engine.set_label_tokens(tokens)
            self._label_tokens = tokens
        for each in exact:
            each.scorer.use_label_tokens(tokens)
        self._tokens_agree = True


def _answers_of_sets(
    items: Sequence[TokenizedItem], hidden: Float32Array, rows: IntArray, fast_path: Sequence[bool]
) -> list[tuple[PromptResult, ...]]:
    """The answers to items of various prompt sets. rows: in the order of the items."""
    answers: list[tuple[PromptResult, ...]] = []
    row = prompt = 0
    for each in items:
        end_row, end_prompt = row + each.prompts.n_edges, prompt + len(each.prompts.compiled.prompts)
        answers += each.prompts.answers.of(hidden, rows[None, row:end_row], fast_path[prompt:end_prompt])
        row, prompt = end_row, end_prompt
    return answers


def _is_missing(value: object) -> bool:
    """Whether a value means a missing one in a table, such as None or NaN."""
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def _woken(job: Job[list[Result]], results: list[Result]) -> list[Result]:
    """The results; wait_ms now includes the time until the caller's thread or task went on."""
    woken_ns = perf_counter_ns() - job.ended_ns
    if woken_ns > _LEAST_NS:
        for each in results:  # not yet returned to anyone; several times faster than dataclasses.replace
            object.__setattr__(each, "wait_ms", each.wait_ms + woken_ns / 1e6)
    return results


def _planned(items: Sequence[TokenizedItem]) -> tuple[DecodeInput, ...]:
    return plan_request([(item.prompts.templates, item.fragments) for item in items])


def _counts(n_queries: int, plan: tuple[DecodeInput, ...]) -> Counts:
    return Counts(
        n_queries=n_queries,
        n_decodes=len(plan),
        n_tokens_new=sum([len(decode.token) for decode in plan]),
        n_tokens_cached=sum([decode.n_cached for decode in plan]),
        n_positions=sum([decode.n_rows for decode in plan]),
    )
