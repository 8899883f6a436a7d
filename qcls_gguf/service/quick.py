"""The requests that come most, `/v1/classify` with a query and nothing else, answered without a task of their own.

Such a request is asked of the engine as soon as it is read, and its answer written as soon as it is there, which takes
the event loop a third less time. Whatever is not quite plain goes the usual way, which also says what is wrong with a
request. Both ways give the same answers, headers, log lines and counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter_ns

import orjson
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ..errors import QclsError
from ..requests import with_wait
from ..score.result import Result
from .admission import Place
from .bodies import JSON, Scope, headers_of
from .classify_api import ROUTE
from .door import GONE, Door
from .exchange import Exchange
from .protocol import Protocol
from .refusal import RefusedError, refusal_of
from .served import Served
from .service import Service
from .writing import answer, json_bytes

_JSON = JSON.encode()
_N_QUOTES = 4  # of a key and a text
_JSON_LINE = b"content-type: %b\r\n" % _JSON


class QuickAnswers:
    """For `Protocol`: whether a request is answered here."""

    def __init__(self, service: Service, door: Door) -> None:
        self._service = service
        self._door = door

    def __call__(self, connection: Protocol, request: RequestResponseCycle) -> bool:
        """Ask the engine, where the request is plain and nothing is wrong with it."""
        scope: Scope = request.scope  # type: ignore[assignment]
        if scope["path"] != ROUTE or scope["method"] != "POST" or not _is_plain(scope, connection, request):
            return False
        try:
            limits, served = self._service.limits, self._service.serving.served
            if len(request.body) > limits.body_bytes or not served.asks_the_engine:
                return False
            if (query := plain_query(request.body)) is None:
                return False
            self._door.check_key(scope)
            exchange = Exchange(scope)
            exchange.route = ROUTE
            exchange.set_deadline(scope, limits)
            _Asked(self._service, self._door, connection, request, exchange, served, query).ask(query)
        except Exception:  # the usual way meets it again, and says so
            return False
        return True


def _is_plain(scope: Scope, connection: Protocol, request: RequestResponseCycle) -> bool:
    headers = headers_of(scope)
    return (
        headers.get(b"content-type", _JSON) == _JSON
        and b"content-encoding" not in headers
        and not request.waiting_for_100_continue
        and not connection.flow.write_paused  # the client does not read
    )


def plain_query(body: bytes | bytearray) -> str | None:
    """The query of a body that is `{"query": "a text"}`; None for any other."""
    if b"\\" not in body and body.count(b'"') != _N_QUOTES:  # which the usual way will parse
        return None
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    query = asked.get("query") if type(asked) is dict and len(asked) == 1 else None
    return query if type(query) is str else None


class _Asked:
    """A request whose answer is awaited. The engine's batcher gives it in the thread of the event loop."""

    __slots__ = (
        "_began_ns", "_connection", "_door", "_exchange", "_is_over", "_place", "_request", "_served", "_service",
    )  # fmt: skip

    def __init__(
        self, service: Service, door: Door, connection: Protocol, request: RequestResponseCycle, exchange: Exchange,
        served: Served, query: str,
    ) -> None:  # fmt: skip
        """Raises RefusedError where too much is in the service."""
        self._service = service
        self._door = door
        self._connection = connection
        self._request = request
        self._exchange = exchange
        self._served = served
        self._place: Place = service.admitted(served, [query])
        self._began_ns = perf_counter_ns()
        self._is_over = False

    def ask(self, query: str) -> None:
        """Ask the engine. Raises QclsError where it takes no such query."""
        deadline_s = self._exchange.seconds_left
        self._place.__enter__()
        self._served.__enter__()
        self._connection.on_lost = self._leave
        try:  # the engine's thread, once woken, waits until this one does: little comes behind it
            self._served.classifier.configured.classify_for(self, query, deadline_s=deadline_s)
        except BaseException:
            self._release()
            raise
        self._door.begin()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """For the batcher."""
        return self._connection.loop

    def cancelled(self) -> bool:
        """Whether the client has left; for the batcher."""
        return self._is_over

    def done(self) -> bool:
        """The same; for the batcher."""
        return self._is_over

    def set_result(self, results: Sequence[Result], /) -> None:
        """Answer; for the batcher."""
        self._release()
        try:
            (result,) = with_wait(results, self._began_ns)
            self._service.note(self._exchange, result, self._served.n_tokens(result.query))
            body = json_bytes(answer(result, self._served.model_json))
        except Exception:
            self._refuse(self._door.failure(self._exchange))
            return
        self._send(200, _JSON_LINE, body)

    def set_exception(self, exception: Exception, /) -> None:
        """Say what went wrong; for the batcher."""
        self._release()
        if isinstance(exception, QclsError):
            self._refuse(refusal_of(exception, "query"))
            return
        try:
            raise exception
        except Exception:
            self._refuse(self._door.failure(self._exchange))

    def _refuse(self, refusal: RefusedError) -> None:
        response = self._door.refused(refusal, self._scope)
        self._send(response.status_code, response.lines, bytes(response.body))

    def _send(self, status: int, lines: bytes, body: bytes) -> None:
        self._connection.answer(self._request, status, lines + self._exchange.header_lines(), body)
        self._door.end(self._scope, self._exchange, status, len(body))

    def _leave(self) -> None:
        """The client has left."""
        self._release()
        self._service.metrics.gone()
        self._door.end(self._scope, self._exchange, GONE, 0)

    def _release(self) -> None:
        """Leave the room in the service to others."""
        self._is_over = True
        self._connection.on_lost = None
        self._served.__exit__()
        self._place.__exit__()

    @property
    def _scope(self) -> Scope:
        return self._request.scope  # type: ignore[return-value]
