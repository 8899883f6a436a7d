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
from itertools import accumulate
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from unicodedata import normalize

import numpy as np

from ..config.schema import Config, LongQueries
from ..config.words import shown
from ..engine.capacity import pays_to_share
from ..engine.engine import Engine
from ..errors import DecodeError, QueryError, ScoreError
from ..plan.decodes import DecodeInput, padded
from ..plan.planner import Fragments, plan_request
from ..prompts.compiled import Tokenizer
from ..prompts.prompt_set import read_depths
from ..score.result import Counts, ModelInfo, PromptResult, Result
from ..statistics import Float32Array, Int32Array, IntArray
from .queue import Executor, Job, measured_fixed_tokens, pays_to_join

if TYPE_CHECKING:
    from .handle import PromptHandle

P = ParamSpec("P")
T = TypeVar("T")
Plan = tuple[DecodeInput, ...]
"""the decodes of a request"""
MAX_QUERIES = 10_000
"""The most queries of one call; other callers wait until it ends."""
_BYTES_A_TOKEN = 32
"""A query may have so many for all of max_query_tokens, so that it is tokenised soon. Text has 3 to 6 bytes a token;
only long runs of one character have more than 32."""
_LONGEST_S = 1e9
"""the longest deadline"""
_LEAST_NS = 250_000
"""Shorter waits, such as a thread's wake-up, are reported as 0."""
_TOO_LONG = "shorten it, raise the limit (`max_query_tokens`), or label a part of it (`long_queries`)"
GAP = " … "
"""takes the place of the middle of a query that was left out"""

Item = tuple["PromptHandle", str]
"""a prompt set's handle, and the query that it is asked"""


class LongText(str):
    """A query that says itself what is done if it is too long, in place of runtime.long_queries."""

    how: LongQueries

    def __new__(cls, text: str, how: LongQueries) -> LongText:
        """A text; how: what is done."""
        self = super().__new__(cls, text)
        self.how = how
        return self


