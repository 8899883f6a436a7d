"""Plain requests take the quick way; it answers, refuses, logs and counts as the usual way does."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import pytest
import uvicorn
import waiting
from served import ROOT, answers, raw, received
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from qcls_gguf import DecodeError, load_config
from qcls_gguf.service.access_log import log
from qcls_gguf.service.admission import Admission
from qcls_gguf.service.app import build_app
from qcls_gguf.service.door import Door
from qcls_gguf.service.protocol import Protocol
from qcls_gguf.service.serving import Serving
from qcls_gguf.service.settings import RequestLimits, ServiceSettings

QUERY = json.dumps({"query": "red dress"}).encode()
USUAL = "content-type: application/json; charset=utf-8"
KEY = "authorization: Bearer first"
until = partial(waiting.until, most_s=20)


class _Uvicorn(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Leave them to the tests."""


class Service:
    """A service in a thread of this process, so that tests see which way a request takes."""

    def __init__(self) -> None:
        self.usual: list[RequestResponseCycle] = []
        """requests that were served in a task"""
        self.lines: list[dict[str, Any]] = []
        """of the access log"""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        limits = RequestLimits(body_bytes=20_000)
        settings = ServiceSettings(api_keys=("first",), log_format="json", limits=limits)
        config = load_config(ROOT / "configs/mission.yaml")
        config = replace(config, runtime=replace(config.runtime, n_threads=1))
        self.serving = Serving(lambda: config, settings)
        door = build_app(self.serving, settings)
        assert isinstance(door, Door)
        self.door = door
        self.server = _Uvicorn(
            uvicorn.Config(
                door, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False
            )
        )
        serving = asyncio.create_task(self.server.serve(sockets=[self._listener]))
        await self.serving.load()
        self._is_ready.set()
        await serving
        await self.serving.close()

    def ask(self, data: bytes, n_answers: int = 1) -> list[tuple[int, Any]]:
        """(status, body) of each answer to what is sent at once."""
        with self.connect() as connection:
            connection.sendall(data)
            return [(status, json.loads(body or b"null")) for status, body in answers(received(connection, n_answers))]

    def head(self, data: bytes) -> list[str]:
        """The names of an answer's headers."""
        with self.connect() as connection:
            connection.sendall(data)
            head = received(connection).partition(b"\r\n\r\n")[0].decode()
        return sorted(line.partition(":")[0] for line in head.split("\r\n")[1:])

    def connect(self) -> socket.socket:
        return socket.create_connection(self._listener.getsockname(), timeout=30)

    def settle(self) -> int:
        """Wait until all requests that came are over; how many lines the log has then."""
        until(lambda: self.metrics()["qcls_requests_in_flight"] == 0)
        until(lambda: len(self.lines) == sum(self.door._metrics._requests.values()))
        return len(self.lines)

    def metrics(self) -> dict[str, float]:
        """What is counted and no time."""
        (body,) = self.door._metrics.text().decode().split("\n# EOF")[:1]
        names = ("qcls_requests_total{", "qcls_refused", "qcls_clients_gone_total", "qcls_requests_in", "qcls_adm",
                 "qcls_tokens", "qcls_batch_queries_count", "qcls_request_seconds_count")  # fmt: skip
        return {name: float(n) for name, _, n in (line.rpartition(" ") for line in body.splitlines())
                if name.startswith(names)}  # fmt: skip

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join()
        self._listener.close()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    found = Service()
    start = Protocol._start

    def seen(connection: Protocol, request: RequestResponseCycle, app: Any) -> None:
        found.usual.append(request)
        start(connection, request, app)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Protocol, "_start", seen)
        patch.setattr(log, "info", lambda _, extra: found.lines.append(extra["fields"]))
        with found:
            yield found


def asked(*headers: str, body: bytes = QUERY, **how: str) -> bytes:
    return raw(body, KEY, *headers, **how)


@pytest.mark.parametrize(
    "data",
    [
        asked(),
        asked("x-request-id: mine"),
        asked("x-request-timeout-ms: 60000"),
        asked("connection: close"),
        asked().replace(b"HTTP/1.1", b"HTTP/1.0"),
        asked(path="/v1/classify?x=y"),
        asked(body=b' {"query" : "red dress"}\n'),
        asked(body=b'{"query": "red \\u0064ress"}'),
        asked(body=b'{"query": "red\\u0020dress"}'),
    ],
)
def test_plain_requests_are_quick(service: Service, data: bytes) -> None:
    service.usual.clear()
    ((status, body),) = service.ask(data)
    assert (status, body["query"]) == (200, "red dress")
    assert not service.usual


