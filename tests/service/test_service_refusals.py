"""What is refused, with which status and in which words; after all of it the service answers as before."""

import codecs
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from cases import cases
from served import JSON, Server, answers, exchange, raw, received

QUERY = json.dumps({"query": "red dress"}).encode()


def sent(server: Server, data: bytes, n_answers: int = 1) -> list[tuple[int, bytes]]:
    """So many answers to all of it: their statuses and bodies."""
    with server.connect() as connection:
        connection.sendall(data)
        return [*answers(received(connection, n_answers))]


@pytest.fixture(autouse=True)
def _answers_afterwards(server: Server) -> Iterator[None]:
    yield
    assert server.classify(query="red dress").json()["results"][0]["label"] == "dress"


@cases(
    (b"", 400, None),
    (b'{"query": "\xff"}', 400, None),
    (b'{"query": "\\ud800"}', 400, None),
    (b"[" * 100_000, 400, None),
    (b'{"query": "a", "queries": ["b"]}', 422, "the body"),
    (b'{"queries": ["a", {}]}', 422, "queries[1]"),
    (b'{"query": "a", "prompts": ["nobody"]}', 404, "prompts[0]"),
    (b'{"query": "%s"}' % (b"word " * 2000), 422, "query"),
    (b'{"queries": [%s]}' % b",".join([b'"a"'] * 401), 413, "queries"),
    (b'{"query": "%s"}' % (b"x" * (4 << 20)), 413, "body"),
    *(('{"query": "a"}'.encode(encoding), 400, None) for encoding in ("utf-8-sig", "utf-16")),
)
def test_bodies_that_are_wrong(body: bytes, status: int, param: str | None, server: Server) -> None:
    response = server.http.post("/v1/classify", content=body, headers=JSON)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), error
    assert len(error["message"]) < 1000
    has_mark = body.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16))
    assert ("it begins with a byte order mark: send UTF-8 without one" in error["message"]) == has_mark


@cases(
    *(
        ({"content-type": kind}, 415)
        for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-ndjson")
    ),
    ({"content-type": "application/json; charset=utf-8"}, 200),
    *((JSON | {"content-encoding": encoding}, status) for encoding, status in (("gzip", 415), ("identity", 200))),
    *((JSON | {"x-request-timeout-ms": ms}, 400) for ms in ("0", "soon", "00000060009999999")),
)
def test_headers_that_are_wrong(headers: dict[str, str], status: int, server: Server) -> None:
    assert server.http.post("/v1/classify", content=QUERY, headers=headers).status_code == status


@cases(
    ("/v1", {"query": "a"}, 404, ""),
    ("/v1/classify/", {"query": "a"}, 404, ""),
    ("/v1/CLASSIFY", {"query": "a"}, 404, ""),
    ("/v1/%63lassif%79/x", {"query": "a"}, 404, ""),
    ("/v1/embeddings", {"input": "a"}, 404, "no path generates or embeds text"),
    ("/classify", {"model": "default/category", "input": "red dress"}, 404, "use /predict"),  # vLLM's
    ("/predict", {"inputs": "a"}, 422, "default/category"),
    ("/predict?prompt=nobody", {"inputs": "a"}, 404, ""),
)
def test_paths_that_are_wrong(path: str, body: object, status: int, says: str, server: Server) -> None:
    answer = server.http.post(path, json=body)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


def test_a_method_that_is_wrong(server: Server) -> None:
    answer = server.http.get("/v1/classify")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_of_a_list_what_had_not_begun_by_the_deadline_is_late_and_the_rest_is_answered(server: Server) -> None:
    body = {"queries": [f"red dress {n}" for n in range(256)]}
    answer = server.http.post("/v1/classify", json=body, headers={"x-request-timeout-ms": "100"})
    if answer.status_code == 504:  # none had begun
        assert answer.json()["error"]["code"] == "deadline"
        return
    late = [each["error"] for each in answer.json()["answers"] if "error" in each]
    assert answer.status_code == 200
    assert len(late) < 256
    assert all("it was not computed" in each for each in late)


# --- keys ------------------------------------------------------------------------------------------------------------


@cases(
    {},
    {"authorization": "Bearer firs"},
    {"authorization": "Bearer First"},
    {"authorization": "Basic first"},
    {"x-api-key": "first\tsecond"},
    {"x-forwarded-for": "127.0.0.1"},
)
def test_without_a_key_nothing_is_answered(headers: dict[str, str], locked: Server) -> None:
    for method, path in (
        ("POST", "/v1/classify"),
        ("OPTIONS", "/v1/classify"),
        ("POST", "/health/../v1/classify"),
        ("POST", "/v1/classify?x=/health"),
        ("POST", "/health%00"),
        ("GET", "/metrics"),
        ("GET", "/v1/models"),
        ("BREW", "/v1/classify"),
    ):
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{lines}content-length: 2\r\n\r\n"
        ((status, _),) = answers(exchange(locked, head.encode() + b"{}"))
        assert status in (400, 401), (method, path)  # 400: no such method is HTTP


