"""What the routes work with: what is served, the limits, the metrics; and how each of them asks a query."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import Request

from ..errors import QclsError
from ..loaded_prompts import LoadedPrompts
from ..score.result import Result
from .admission import Place
from .exchange import Exchange
from .metrics import Metrics
from .refusal import RefusedError, refusal_of
from .served import Served
from .serving import Serving
from .settings import RequestLimits, ServiceSettings

T = TypeVar("T")
Answer = Result | RefusedError
"""of one query of several: what is wrong with one does not end the others"""


class Service:
    """One service. For the thread of the event loop."""

    def __init__(self, serving: Serving, metrics: Metrics, settings: ServiceSettings) -> None:
        self.serving = serving
        self.metrics = metrics
        self.settings = settings

    @property
    def limits(self) -> RequestLimits:
        """What a request may hold."""
        return self.settings.limits

    def exchange(self, request: Request, route: str) -> Exchange:
        """The exchange of a request that is answered by a route, with its deadline."""
        exchange = Exchange.of(request.scope)
        exchange.route = route
        exchange.set_deadline(request.scope, self.limits)
        return exchange

    def admitted(self, served: Served, queries: Sequence[str]) -> Place:
        """A block for as long as a request with these queries is in the service. Raises RefusedError (503)."""
        n_tokens = [served.n_tokens(query) for query in queries]
        n_at_once = sum(sorted(n_tokens)[-served.window :])
        return self.serving.admission.admitted(sum(n_tokens), n_at_once, served.classifier.turn_ms)

    async def ask(
        self, exchange: Exchange, served: Served, loaded: LoadedPrompts, query: str, *, param: str, deadline_s: float
    ) -> Result:
        """The answer to a query. param: the field of the request that holds it. Raises RefusedError."""
        try:
            (result,) = await served.ask([(loaded, query)], deadline_s)
        except QclsError as e:
            raise refusal_of(e, param) from None
        self.note(exchange, result, served.n_tokens(query))
        return result

    def note(self, exchange: Exchange, result: Result, n_tokens: float) -> None:
        """Count an answer to a query. n_tokens: of the query, as they are counted when one like it is admitted; of an
        item of `/v1/decisions`, as they were fed.
        """
        exchange.answered(result)
        if result.counts.n_decodes:  # else it was kept
            self.metrics.labelled(result)
            self.serving.admission.learn(n_tokens, result.total_ms, result.counts.n_queries)

    async def ask_all(
        self, exchange: Exchange, served: Served, loaded: LoadedPrompts, queries: Sequence[str]
    ) -> list[Answer]:
        """The answers to several queries, in their order; a query that cannot be labelled has a refusal (422).

        Raises RefusedError for anything else, as then none of them can.
        """

        async def one(query: str, param: str) -> Answer:
            try:
                return await self.ask(exchange, served, loaded, query, param=param, deadline_s=exchange.seconds_left)
            except RefusedError as refusal:
                if refusal.status != 422:
                    raise
                return refusal

        async def each() -> AsyncIterator[Coroutine[Any, Any, Answer]]:
            for index, query in enumerate(queries):
                yield one(query, f"queries[{index}]")

        return [answer async for answer in in_order(each(), served.window)]


async def in_order(work: AsyncIterator[Coroutine[Any, Any, T]], window: int) -> AsyncIterator[T]:
    """What some coroutines return, in their order, as soon as it is there; at most `window` are at work at once.

    So the queries of one request stand between those of others, not all before them.
    """
    slots = asyncio.Semaphore(window)
    tasks: deque[asyncio.Task[T]] = deque()
    news = asyncio.Event()

    async def start() -> None:
        try:
            async for each in work:
                tasks.append(asyncio.create_task(each))
                news.set()
                await slots.acquire()
        finally:
            news.set()

    starting = asyncio.create_task(start())
    try:
        while True:
            while not tasks:
                if starting.done():
                    await starting
                    return
                news.clear()
                await news.wait()
            yield await tasks[0]
            tasks.popleft()
            slots.release()
    finally:
        starting.cancel()
        for task in tasks:
            task.cancel()