class LongQuery:
    """A query, cut at the borders of its own tokens.

    The caller must tokenise a part with its prompts to see whether it is short enough, because its outer tokens may
    merge.
    """

    def __init__(self, query: str, how: LongQueries, tokenizer: Tokenizer, most_bytes: int) -> None:
        """how: which part is kept (not refuse); most_bytes: limit of the kept part, so that a text of any size is cut
        quickly."""
        self._how = how
        data = query.encode()
        n = most_bytes // 2 if how == "middle" else most_bytes
        self._first, self._last = (data, data) if len(data) <= most_bytes else (data[:n], data[-n:])
        self._ends, self._last_ends = ([0, *_token_ends(part, tokenizer)] for part in (self._first, self._last))

    def kept(self, n_tokens: int) -> tuple[str, int]:
        """(the part with at most this many tokens, how many characters of the query it has)."""
        n_first = {"head": n_tokens, "tail": 0}.get(self._how, n_tokens - n_tokens // 2)
        n_last = n_tokens - n_first
        ends, last_ends = self._ends, self._last_ends
        # a part of a character at a border is left out
        first = self._first[: ends[min(n_first, len(ends) - 1)]].decode(errors="ignore")
        last = self._last[last_ends[max(0, len(last_ends) - 1 - n_last)] :].decode(errors="ignore") if n_last else ""
        return first + (GAP if self._how == "middle" and n_tokens else "") + last, len(first) + len(last)


class TokenizedItem(NamedTuple):
    """An item with its tokens."""

    handle: PromptHandle
    query: str
    fragments: Fragments
    n_chars_cut: int
    """characters of the query that the fragments lack"""


class Core:
    """Answers items on one engine. Usable from several threads once `start` has been called."""

    def __init__(self, engine: Engine, info: ModelInfo, config: Config) -> None:
        """config: the classifier's."""
        self.engine = engine
        self.info = info
        self.config = config
        self._runtime = runtime = config.runtime
        self._most_bytes = runtime.max_query_tokens * _BYTES_A_TOKEN
        composed, decomposed = (
            engine.model.tokenize(text, parse_special=False).tolist() for text in ("\xe9", "e\u0301")
        )
        self._composes = runtime.normalise_queries and composed != decomposed  # unless the tokenizer itself does
        self._tokenize = engine.model.native.tokenize
        self._fixed_tokens: float | None = None
        self._handles: list[PromptHandle] = []
        self.executor: Executor
        """The thread that computes; it exists from `start` on."""

    def start(self) -> None:
        """Start the executor thread; any thread may ask afterwards. Raises DecodeError if it cannot be started."""
        self.executor = Executor(self.step, max_waiting=self._runtime.max_waiting, joins=self._joins)

    # any thread

    def ask(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """Returns a result for every item; this is the hot path. Raises what Classifier.classify_batch raises."""
        self.check(items, deadline_s)
        if not items:
            return []
        job: Job[list[Result]] = Job(items, deadline_s)
        self.executor.put(job)
        return job.result()

    async def ask_async(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """`ask` without blocking the event loop."""
        self.check(items, deadline_s)
        if not items:
            return []
        import asyncio  # callers that await have imported it; for others it would take 40 ms

        job: Job[list[Result]] = Job(items, deadline_s, future=asyncio.get_running_loop().create_future())
        self.executor.put(job)
        assert job.future is not None
        return await job.future

    def plan(self, tokenized: Sequence[TokenizedItem], *, pads: bool = False) -> Plan:
        """The decodes of some items, for `submit`, in any thread. Raises PlanError.

        pads: with tokens whose results are not read, so that shapes repeat.
        """
        plan = plan_request([(item.handle.templates, item.fragments) for item in tokenized])
        if not pads:
            return plan
        most, n_positions = self.engine.capacity.n_tokens, self.engine.model.facts.n_ctx_train
        return tuple([padded(decode, most_tokens=most, n_positions=n_positions) for decode in plan])

    def submit(self, tokenized: Sequence[TokenizedItem], plan: Plan) -> Job[list[Result]]:
        """Ask planned items; the job's `result` waits for theirs. Raises as Classifier.classify_batch does."""
        job: Job[list[Result]] = Job(tokenized, plan=plan)
        self.executor.put(job)
        return job

    def check(self, items: Sequence[tuple[object, object]], deadline_s: float | None = None) -> None:
        """Raise QueryError for a value that is not a query, or has too many bytes to tokenise; tokenises nothing."""
        if len(items) > MAX_QUERIES:
            what = f"{len(items)} queries in one call, at most {MAX_QUERIES} are answered"
            raise QueryError(f"{what}: ask in several calls")
        for _, query in items:
            how = query.how if isinstance(query, LongText) else self._runtime.long_queries
            most = self._most_bytes if how == "refuse" else sys.maxsize
            if not isinstance(query, str):
                is_nan = isinstance(query, float) and query != query
                if query is None or is_nan or type(query).__name__ in ("NAType", "NaTType"):  # as tables have it
                    raise QueryError(f"the query is missing: {shown(query)} is no text; leave it out")
                raise QueryError(f"a query is text, not {type(query).__name__}: {shown(query)}")
            try:
                # A text with more characters than the limit has bytes is refused without being encoded.
                n, unit = (len(query), "characters") if len(query) > most else (len(query.encode()), "bytes")
            except UnicodeEncodeError as e:
                what = f"character {e.start} of the query is not valid Unicode ({e.reason})"
                raise QueryError(f"{what}: write the text in UTF-8") from None
            if n > most:
                limit = f"{most} bytes, {_BYTES_A_TOKEN} for each of runtime.max_query_tokens"
                raise QueryError(f"the query has {n} {unit}, more than {limit}: {_TOO_LONG}")
        if deadline_s is not None and not (isinstance(deadline_s, int | float) and abs(deadline_s) < _LONGEST_S):
            what = f"{shown(deadline_s)} is not a number of seconds below {_LONGEST_S:g}"
            raise QueryError(f"deadline_s: {what}: leave it out to wait")

    def as_read(self, query: str) -> str:
        """The query as it is tokenised: in Unicode's form NFC, unless the tokenizer brings it there itself."""
        return normalize("NFC", query) if self._composes else query

    def tokenize(self, handle: PromptHandle, query: str, known: dict[str, Int32Array] | None = None) -> TokenizedItem:
        """A query that was checked, with the tokens of a set's distinct fragments with the query in them.

        known: the texts that were tokenised for this turn. Of a query with too many tokens a part is tokenised, as
        runtime.long_queries says. Raises QueryError if it says refuse.
        """
        if not handle.is_open:
            raise DecodeError("this prompt set is closed: ask the classifier for it again")
        how = query.how if isinstance(query, LongText) else self._runtime.long_queries
        most, known = self._runtime.max_query_tokens, {} if known is None else known
        whole = part = query if query.isascii() else self.as_read(query)
        n, n_kept, long = most, len(whole), None
        if how != "refuse" and len(whole) > self._most_bytes:  # a text of any size is cut before it is tokenised
            long = LongQuery(whole, how, self.engine.model, self._most_bytes)
            part, n_kept = long.kept(n)
        while True:
            fragments, n_more = [], -most
            for (before, after), n_empty in handle.compiled.fragments.items():
                text = before + part + after
                if (tokens := known.get(text)) is None:
                    tokens = known[text] = self._tokenize(text, parse_special=False)
                n_more = max(n_more, len(tokens) - n_empty - most)
                fragments.append(tokens)
            if n_more <= 0:
                return TokenizedItem(handle, query, fragments, len(whole) - n_kept)
            if how == "refuse":
                has = f"{most + n_more} tokens ({len(query)} characters)"
                raise QueryError(f"the query has {has}, more than runtime.max_query_tokens: {most}: {_TOO_LONG}")
            if long is None:
                long = LongQuery(whole, how, self.engine.model, self._most_bytes)
            else:
                n = max(0, n - n_more)
            part, n_kept = long.kept(n)

    def run(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an action between two turns and return its result. Raises DecodeError if the classifier was closed."""
        return self.executor.run(partial(action, *args, **kwargs))

    def measure_turns(self, handle: PromptHandle) -> float:
        """Measure the fixed cost of a decode; from then on jobs share one only if that saves time."""
        ask, most = (lambda queries: self.answer([(handle, query) for query in queries])), self._runtime.max_batch
        self._fixed_tokens = self.run(measured_fixed_tokens, ask, most)
        return self._fixed_tokens

    # the executor thread, or the thread that starts

    def step(self, turn: Sequence[Job[Any]]) -> Sequence[Any]:
        """The results of the jobs of a turn: what its action returns, or a result for every item."""
        first = turn[0]
        if first.action is not None:
            return [first.action()]
        if len(turn) == 1:
            return [self.answer(first.items, first.plan, [first.arrived_ns] * len(first.items))]
        items = [(item, job.arrived_ns) for job in turn for item in job.items]
        results = iter(self.answer([item for item, _ in items], None, [arrived_ns for _, arrived_ns in items]))
        return [[next(results) for _ in job.items] for job in turn]

    def answer(
        self, items: Sequence[Any], plan: Plan | None = None, arrived_ns: Sequence[int] | None = None
    ) -> list[Result]:
        """A result for every item, with the time of every stage.

        items: tokenised ones with their plan, or Items; arrived_ns: when they began to wait. Raises PlanError before
        anything is computed, DecodeError, ScoreError.
        """
        start_ns = tokenized_ns = perf_counter_ns()
        tokenized: Sequence[TokenizedItem] = items
        if plan is None:
            tokenized, asked = [], []
            known: dict[str, Int32Array] = {}  # questions about one text share it
            for handle, query in items:
                item = self.tokenize(handle, query, known)
                tokenized.append(item)
                asked.append((handle.templates, item.fragments))
            tokenized_ns = perf_counter_ns()
            plan = plan_request(asked)
        planned_ns = perf_counter_ns()
        hidden, rows, fast_path, batch_us, trim_us = self.decode(plan)
        decoded_ns = perf_counter_ns()
        try:
            answers = self._answers(tokenized, hidden, rows, fast_path)
        except ScoreError:
            self.engine.restore()
            raise
        counts = counts_of(len(tokenized), plan)
        end_ns = perf_counter_ns()
        stage_ms = {
            "tokenize": (tokenized_ns - start_ns) / 1e6,
            "plan": (planned_ns - tokenized_ns) / 1e6,
            "batch": batch_us / 1e3,
            "decode": (decoded_ns - planned_ns) / 1e6 - (batch_us + trim_us) / 1e3,
            "score": (end_ns - decoded_ns) / 1e6,
            "cleanup": trim_us / 1e3,
        }
        total_ms = round(sum(stage_ms.values()), 6)  # nanoseconds, as all of them
        results = []
        for item, answer, began_ns in zip(tokenized, answers, arrived_ns or [start_ns] * len(items), strict=True):
            wait_ns = start_ns - began_ns
            result = Result(
                query=item.query,
                total_ms=total_ms,
                stage_ms=stage_ms.copy(),
                counts=counts,
                results=answer,
                model=self.info,
                wait_ms=wait_ns / 1e6 if wait_ns > _LEAST_NS else 0.0,
                n_chars_cut=item.n_chars_cut,
            )
            results.append(result)
        return results

    def decode(self, plan: Plan) -> tuple[Float32Array, IntArray, list[bool], int, int]:
        """Run the decodes of a request.

        Returns the hidden states (n_rows, row size) of all decodes; (n_edges,) the row that every edge of the label
        tries reads; (n_prompts,) whether a prompt took its fast path; and the microseconds that filling batches and
        trimming sequences took.
        """
        if len(plan) == 1:
            hidden, batch_us, trim_us = self.engine.decode(plan[0])
            return hidden, plan[0].rows, plan[0].fast_path, batch_us, trim_us
        states, rows, n_rows, batch_us, trim_us = [], [], 0, 0, 0
        for decode in plan:
            hidden, n_batch_us, n_trim_us = self.engine.decode(decode)
            batch_us, trim_us = batch_us + n_batch_us, trim_us + n_trim_us
            states.append(hidden.copy())  # the next decode overwrites it
            rows.append(decode.rows + n_rows)
            n_rows += decode.n_rows
        fast_path = [is_fast for decode in plan for is_fast in decode.fast_path]
        return np.concatenate(states), np.concatenate(rows), fast_path, batch_us, trim_us

    def _answers(
        self, items: Sequence[TokenizedItem], hidden: Float32Array, rows: IntArray, fast_path: Sequence[bool]
    ) -> list[tuple[PromptResult, ...]]:
        """The answers to all items; those of one prompt set are scored at once. Raises ScoreError."""
        first, layout = items[0].handle, self.engine.layout
        if len(items) == 1 or all(item.handle is first for item in items):
            queries = [item.query for item in items]
            return first.answer_maker.of(hidden, layout, rows.reshape(len(items), -1), fast_path, queries)
        answers: list[tuple[PromptResult, ...]] = []
        row = prompt = 0
        for handle, query, *_ in items:
            end_row, end_prompt = row + handle.n_edges, prompt + len(handle.compiled.fed)
            fast = fast_path[prompt:end_prompt]
            answers += handle.answer_maker.of(hidden, layout, rows[None, row:end_row], fast, [query])
            row, prompt = end_row, end_prompt
        return answers

    def _joins(self, turn: Sequence[Job[Any]], job: Job[Any], n_waiting: int) -> bool:
        """Whether a job may join a turn of others, while n_waiting jobs wait, including this one."""
        jobs = (*turn, job)
        if any(other.action is not None or other.plan is not None for other in jobs):
            return False
        if sum([len(other.items) for other in jobs]) > self._runtime.max_batch:
            return False
        if self._fixed_tokens is None:
            n_gpu_layers = self.engine.model.n_gpu_layers
            return all(pays_to_share(n_gpu_layers, handle.n_prefixes) for other in jobs for handle, _ in other.items)
        n_tokens = sum([handle.estimated_fed(query) for handle, query in job.items])
        return pays_to_join(self._fixed_tokens, len(turn), n_tokens, n_waiting)

    # prompt sets: the executor thread, or the thread that starts

    def add(self, handle: PromptHandle) -> None:
        """Make a prompt set available; changes nothing if the engine's rows cannot hold the logits that it needs."""
        self._handles.append(handle)
        try:
            self._use_rows()
        except BaseException:
            self._handles.remove(handle)
            self._use_rows()
            raise

    def remove(self, handle: PromptHandle) -> None:
        """Unpin a set's prefixes, which is closed."""
        self._handles.remove(handle)
        self.engine.release(handle.held)
        self._use_rows()

    def _use_rows(self) -> None:
        """Let the engine's rows contain what the scorings and heads of all sets need, and compute no more layers."""
        sets = [handle.compiled for handle in self._handles]
        exact = [compiled.label_tokens.tolist() for compiled in sets if compiled.exact]
        tokens = np.array(sorted({token for tokens in exact for token in tokens}), np.int32)
        self.engine.set_rows(*read_depths(sets, self.engine.model.facts.n_layer), tokens)


def _token_ends(data: bytes, tokenizer: Tokenizer) -> list[int]:
    """Where the tokens of a text end, in bytes."""
    text = data.decode(errors="ignore")
    tokens = tokenizer.tokenize(text, parse_special=False).tolist()
    ends = list(accumulate(len(tokenizer.piece(token)[0]) for token in tokens))
    n_more = ends[-1] - len(data) if ends else 0
    if n_more in (0, 1):  # SentencePiece puts a space before the first word
        return [max(0, end - n_more) for end in ends]
    return [len(data) * end // ends[-1] for end in ends]  # its tokens do not spell the text


def counts_of(n_queries: int, plan: Plan) -> Counts:
    """The counts of a request."""
    n_tokens = n_cached = n_positions = 0
    for decode in plan:
        n_tokens += len(decode.token)
        n_cached += decode.n_cached
        n_positions += decode.n_rows
    return Counts(
        n_queries=n_queries,
        n_decodes=len(plan),
        n_tokens_new=n_tokens,
        n_tokens_cached=n_cached,
        n_positions=n_positions,
    )