def test_who_has_a_key_is_answered(locked: Server) -> None:
    for headers in ({"authorization": "Bearer first"}, {"authorization": "bearer second"}, {"x-api-key": "second"}):
        response = locked.http.post("/v1/classify", json={"query": "red dress"}, headers=headers)
        assert response.status_code == 200
    assert locked.http.get("/ready").status_code == 200
    assert locked.http.get("/v1/models").headers["www-authenticate"] == "Bearer"
    for body, limit in (({"queries": ["a"] * 4}, "at most 3"), ({"query": "a" * 5000}, "4,096 bytes")):
        large = locked.http.post("/v1/classify", json=body, headers={"x-api-key": "first"})
        assert (large.status_code, limit in large.text) == (413, True)
    assert not any(re.search(r"\bfirst\b|red dress", line) for line in locked.lines)


# --- connections -----------------------------------------------------------------------------------------------------


def test_requests_in_one_packet_are_answered_in_order(server: Server) -> None:
    queries = ["red dress", "blue jeans", "wool coat"]
    requests = b"".join(raw(json.dumps({"query": query}).encode()) for query in queries)
    assert [json.loads(body)["query"] for _, body in sent(server, requests, 3)] == queries


def test_a_body_that_nobody_reads_is_dropped_up_to_a_limit(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(raw(b"").replace(b"length: 0", b"length: 1000000000"))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(b"x" * 200_000_000)


def test_a_client_that_closes_gets_the_answer_to_a_body_that_is_refused(server: Server) -> None:
    for kind, n in (("application/json", 5_000_000), ("text/plain", 4_000_000)) * 5:
        ((status, _),) = sent(server, raw(b"x" * n, f"content-type: {kind}", "connection: close"))
        assert status == (413 if kind in JSON.values() else 415)


@cases(
    (raw(QUERY, "content-type: text/plain"), 415, False),
    (raw(b"x" * 5_000_000), 413, False),
    (raw(QUERY, "content-type: text/plain", "expect: 100-continue"), 415, True),
    (raw(QUERY).replace(b"host: x\r\n", b""), 400, True),
    (raw(QUERY, "host: y"), 400, True),
    (raw(QUERY, "connection: close"), 200, True),
    (raw(QUERY).replace(b"HTTP/1.1", b"HTTP/1.0"), 200, True),
    (raw(b"[]"), 422, False),
    (raw(QUERY), 200, False),
)
def test_a_connection_ends_where_its_answer_says_so(data: bytes, status: int, ends: bool, server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(data)  # all of it, before the answer is read
        answer = received(connection)
        assert [each for each, _ in answers(answer)] == [status]
        assert (b"\r\nconnection: close\r\n" in answer.lower()) == ends
        if ends:
            assert connection.recv(1000) == b""
        else:
            connection.sendall(raw(QUERY))
            assert [each for each, _ in answers(received(connection))] == [200]


def test_a_client_that_waits_to_be_asked_for_its_body(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(raw(b"", "expect: 100-continue").replace(b"length: 0", b"length: %d" % len(QUERY)))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(QUERY)
        assert [status for status, _ in answers(received(connection))] == [200]


def test_a_request_that_offers_another_protocol_is_answered_in_this_one(server: Server) -> None:
    """As curl --http2 and Java's HttpClient do; in two packets, with another request after it."""
    offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA"
    packets = raw(QUERY, offer) + raw(QUERY)
    with server.connect() as connection:
        connection.sendall(packets[:100])
        time.sleep(0.05)
        connection.sendall(packets[100:])
        data = received(connection, 2)
    assert [(status, json.loads(body)["query"]) for status, body in answers(data)] == [(200, "red dress")] * 2


def test_trailers_are_not_kept_without_end(server: Server) -> None:
    with server.connect() as client:
        client.sendall(b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
        client.sendall(b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(QUERY), QUERY))

        def send() -> None:
            for _ in range(20_000):
                client.sendall(b"x: %s\r\n" % (b"a" * 1000))

        with pytest.raises((BrokenPipeError, ConnectionResetError)):  # the service ends the connection
            send()


@cases(
    b"\0\0\0\0",
    b"GET\r\n\r\n",
    b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100_000,
)
def test_what_is_no_http_is_refused(data: bytes, server: Server) -> None:
    assert all(status == 400 for status, _ in answers(exchange(server, data, half_close=True)))


@cases(
    (b"GET /health HTTP/1.1\r\n\r\n", "a request of HTTP/1.1 has one header `host`"),
    (b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n", "this service is no proxy"),
    (b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: a\r\n\r\ngarbage\r\n", "Invalid method"),
)
def test_why_it_is_no_http_is_told(data: bytes, says: str, server: Server) -> None:
    *_, (status, body) = sent(server, data, 3)
    assert (status, says in body.decode()) == (400, True), body


def test_a_head_without_end_is_refused(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx: ")
        with suppress(OSError):  # it may have been refused already
            for _ in range(14):  # more than twice the limit: what comes with the last request is not counted
                time.sleep(0.01)
                connection.sendall(b"a" * 10_000)
        ((status, body),) = answers(received(connection))
    assert (status, b"a head, or trailers, of more than 65,536 bytes" in body) == (400, True)


def test_idle_slow_and_vanishing_clients_hold_nobody_up(server: Server) -> None:
    connections = [server.connect() for _ in range(200)]
    for connection in connections[:50]:
        connection.sendall(b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    for connection in connections[50:100]:
        connection.sendall(raw(QUERY)[:-5])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets it
    assert server.classify(query="red dress").status_code == 200
    for connection in connections:
        connection.close()


def test_the_page_takes_nothing_from_elsewhere(server: Server, locked: Server) -> None:
    response = server.http.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.search(r"(src|href)=|https?://|@import|url\(", response.text)
    assert locked.http.get("/").status_code == 200  # without a key
