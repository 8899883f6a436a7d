"""Asking the classifier what a request wants: its texts by configured prompts, or its questions.

For the thread of the event loop. All functions raise RefusedError, and QclsError for what cannot be computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from functools import partial
from typing import Any

import orjson
from starlette.requests import ClientDisconnect

from ..core.core import Item, LongText
from ..errors import QclsError
from ..questions.question import TextQuestion
from ..score.result import PromptResult, Result
from .dialect import Dialect, Inquiry, Texts
from .exchange import Exchange, T
from .refusal import RefusedError, check_size, json_value, openai_words, parse, refusal_of

_MOST_QUESTION_BYTES = 32_768
"""of a question's texts, without what it is asked about"""
_SPLIT = "send several requests, or start the service with a larger --max-queries"


async def answer(asked: Inquiry, exchange: Exchange) -> object:
    """The body of the answer to a request."""
    most = exchange.limits.queries
    if isinstance(asked, Texts):
        check_size(len(asked.texts), most, "texts", asked.param, _SPLIT)
        with exchange.lifecycle.admitted(len(asked.texts)), exchange.backend:
            return asked.answer(await _labelled(asked, exchange), exchange.usage)
    questions: list[TextQuestion] = []
    for n, question in enumerate(asked.questions, 1):
        check_size(n, most, "questions", "questions", _SPLIT)
        check_size(question.question.n_bytes, _MOST_QUESTION_BYTES, "bytes", question.param, "shorten it")
        questions.append(question)
    ask, asker = partial(_results, exchange=exchange), exchange.backend.asker
    with exchange.lifecycle.admitted(len(questions)), exchange.backend:
        answers = await asker.answers(questions, ask, lambda: exchange.seconds_left, exchange.usage)
        for question, distribution in zip(questions, answers, strict=True):
            if distribution is None and not asked.is_partial:
                what = f"{question.param}: its scores are not finite"
                raise RefusedError(500, "failed", what, param=question.param)
        return asked.answer(answers, exchange.usage)


async def lines(dialect: Dialect, exchange: Exchange) -> AsyncIterator[bytes]:
    """An answer for every line that arrives, in the same order; an error in one line does not affect the others."""
    exchange.streams = True

    async def work() -> AsyncIterator[Coroutine[Any, Any, object]]:
        async for number, line in exchange.read_lines():
            yield _answered_line(dialect, exchange, number, line)

    try:
        exchange.backend = exchange.lifecycle.backend
        with exchange.lifecycle.admitted(0), exchange.backend:
            async for body in in_order(work(), exchange.backend.window):
                yield json_bytes(body) + b"\n"
    except RefusedError as refusal:  # the answer has begun, so its last line reports this
        exchange.reason = refusal.reason
        yield json_bytes(openai_words(refusal)) + b"\n"
    except ClientDisconnect:
        exchange.metrics.gone.inc()


async def _answered_line(dialect: Dialect, exchange: Exchange, number: int, line: bytes) -> object:
    head: dict[str, object] = {"line": number}
    try:
        asked = dialect.ask(parse(dialect.request, json_value(line)), exchange)
        if not isinstance(asked, Texts) or asked.is_partial:
            raise RefusedError(422, "invalid", "a line is one query: send the others in lines of their own")
        head[asked.param] = asked.texts[0]
        return asked.answer(await _labelled(asked, exchange), exchange.usage)
    except (RefusedError, QclsError) as e:
        return head | openai_words(refusal_of(e))


async def _labelled(asked: Texts, exchange: Exchange) -> list[Result | RefusedError]:
    """The answers to texts; with is_partial instead a refusal for a text that cannot be labelled (422) or had no turn
    before the deadline (504).
    """
    backend, is_list = exchange.backend, asked.is_partial or len(asked.texts) > 1

    async def labelled(index: int, text: str) -> Result | RefusedError:
        query = text if asked.long is None else LongText(text, asked.long)
        try:
            return (await _results([(loaded, query)], exchange=exchange))[0]
        except QclsError as e:
            param = f"{asked.param}[{index}]" if is_list else asked.param
            refusal = refusal_of(e, param)
            if asked.is_partial and refusal.status in (422, 504):
                return refusal
            if is_list:
                refusal.message = f"{param}: {refusal.message}"
            raise refusal from None

    async def work() -> AsyncIterator[Coroutine[Any, Any, Result | RefusedError]]:
        for index, text in enumerate(asked.texts):
            yield labelled(index, text)

    async with backend.asker.configured(asked.prompts, asked.scoring, audit=asked.audit) as loaded:
        if not is_list:
            return [await labelled(0, asked.texts[0])]
        answers = [result async for result in in_order(work(), backend.window)]
    late = [result for result in answers if isinstance(result, RefusedError) and result.status == 504]
    if late and len(late) == len(answers):
        raise late[0]
    return answers


async def _results(pairs: Sequence[Item], *, exchange: Exchange) -> list[Result]:
    """The answers to pairs, all from one turn; they are counted."""
    results = await exchange.backend.classifier.aclassify_pairs(pairs, deadline_s=exchange.seconds_left)
    for result in results:
        exchange.answered(result)
    return results


async def in_order(work: AsyncIterator[Coroutine[Any, Any, T]], window: int) -> AsyncIterator[T]:
    """The results of some coroutines, in their order, as soon as they are ready; at most `window` run at once.

    So the queries of one request do not all go before those of other requests.
    """
    slots = asyncio.Semaphore(window)
    tasks: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()

    async def start() -> None:
        async for coroutine in work:
            tasks.put_nowait(asyncio.create_task(coroutine))
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