def test_a_wait_is_foretold_by_tokens_as_they_are_admitted(service: Service) -> None:
    """However many of them are fed: fewer for some of the prompts, or where kept queries have some."""
    few = {"query": "red dress", "prompts": [next(iter(service.serving.served.prompts))]}
    for body in (QUERY, json.dumps(few).encode()):
        service.serving.admission = admission = Admission(RequestLimits())
        ((status, answer),) = service.ask(asked(body=body))
        assert status == 200
        service.settle()
        n_tokens = service.serving.served.n_tokens("red dress")
        with admission.admitted(n_tokens, n_tokens):
            assert admission.wait_ms() == pytest.approx(answer["total_ms"])


def test_a_query_that_the_engine_refuses(service: Service) -> None:
    """How many tokens a query has is known when it is its turn."""
    service.usual.clear()
    ((status, body),) = service.ask(asked(body=b'{"query": "%s"}' % (b"ab " * 300)))
    assert (status, body["error"]["param"]) == (422, "query")
    assert not service.usual


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (asked(USUAL), 200),
        (asked("content-encoding: identity"), 200),
        (asked("expect: 100-continue"), 200),
        (asked(body=b'{"queries": ["red dress"]}'), 200),
        (asked(body=b'{"query": "red dress", "prompts": ["category"]}'), 200),
        (asked(body=b'{"query": "red dress", "audit": false}'), 200),
        (asked(body=b'{"query": "a", "query": "red dress"}'), 200),
        (asked(path="/predict?prompt=category", body=b'{"inputs": "red dress"}'), 200),
        (raw(b"", KEY, method="GET", path="/v1/models"), 200),
        (raw(b"", KEY, method="GET"), 405),
        (raw(QUERY), 401),
        (asked("content-type: text/plain"), 415),
        (asked("x-request-timeout-ms: 0"), 400),
        (asked(body=b'{"query": "%s"}' % (b"x" * 9000)), 422),
        (asked(body=b'{"query": "%s"}' % (b"x" * 30_000)), 413),
        (asked(body=b'{"query": 5}'), 422),
        (asked(body=b'{"query": "a", "top": 3}'), 422),
        (asked(body=b'{"query": "\\ud800"}'), 400),
        (asked(body=b"[]"), 422),
    ],
)
def test_all_others_take_the_usual_way(service: Service, data: bytes, status: int) -> None:
    service.usual.clear()
    assert service.ask(data, 2 if b"100-continue" in data else 1)[-1][0] == status
    assert len(service.usual) == 1


@pytest.mark.parametrize(
    ("data", "status", "ends"),
    [
        (asked("content-type: text/plain"), 415, True),
        (asked(body=b"x" * 30_000), 413, True),
        (asked("connection: close"), 200, True),
        (asked("connection: close", USUAL), 200, True),
        (asked().replace(b"HTTP/1.1", b"HTTP/1.0"), 200, True),
        (asked(body=b"[]"), 422, False),
        (asked(), 200, False),
    ],
)
def test_a_connection_ends_where_its_answer_says_so(service: Service, data: bytes, status: int, ends: bool) -> None:
    with service.connect() as connection:
        connection.sendall(data)
        answer = received(connection)
        assert [each for each, _ in answers(answer)] == [status]
        assert (b"\r\nconnection: close\r\n" in answer) == ends
        if ends:
            assert connection.recv(1000) == b""
        else:
            connection.sendall(asked())
            assert [each for each, _ in answers(received(connection))] == [200]


def both(service: Service, *headers: str, body: bytes = QUERY) -> Sequence[tuple[Any, ...]]:
    """What comes of a request by the quick way, and of the same by the usual one."""
    found = []
    for way in ((), (USUAL,)):
        n_lines, before = service.settle(), service.metrics()
        data = asked(*way, *headers, body=body)
        ((status, plain),) = service.ask(data)
        head = service.head(data)
        assert service.settle() == n_lines + 2
        counted = {name: n - before.get(name, 0) for name, n in service.metrics().items()}
        lines = [sorted(line) for line in service.lines[n_lines:]]
        found.append((status, without_times(plain), head, counted, lines, service.lines[-1]["path"]))
    return found


