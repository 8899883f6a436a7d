"""Answering a request's questions: some at a time, each by its own prompt set, what fits in one decode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from ..active_set import n_query_tokens, n_tokens_of
from ..engine.pieces import PIECE
from ..errors import ConfigError, PlanError, QclsError, ScoreError
from ..loaded_prompts import LoadedPrompts
from ..questions.compile import PLACE, maker
from ..questions.question import Question
from ..score.result import Result
from .exchange import Exchange
from .found import Found
from .refusal import RefusedError, refusal_of
from .served import Pair, Served, unknown_prompt
from .service import Service

_AT_ONCE = 8
"""questions of one turn: others' requests wait for no more"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question, the text that it is asked about, and what the request calls it, such as `questions[3]`."""

    question: Question
    text: str
    param: str
    n_bytes: int
    """of the question's texts"""


@dataclass(slots=True)
class Usage:
    """Tokens of a request's questions."""

    new: float = 0.0
    """fed behind the prefixes"""
    cached: float = 0.0
    """of prefixes"""
    stored: int = 0
    """of these, those that the request itself had stored"""

    @property
    def whole(self) -> int:
        """Tokens of the questions with their texts."""
        return round(self.new) + round(self.cached)

    def openai(self) -> dict[str, Any]:
        """As OpenAI's decisions have it."""
        details = {"cached_tokens": max(round(self.cached) - self.stored, 0), "cache_write_tokens": self.stored}
        return {
            "input_tokens": self.whole,
            "input_tokens_details": details,
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.whole,
        }

    def chat(self) -> dict[str, int]:
        """As chat completions have it."""
        return {"prompt_tokens": self.whole, "completion_tokens": 0, "total_tokens": self.whole}


def asked_about(text: str, questions: Iterable[tuple[str, Question]], *, audit: bool) -> list[Asked]:
    """Questions about one text, each with what the request calls it; audit: whether exact scores are wanted of them."""
    return [
        Asked(
            question=replace(question, audit=True) if audit else question, text=text, param=param,
            n_bytes=question.n_bytes,
        )
        for param, question in questions
    ]  # fmt: skip


async def decide(
    service: Service, served: Served, exchange: Exchange, asked: Sequence[Asked]
) -> tuple[list[Found | None], Usage]:
    """What is found about each question; None for one whose scores cannot be computed.

    Raises RefusedError, naming a question that cannot be asked.
    """
    limits = service.limits
    if len(asked) > limits.questions:
        what = f"{len(asked)} questions, at most {limits.questions} are allowed"
        raise RefusedError(413, "too large", what, param="questions")
    for each in asked:
        if (n := len(each.question.options)) > limits.options:
            what = f"{each.param}: {n} options, at most {limits.options} are allowed"
            raise RefusedError(413, "too large", what, param=each.param)
        if each.n_bytes > limits.question_bytes:
            what = f"{each.param}: {each.n_bytes:,} bytes, at most {limits.question_bytes:,} bytes are allowed"
            raise RefusedError(413, "too large", what, param=each.param)
    usage = Usage()
    found: list[Found | None] = []
    n_tokens = sum([n_query_tokens(each.text) + n_tokens_of(each.n_bytes) for each in asked])
    n_at_once = [_n_at_once(each, served) for each in asked]
    turn_ms = served.classifier.turn_ms
    with service.serving.admission.admitted(n_tokens, sum(sorted(n_at_once)[-_AT_ONCE:]), turn_ms), served:
        while len(found) < len(asked):
            found += await _some(service, served, exchange, asked[len(found) : len(found) + _AT_ONCE], usage)
    return found, usage


def _n_at_once(asked: Asked, served: Served) -> int:
    """About how many tokens of a question others wait for: its text's, and a piece of what is to be stored."""
    is_known = asked.question.configured is not None or asked.question in served.sets
    return n_query_tokens(asked.text) + (0 if is_known else min(n_tokens_of(asked.n_bytes), PIECE))


async def decide_all(
    service: Service, served: Served, exchange: Exchange, asked: Sequence[Asked]
) -> tuple[list[Found], Usage]:
    """The same for an API that answers all questions or none: raises RefusedError (500) where one has no scores."""
    found, usage = await decide(service, served, exchange, asked)
    whole: list[Found] = []
    for question, each in zip(asked, found, strict=True):
        if each is None:
            raise RefusedError(500, "failed", f"{question.param}: its scores are not finite", param=question.param)
        whole.append(each)
    return whole, usage


async def _some(
    service: Service, served: Served, exchange: Exchange, asked: Sequence[Asked], usage: Usage
) -> list[Found | None]:
    """What is found about the first questions, as many as the engine has room for, at least about one."""
    found: list[Found | None] = []
    pairs: list[Pair] = []
    places: list[int] = []
    async with AsyncExitStack() as stack:
        for each in asked:
            if each.question.configured is None and len(each.question.options) == 1:
                found.append(Found([1.0]))
                continue
            waits_s = 0.0 if pairs else exchange.seconds_left
            try:
                loaded = await stack.enter_async_context(_loaded(served, each, usage, waits_s))
            except RefusedError as refusal:
                if refusal.reason == "room" and pairs:
                    break
                raise
            except ConfigError as e:
                raise refusal_of(ConfigError(str(e).replace(PLACE, each.param)), each.param) from None
            places.append(len(found))
            found.append(None)
            pairs.append((loaded, each.text))
        results = await _results(service, served, exchange, pairs, usage)
    for place, result in zip(places, results, strict=True):
        if result is not None:
            (answer,) = result.results
            by_label = {score.label: score.probability for score in answer.scores}
            found[place] = Found(
                [by_label[option.label] for option in asked[place].question.options],
                answer.audit.label_mass if answer.audit else None,
            )
    return found


def _loaded(served: Served, asked: Asked, usage: Usage, waits_s: float) -> AbstractAsyncContextManager[LoadedPrompts]:
    """The prompt set of a question. Raises RefusedError and ConfigError."""
    question = asked.question
    if (name := question.configured) is None:
        if question not in served.sets:
            usage.stored += n_tokens_of(asked.n_bytes)
        return served.sets.using(question, maker(question, served.forms), waits_s)
    if name not in served.prompts:
        raise unknown_prompt(name, served.prompts, asked.param)
    labels = served.prompts[name].labels
    if {option.label for option in question.options} != set(labels):
        what = f"the options are not the labels of the configured prompt {name!r}: give {', '.join(labels)[:500]}"
        raise RefusedError(422, "invalid", what, param=asked.param)
    return served.some_prompts((name,), None, audit=question.audit)


async def _results(
    service: Service, served: Served, exchange: Exchange, pairs: Sequence[Pair], usage: Usage
) -> list[Result | None]:
    """The answer to each pair; None for one whose scores cannot be computed. Raises RefusedError."""
    if not pairs:
        return []
    try:
        results = await served.ask(pairs, exchange.seconds_left)
    except ScoreError:
        if len(pairs) == 1:
            return [None]
        return [
            each for pair in pairs for each in await _results(service, served, exchange, [pair], usage)
        ]  # one by one, which shows whose scores cannot be used
    except PlanError as e:
        raise refusal_of(e, "input") from None
    except QclsError as e:
        raise refusal_of(e) from None
    for result in results:
        counts = result.counts  # of the turn, which others' queries may share
        n_new = counts.n_tokens_new / counts.n_queries
        usage.new += n_new
        usage.cached += counts.n_tokens_cached / counts.n_queries
        service.note(exchange, result, n_new)
    return list(results)
