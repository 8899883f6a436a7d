"""Asking the classifier what a request wants: its texts by configured prompts, or its questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect

from ..core.long_queries import LongText
from ..errors import QclsError
from ..questions.asking import Pair
from ..questions.question import TextQuestion
from ..score.result import PromptResult, Result
from .dialect import Dialect, Inquiry, Questions, Texts
from .exchange import Exchange
from .lifecycle import Lifecycle
from .metrics import Metrics
from .refusal import RefusedError, check_size, json_value, openai_words, parse, refusal_of

T = TypeVar("T")
_SPLIT = "send several requests, or start the service with a larger --max-queries"


@dataclass(frozen=True, slots=True)
class Asker:
    """Answers requests by their backends. For the thread of the event loop.

    Raises RefusedError, and QclsError for requests that cannot be computed.
    """

    lifecycle: Lifecycle
    metrics: Metrics

    async def answer(self, asked: Inquiry, exchange: Exchange) -> object:
        """The body of the answer to a request."""
        limits = exchange.limits
        found: Callable[[], Awaitable[list[Any]]]
        match asked:
            case Questions():
                questions: list[TextQuestion] = []
                for each in asked.questions:
                    check_size(len(questions) + 1, limits.queries, "questions", "questions", _SPLIT)
                    check_size(each.question.n_bytes, limits.question_bytes, "bytes", each.param, "shorten it")
                    questions.append(each)
                n, found = len(questions), partial(self._answered, asked, questions, exchange)
            case Texts(texts=texts, param=param):
                n, found = len(texts), partial(self._labelled, asked, exchange)
                check_size(n, limits.queries, "texts", param, _SPLIT)
                if not texts and not asked.is_partial:
                    raise RefusedError(400, "invalid", f"{param} is empty: send at least one text", param=param)
        with self.lifecycle.admission.admitted(n), exchange.backend:
            return asked.answer(await found(), exchange.usage)

    async def lines(self, dialect: Dialect, exchange: Exchange) -> AsyncIterator[bytes]:
        """An answer for each line that arrives, in the same order; an error in one line does not affect the others."""
        exchange.streams = True

        async def each() -> AsyncIterator[Coroutine[Any, Any, object]]:
            async for number, line in exchange.read_lines():
                yield self._line(dialect, exchange, number, line)

        try:
            exchange.backend = self.lifecycle.backend
            with self.lifecycle.admission.admitted(0), exchange.backend:
                async for answer in in_order(each(), exchange.backend.window):
                    yield json_bytes(answer) + b"\n"
        except RefusedError as refusal:  # the answer has begun, so its last line reports this
            exchange.reason = refusal.reason
            yield json_bytes(openai_words(refusal)) + b"\n"
        except ClientDisconnect:
            self.metrics.gone.inc()

    async def _line(self, dialect: Dialect, exchange: Exchange, number: int, line: bytes) -> object:
        head: dict[str, object] = {"line": number}
        assert dialect.line is not None
        try:
            asked = dialect.ask(parse(dialect.line, json_value(line)), exchange.context)
            assert isinstance(asked, Texts)
            head[asked.param] = asked.texts[0]
            return asked.answer(await self._labelled(asked, exchange), exchange.usage)
        except (RefusedError, QclsError) as e:
            return head | openai_words(refusal_of(e))

    async def _labelled(self, asked: Texts, exchange: Exchange) -> list[Result | RefusedError]:
        """The answer to each text; with is_partial instead a refusal for a text that cannot be labelled (422) or had no
        turn before the deadline (504).
        """
        backend, is_list = exchange.backend, asked.is_partial or len(asked.texts) > 1

        async def one(index: int, text: str) -> Result | RefusedError:
            param = f"{asked.param}[{index}]" if is_list else asked.param
            query = text if asked.long is None else LongText(text, asked.long)
            try:
                (result,) = await self._results([(loaded, query)], exchange)
            except QclsError as e:
                refusal = refusal_of(e, param)
                if asked.is_partial and refusal.status in (422, 504):
                    return refusal
                if is_list:
                    refusal.message = f"{param}: {refusal.message}"
                raise refusal from None
            return result

        async def each() -> AsyncIterator[Coroutine[Any, Any, Result | RefusedError]]:
            for index, text in enumerate(asked.texts):
                yield one(index, text)

        async with backend.asker.configured(asked.prompts, asked.scoring, audit=asked.audit) as loaded:
            if not is_list:
                return [await one(0, asked.texts[0])]
            answers = [answer async for answer in in_order(each(), backend.window)]
        late = [answer for answer in answers if isinstance(answer, RefusedError) and answer.status == 504]
        if late and len(late) == len(answers):
            raise late[0]
        return answers

    async def _results(self, pairs: Sequence[Pair], exchange: Exchange) -> list[Result]:
        """The answer to each pair, all from one turn; they are counted."""
        classifier = exchange.backend.classifier
        results = await classifier.aclassify_pairs(pairs, deadline_s=exchange.seconds_left)
        for result in results:
            exchange.answered(result)
            self.metrics.labelled(result)
            self.lifecycle.admission.learn(result.total_ms / result.counts.n_queries)
        return results

    async def _answered(self, asked: Questions, given: Sequence[TextQuestion], exchange: Exchange) -> list[Any]:
        """The answers to questions. Raises RefusedError (500) for one without, unless the others are wanted."""
        ask, asker = partial(self._results, exchange=exchange), exchange.backend.asker
        answers: list[Any] = await asker.answers(given, ask, lambda: exchange.seconds_left, exchange.usage)
        for each, answer in zip(given, answers, strict=True):
            if answer is None and not asked.is_partial:
                raise RefusedError(500, "failed", f"{each.param}: its scores are not finite", param=each.param)
        return answers


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