def without_times(plain: Any) -> Any:
    times = ("total_ms", "stage_ms", "wait_ms")
    return {name: type(value) if name in times else value for name, value in plain.items()}


@pytest.mark.parametrize("headers", [(), ("x-request-id: mine",), ("connection: close",)])
def test_both_ways_answer_log_and_count_alike(service: Service, headers: tuple[str, ...]) -> None:
    quick, usual = both(service, *headers)
    assert quick == usual
    assert quick[0] == 200


@pytest.mark.parametrize("error", [DecodeError("out of memory"), RuntimeError("a mistake")])
def test_both_ways_refuse_alike(service: Service, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong while a query is computed is answered with 500, and the service goes on."""
    batcher = service.serving.served.classifier._requests.batcher

    def fail(items: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(batcher, "_work", fail)
        patch.setattr(log, "exception", lambda *_: None)
        quick, usual = both(service)
    shown = [{**found[1]["error"], "message": found[1]["error"]["message"][:20]} for found in (quick, usual)]
    assert (quick[0], shown[0], *quick[2:]) == (usual[0], shown[1], *usual[2:])
    assert (quick[0], shown[0]["code"]) == (500, "failed")
    assert service.ask(asked())[0][0] == 200


def test_a_late_request_is_refused(service: Service) -> None:
    """The engine is busy for longer than the request may wait."""
    service.usual.clear()
    batcher = service.serving.served.classifier._requests.batcher
    with service.connect() as connection:
        with batcher.alone:
            connection.sendall(asked("x-request-timeout-ms: 1"))
            until(lambda: batcher._waiting)
            time.sleep(0.01)
        ((status, body),) = answers(received(connection))
    assert (status, json.loads(body)["error"]["code"]) == (504, "deadline")
    assert not service.usual


def test_who_leaves_is_not_computed(service: Service) -> None:
    n_lines, before = service.settle(), service.metrics()
    batcher = service.serving.served.classifier._requests.batcher
    service.usual.clear()
    with batcher.alone:
        with service.connect() as connection:
            connection.sendall(asked())
            until(lambda: batcher._waiting)
        until(lambda: len(service.lines) > n_lines)
        assert service.serving.admission.n_requests == 0
    assert service.lines[n_lines]["status"] == 499
    assert service.ask(asked())[0][0] == 200
    service.settle()
    after = service.metrics()
    assert after["qcls_clients_gone_total"] == before["qcls_clients_gone_total"] + 1
    assert after["qcls_batch_queries_count"] == before["qcls_batch_queries_count"] + 1  # the last one
    assert after["qcls_requests_in_flight"] == 0
    assert not service.usual


def test_requests_behind_a_quick_one_are_answered_in_their_order(service: Service) -> None:
    """The first of a packet is quick, the others wait for it."""
    queries = [f"red dress {n}" for n in range(20)]
    data = b"".join(asked(body=json.dumps({"query": query}).encode()) for query in queries)
    service.usual.clear()
    assert [body["query"] for _, body in service.ask(data, len(queries))] == queries
    assert len(service.usual) == len(queries) - 1


def test_a_body_that_comes_in_parts_takes_the_usual_way(service: Service) -> None:
    service.usual.clear()
    with service.connect() as connection:
        data = asked()
        connection.sendall(data[:-5])
        until(lambda: service.usual)
        connection.sendall(data[-5:])
        assert [status for status, _ in answers(received(connection))] == [200]
        connection.sendall(data)  # the same connection afterwards
        assert [status for status, _ in answers(received(connection))] == [200]
    assert len(service.usual) == 1


def test_a_full_service_refuses(service: Service) -> None:
    batcher = service.serving.served.classifier._requests.batcher
    most = service.serving.admission._limits.waiting_requests
    connections = [service.connect() for _ in range(most + 1)]
    with batcher.alone:
        for connection in connections[:most]:
            connection.sendall(asked())
        until(lambda: service.serving.admission.n_requests == most)
        connections[-1].sendall(asked())
        ((status, body),) = answers(received(connections[-1]))
        assert (status, json.loads(body)["error"]["code"]) == (503, "requests")
    for connection in connections[:most]:
        assert [status for status, _ in answers(received(connection))] == [200]
        connection.close()
    connections[-1].close()
