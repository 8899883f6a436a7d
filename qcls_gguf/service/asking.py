"""Asking the classifier what a request wants: its texts by configured prompts, or its questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request

from ..core.handle import LoadedPrompts, n_tokens_of
from ..errors import CapacityError, ConfigError, PlanError, QclsError, ScoreError
from ..questions.distribution import Distribution
from ..questions.question import PLACE
from ..questions.sets import RoomError
from ..report.drift import alarm_text
from ..score.result import PromptResult, Result
from .backend import Backend, Pair
from .bodies import json_value, read_lines
from .dialect import Completions, Dialect, Questions, TextQuestion, Texts, Usage, unknown_prompt
from .exchange import Exchange, log
from .lifecycle import Lifecycle
from .metrics import Metrics
from .refusal import RefusedError, check_size, openai_words, parse, refusal_of
from .settings import RequestLimits

_AT_ONCE = 8
"""the most questions of one request in one turn, so that other requests do not wait longer"""
T = TypeVar("T")


class Asker:
    """Answers requests by a backend. For the thread of the event loop.

    Raises RefusedError, and QclsError for requests that cannot be computed.
    """

    def __init__(self, lifecycle: Lifecycle, metrics: Metrics, limits: RequestLimits) -> None:
        self.lifecycle = lifecycle
        self.limits = limits
        self._admission = lifecycle.admission
        self._metrics = metrics

    async def answer(self, asked: Texts | Questions | Completions, backend: Backend, exchange: Exchange) -> object:
        """The body of the answer to a request. Raises RefusedError."""
        if isinstance(asked, Completions):
            check_size(len(asked.prompts), self.limits.queries, "prompts", "prompt")
            with self._admission.admitted(len(asked.prompts)), backend:
                return asked.answer(
                    await backend.scored(asked.prompts, exchange.seconds_left, from_start=asked.from_start)
                )
        if isinstance(asked, Questions):
            questions: list[TextQuestion] = []
            for each in asked.questions:
                check_size(len(questions) + 1, self.limits.queries, "questions", "questions")
                check_size(each.question.n_bytes, self.limits.question_bytes, "bytes", each.param)
                questions.append(each)
            with self._admission.admitted(len(questions)), backend:
                return await self._answered(asked, questions, backend, exchange)
        check_size(len(asked.texts), self.limits.queries, "texts", asked.param)
        if not asked.texts and not asked.is_partial:
            raise RefusedError(400, "invalid", f"{asked.param} is empty: send at least one text", param=asked.param)
        with self._admission.admitted(len(asked.texts)), backend:
            return asked.answer(await self._labelled(asked, backend, exchange))

    async def lines(self, dialect: Dialect, request: Request) -> AsyncIterator[bytes]:
        """An answer for each line that arrives, in the same order; an error in one line does not affect the others."""
        exchange = Exchange.of(request.scope)
        exchange.streams = True

        async def each() -> AsyncIterator[Coroutine[Any, Any, object]]:
            async for number, line in read_lines(request, self.limits):
                yield self._line(dialect, backend, exchange, number, line)

        try:
            backend = self.lifecycle.backend
            with self._admission.admitted(0), backend:
                async for answer in in_order(each(), backend.window):
                    yield json_bytes(answer) + b"\n"
        except RefusedError as refusal:  # the answer has begun, so its last line reports this
            exchange.reason = refusal.reason
            yield json_bytes(openai_words(refusal)) + b"\n"
        except ClientDisconnect:
            self._metrics.gone.inc()

    async def _line(self, dialect: Dialect, backend: Backend, exchange: Exchange, number: int, line: bytes) -> object:
        head: dict[str, object] = {"line": number}
        assert dialect.line is not None
        try:
            asked = dialect.ask(parse(dialect.line, json_value(line)), backend.context(exchange.request_id, {}))
            assert isinstance(asked, Texts)
            head[asked.param] = asked.texts[0]
            return asked.answer(await self._labelled(asked, backend, exchange))
        except (RefusedError, QclsError) as e:
            return head | openai_words(refusal_of(e))

    async def _labelled(self, asked: Texts, backend: Backend, exchange: Exchange) -> list[Result | RefusedError]:
        """The answer to each text; with is_partial instead a refusal for a text that cannot be labelled (422) or had no
        turn before the deadline (504).
        """
        is_list = asked.is_partial or len(asked.texts) > 1

        async def one(index: int, text: str) -> Result | RefusedError:
            param = f"{asked.param}[{index}]" if is_list else asked.param
            try:
                (result,) = await backend.ask([(loaded, text)], exchange.seconds_left)
            except QclsError as e:
                refusal = refusal_of(e, param)
                if asked.is_partial and refusal.status in (422, 504):
                    return refusal
                if is_list:
                    refusal.message = f"{param}: {refusal.message}"
                raise refusal from None
            self._note(exchange, result)
            if backend.drift is not None and asked.scoring is None:
                for prompt, what in backend.drift.add(result):
                    self._metrics.drift.labels(prompt, what).inc()
                    log.warning("drift: %s", alarm_text(prompt, what))
            return result

        async def each() -> AsyncIterator[Coroutine[Any, Any, Result | RefusedError]]:
            for index, text in enumerate(asked.texts):
                yield one(index, text)

        async with backend.configured(asked.prompts, asked.scoring, audit=asked.audit) as loaded:
            if not is_list:
                return [await one(0, asked.texts[0])]
            answers = [answer async for answer in in_order(each(), backend.window)]
        late = [answer for answer in answers if isinstance(answer, RefusedError) and answer.status == 504]
        if late and len(late) == len(answers):
            raise late[0]
        return answers

    def _note(self, exchange: Exchange, result: Result) -> None:
        """Count an answer."""
        exchange.answered(result)
        self._metrics.labelled(result)
        self._admission.learn(result.total_ms / result.counts.n_queries)

    # --- questions -----------------------------------------------------------------------------------------------

    async def _answered(
        self, asked: Questions, given: Sequence[TextQuestion], backend: Backend, exchange: Exchange
    ) -> object:
        """The body of the answer to questions, which are asked in groups."""
        usage = Usage()
        questions = backend.prepared(given)
        answers: list[Distribution | None] = []  # None: its scores cannot be computed
        while len(answers) < len(questions):
            some = questions[len(answers) : len(answers) + _AT_ONCE]
            answers += await self._some(some, backend, exchange, usage)
        for each, answer in zip(given, answers, strict=True):
            if answer is None and not asked.is_partial:
                raise RefusedError(500, "failed", f"{each.param}: its scores are not finite", param=each.param)
        return asked.answer(answers, usage)

    async def _some(
        self, questions: Sequence[TextQuestion], backend: Backend, exchange: Exchange, usage: Usage
    ) -> list[Distribution | None]:
        """The answers to the first questions, as many as the engine has room for, at least one."""
        answers: list[Distribution | None] = []
        pairs: dict[int, Pair] = {}  # by the place of the answer
        async with AsyncExitStack() as stack:
            for place, each in enumerate(questions):
                is_sure = each.question.configured is None and len(each.question.options) == 1
                if not is_sure:
                    waits_s = 0.0 if pairs else exchange.seconds_left
                    try:
                        loaded = await stack.enter_async_context(self._prompts(each, backend, usage, waits_s))
                    except RoomError as e:
                        if not pairs:
                            log.warning("no room for a question: %s", e)
                            raise
                        break
                    except CapacityError as e:
                        log.warning("a question was refused: %s", str(e).replace(PLACE, each.param))
                        n = len(each.question.options)
                        what = f"{each.param}: {n} options and their question do not fit: give fewer or shorter texts"
                        raise RefusedError(422, "invalid", what, param=each.param) from None
                    except ConfigError as e:
                        raise refusal_of(ConfigError(str(e).replace(PLACE, each.param)), each.param) from None
                    pairs[place] = loaded, each.text
                answers.append(Distribution([1.0]) if is_sure else None)
            results = await self._results(list(pairs.values()), backend, exchange, usage)
        for place, result in zip(pairs, results, strict=True):
            if result is not None:
                answer = result.results[0]
                mass = answer.audit.label_mass if answer.audit else None
                probabilities = backend.probabilities(questions[place].question, result)
                answers[place] = Distribution(probabilities, mass, answer.stage, answer.depth, answer.label_set)
        return answers

    def _prompts(
        self, asked: TextQuestion, backend: Backend, usage: Usage, waits_s: float
    ) -> AbstractAsyncContextManager[LoadedPrompts]:
        """The prompt set of a question. Raises RefusedError and ConfigError."""
        question = asked.question
        if (name := question.configured) is None:
            if question not in backend.sets:
                usage.stored += n_tokens_of(question.n_bytes)
            return backend.question(question, waits_s)
        if name not in backend.prompts:
            raise unknown_prompt(name, backend.prompts, asked.param)
        labels = backend.prompts[name].labels
        if {option.label for option in question.options} != set(labels):
            what = f"the options are not the labels of the configured prompt {name!r}: give {', '.join(labels)[:500]}"
            raise RefusedError(422, "invalid", what, param=asked.param)
        return backend.configured((name,), None, audit=question.audit)

    async def _results(
        self, pairs: Sequence[Pair], backend: Backend, exchange: Exchange, usage: Usage
    ) -> list[Result | None]:
        """The answer to each pair; None for one whose scores cannot be computed."""
        if not pairs:
            return []
        try:
            results = await backend.ask(pairs, exchange.seconds_left)
        except ScoreError:
            if len(pairs) == 1:
                return [None]
            # one by one, which shows whose scores cannot be used
            return [each for pair in pairs for each in await self._results([pair], backend, exchange, usage)]
        except PlanError as e:
            raise refusal_of(e, "input") from None
        for result in results:
            counts = result.counts  # of the turn, which others' queries may share
            usage.new += counts.n_tokens_new / counts.n_queries
            usage.cached += counts.n_tokens_cached / counts.n_queries
            self._note(exchange, result)
        return list(results)


async def in_order(work: AsyncIterator[Coroutine[Any, Any, T]], window: int) -> AsyncIterator[T]:
    """The results of some coroutines, in their order, each as soon as it is ready; at most `window` run at once.

    So the queries of one request do not all go before those of other requests.
    """
    slots = asyncio.Semaphore(window)
    tasks: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()

    async def start() -> None:
        async for each in work:
            tasks.put_nowait(asyncio.create_task(each))
            await slots.acquire()

    starting = asyncio.create_task(start())
    starting.add_done_callback(tasks.put_nowait)  # after all others
    try:
        while (task := await tasks.get()) is not starting:
            yield await task
            slots.release()
        await starting
    finally:
        starting.cancel()
        while not tasks.empty():
            tasks.get_nowait().cancel()


def json_bytes(value: object) -> bytes:
    """JSON in UTF-8; an answer as `PromptResult.to_dict` has it."""
    return orjson.dumps(value, default=PromptResult.to_dict)  # whose tuples are what orjson does not know of a Result
