"""Asking the classifier what a request wants: its texts by configured prompts, or its questions.

For the thread of the event loop. All functions raise RefusedError, and QclsError for what cannot be computed.
"""

import asyncio

import orjson

from ..core.core import LongText
from ..errors import QclsError
from ..questions.question import TextQuestion
from ..score.result import PromptResult, Result
from .dialect import Inquiry, Texts
from .exchange import Exchange
from .refusal import RefusedError, check_size, refusal_of

_MOST_QUESTION_BYTES = 32_768
"""of a question's texts, without what it is asked about"""
_SPLIT = "send several requests, or start the service with a larger --max-queries"


async def answer(asked: Inquiry, exchange: Exchange) -> object:
    """The body of the answer to a request."""
    backend, most = exchange.backend, exchange.limits.queries
    if isinstance(asked, Texts):
        check_size(len(asked.texts), most, "texts", asked.param, _SPLIT)
        with exchange.lifecycle.admitted(len(asked.texts)):
            return asked.answer(await _labelled(asked, exchange), exchange.usage)
    questions: list[TextQuestion] = []
    for n, question in enumerate(asked.questions, 1):
        check_size(n, most, "questions", "questions", _SPLIT)
        check_size(question.question.n_bytes, _MOST_QUESTION_BYTES, "bytes", question.param, "shorten it")
        questions.append(question)
    with exchange.lifecycle.admitted(len(questions)):
        answers = await backend.answers(questions, exchange.results, lambda: exchange.seconds_left, exchange.usage)
        for question, distribution in zip(questions, answers, strict=True):
            if distribution is None and not asked.is_partial:
                what = f"{question.param}: its scores are not finite"
                raise RefusedError(500, "failed", what, param=question.param)
        return asked.answer(answers, exchange.usage)


async def _labelled(asked: Texts, exchange: Exchange) -> list[Result | RefusedError]:
    """The answers to texts; with is_partial instead a refusal for a text that cannot be labelled (422) or had no turn
    before the deadline (504).
    """
    backend, is_list = exchange.backend, asked.is_partial or len(asked.texts) > 1
    # so that not all go before those of other requests; one more than a decode takes waits while that is computed
    window = asyncio.Semaphore(backend.classifier.config.runtime.max_batch + 1)

    async def labelled(index: int, text: str) -> Result | RefusedError:
        query = text if asked.long is None else LongText(text, asked.long)
        try:
            async with window:
                return (await exchange.results([(loaded, query)]))[0]
        except QclsError as e:
            param = f"{asked.param}[{index}]" if is_list else asked.param
            refusal = refusal_of(e, param)
            if asked.is_partial and refusal.status in (422, 504):
                return refusal
            if is_list:
                refusal.message = f"{param}: {refusal.message}"
            raise refusal from None

    async with backend.configured(asked.prompts) as loaded:
        if not is_list:
            return [await labelled(0, asked.texts[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(labelled(*numbered)) for numbered in enumerate(asked.texts)]
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
    answers = [task.result() for task in tasks]
    late = [result for result in answers if isinstance(result, RefusedError) and result.status == 504]
    if late and len(late) == len(answers):
        raise late[0]
    return answers


def json_bytes(value: object) -> bytes:
    """JSON in UTF-8; an answer as `PromptResult.to_dict` has it."""
    return orjson.dumps(value, default=PromptResult.to_dict)  # whose tuples are what orjson does not know of a Result
