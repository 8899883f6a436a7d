"""Starting, stopping, failing, being full, being left: under load, with real signals.

Load, for minutes: `make load`. Run with -s to see the figures.

QCLS_LOAD_REQUESTS, QCLS_LOAD_QUESTIONS and QCLS_LOAD_KEPT say how much of it.
"""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Literal
from unittest.mock import AsyncMock

import httpx
import pytest
import waiting
import yaml
from cases import cases, written
from commands import refused
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from served import BIN, Server, answers, mission_with, raw, received

from qcls_gguf import DecodeError, load_config
from qcls_gguf.service.app import App
from qcls_gguf.service.dialects import DIALECTS
from qcls_gguf.service.lifecycle import Lifecycle, ServiceSettings

until = partial(waiting.until, most_s=30)


@contextmanager
def busy(n: int, *options: str) -> Iterator[tuple[Server, socket.socket]]:
    """A service that computes the answer to n queries, and the connection that waits for it."""
    body = json.dumps({"queries": [f"red dress number {n}" for n in range(n)]}).encode()
    with Server(*options) as server, server.connect() as connection:
        server.classify(query="red dress")
        connection.sendall(raw(body))
        until(lambda: server.metric("qcls_admitted_requests") == 1)
        yield server, connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_has_come_is_answered_before_the_end(number: signal.Signals) -> None:
    with busy(60) as (server, connection):
        server.process.send_signal(number)
        until(lambda: _ready_status(server) != 200)
        ((status, body),) = answers(received(connection))
        assert (status, len(json.loads(body)["answers"])) == (200, 60)
        assert server.process.wait(60) == 0


def _ready_status(server: Server) -> int:
    try:
        return httpx.get(f"{server.address}/ready", timeout=30).status_code
    except httpx.TransportError:
        return 0


def test_the_end_comes_within_the_grace() -> None:
    with busy(250, "--grace", "0.02") as (server, _):
        assert server.stop() == 0
        assert any("told to end; requests to answer: 1" in line for line in server.lines)
        assert any("not answered within the grace" in line for line in server.lines)


def test_a_second_signal_ends_it_at_once() -> None:
    with busy(250) as (server, connection):
        server.process.send_signal(signal.SIGTERM)
        until(lambda: _ready_status(server) != 200)
        assert server.stop() == 0
        assert not connection.recv(100).startswith(b"HTTP/1.1 200")


def test_a_full_service_refuses_and_says_when_to_come_again() -> None:
    with busy(200, "--max-requests", "1") as (server, connection):
        response = server.classify(query="red dress")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "requests")
        assert int(response.headers["retry-after-ms"]) > 0
        assert int(response.headers["retry-after"]) >= 1
        assert server.metric('qcls_refused_total{reason="requests"}') == 1
        # a client that has left is not computed
        before = server.metric("qcls_tokens_new_total")
        connection.close()
        until(lambda: server.metric("qcls_admitted_requests") == 0)
        assert server.metric("qcls_clients_gone_total") == 1
        fed = server.metric("qcls_tokens_new_total") - before
        assert fed < 200 * server.classify(query="red dress").json()["counts"]["n_tokens_new"] / 2


def test_a_late_request_is_not_computed() -> None:
    """Its deadline counts from its head; the body comes after it."""
    with Server("--timeout", "1") as server, server.connect() as connection:
        before = server.metric("qcls_tokens_new_total")
        data = raw(b'{"query": "red dress"}')
        connection.sendall(data[:-5])
        until(lambda: server.metric("qcls_requests_in_flight") == 2)  # the other one asks for the metrics
        time.sleep(0.01)
        connection.sendall(data[-5:])
        ((status, body),) = answers(received(connection))
        assert (status, json.loads(body)["error"]["code"]) == (504, "deadline")
        assert server.metric("qcls_tokens_new_total") == before


def test_a_killed_service_starts_again_at_the_same_port() -> None:
    with Server() as server:
        assert server.classify(query="red dress").status_code == 200
        until(lambda: any("path=/v1/classify status=200 " in line and " queries=1 " in line for line in server.lines))
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with Server("--quiet", port=server.port) as again:
        assert again.classify(query="red dress").status_code == 200
    assert not [line for line in again.lines if "/v1/classify" in line or "load model" in line]


@cases(
    ([], 2, "QCLS_API_KEY is set but empty"),  # which opens the service to nobody
    (["--host", "no.such.host.invalid"], 2, "--port 8080 of --host no.such.host.invalid: cannot listen there"),
    (["--port", "{port}"], 2, "in use: something is there already; name another --port, 0 for a free one"),
    (["--api-key", "a b"], 2, "printable ASCII"),
    (["--uds", "/nowhere/socket"], 2, "--uds was removed: "),
    (["--model", "/nowhere.gguf", "--port", "0"], 3, "/nowhere.gguf"),
)
def test_what_ends_a_start(
    options: list[str], code: int, says: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not options:
        monkeypatch.setenv("QCLS_API_KEY", " ")
    words = [option.replace("{port}", str(server.port)) for option in options]
    assert says in refused("serve", "--config", "mission", "--quiet", *words, code=code)


def test_a_full_disk_for_the_log_ends_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    command = [str(BIN / "qcls-gguf"), "serve", "--config", "mission", "-t", "1", "--port", str(address[1])]

    def listens() -> bool:  # httpx leaves its own socket open where it cannot connect
        with socket.socket() as probe:
            return probe.connect_ex(address) == 0

    with open("/dev/full", "wb") as full, subprocess.Popen(command, stderr=full) as process:
        until(listens)
        with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=60) as client:
            until(lambda: client.get("/ready").status_code == 200)
            assert client.post("/v1/classify", json={"query": "red dress"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_every_failure_is_answered_in_the_words_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        lifecycle = Lifecycle(load_config("mission"), ServiceSettings(logs_requests=False))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(App(lifecycle)), base_url="http://qcls") as client:
            early = await client.post("/v1/classify", json={"query": "red dress"})
            assert (early.status_code, early.json()["error"]["code"]) == (503, "loading")
            await lifecycle.load()
            for error, says in ((DecodeError("no memory"), "no memory"), (RuntimeError("a mistake"), "its log")):
                monkeypatch.setattr(lifecycle.backend.classifier.core, "ask_async", AsyncMock(side_effect=error))
                failed = await client.post("/v1/classify", json={"query": "red dress"})
                assert (failed.status_code, failed.json()["error"]["code"]) == (500, "failed")
                assert says in failed.json()["error"]["message"]
        await lifecycle.close()

    asyncio.run(ask())


# Load, for minutes: `make load`. Run with -s to see the figures.


N_REQUESTS = int(os.environ.get("QCLS_LOAD_REQUESTS", "20000"))
N_QUESTIONS = int(os.environ.get("QCLS_LOAD_QUESTIONS", "2000"))
N_KEPT = int(os.environ.get("QCLS_LOAD_KEPT", "50"))
"""questions that the cache holds"""
QUERIES = ("red dress", "blue jeans for men", "wool coat", "cheap summer shoes", "孕妇牛仔裤")
CLOSE = 0.02
"""of probabilities: what other queries in a decode do to the arithmetic"""


def ask_often(server: Server, n: int) -> None:
    """So many requests of four clients; every answer is that of the query alone."""

    def asked(http: httpx.Client, query: str) -> dict[str, float]:
        results = http.post("/v1/classify", json={"query": query}).raise_for_status().json()["results"]
        return {f"{each['prompt']} {each['label']}": each["probability"] for each in results}

    def client(first: int) -> None:
        with httpx.Client(base_url=server.address, timeout=60) as http:
            for number in range(first, n, 4):
                assert asked(http, QUERIES[number % 5]) == pytest.approx(right[number % 5], abs=CLOSE)

    right = [asked(server.http, query) for query in QUERIES]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(client, range(4)))


@contextmanager
def steady(server: Server, asked: str) -> Iterator[None]:
    """By what is asked in the block nothing grows that must not."""
    kept = ("process_open_fds", "qcls_prefixes", "qcls_admitted_requests", "qcls_admitted_queries")
    before, memory = [server.metric(name) for name in kept], server.metric("process_resident_memory_bytes")
    began = perf_counter()
    yield
    seconds, grown = perf_counter() - began, server.metric("process_resident_memory_bytes") - memory
    print(f"{asked}, {seconds:.1f} s, memory {memory / 2**20:.1f} MiB, then {grown / 2**20:+.1f}")
    assert [server.metric(name) for name in kept] == before
    assert server.metric("qcls_prefix_cells") <= server.metric("qcls_prefix_cells_most")
    assert grown < 8 << 20


def probabilities(server: Server, *numbers: int) -> list[list[float]]:
    """Those that a request with a question for every number is answered by."""
    choices = [{"value": "light blue"}, {"value": "red"}]
    questions = [{"type": "choice", "instructions": f"Is it number {n}?", "choices": choices} for n in numbers]
    body = {"model": "m", "input": QUERIES[0], "questions": questions}
    response = server.http.post("/v1/decisions", json=body, headers={"x-request-timeout-ms": "60000"})
    assert response.status_code == 200, response.text
    return [[option["probability"] for option in answer["probabilities"]] for answer in response.json()["answers"]]


@pytest.mark.load
def test_nothing_grows_with_requests(tmp_path: Path) -> None:
    """By one short prompt, so that there can be many."""
    template = "Which garment of [{labels}] is it?\nquery: {query}\nlabel:"
    prompt = {"name": "garment", "prompt_template": template, "labels": ["dress", "light blue jeans", "none"]}
    with Server("--quiet", config=written(tmp_path / "one.yaml", yaml.safe_dump({"prompts": [prompt]}))) as server:
        ask_often(server, N_REQUESTS // 10)
        with steady(server, f"{N_REQUESTS} requests"):
            ask_often(server, N_REQUESTS)


@pytest.mark.load
def test_nothing_grows_with_questions(tmp_path: Path) -> None:
    def ask(first: int, n: int) -> None:
        for at in range(first, first + n, 20):
            probabilities(server, *range(at, at + 20))

    config = mission_with(tmp_path, runtime={"question_prefixes": N_KEPT, "question_cells": 40 * N_KEPT})
    with Server("--quiet", config=config) as server:
        ask(0, 8 * N_KEPT)
        with steady(server, f"{N_QUESTIONS} questions"):
            ask(1_000_000, N_QUESTIONS)


@pytest.mark.load
def test_a_thousand_idle_connections_and_400_questions() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with Server("--quiet") as server, ExitStack() as stack:
        files = server.metric("process_open_fds")
        for _ in range(1000):
            stack.enter_context(server.connect())
        assert server.classify(query="red dress").status_code == 200
        until(lambda: server.metric("process_open_fds") == files + 1000)  # it accepts them between requests
        began = perf_counter()
        together = probabilities(server, *range(400))
        print(f"400 questions in {perf_counter() - began:.1f} s")
        for n in (0, 200, 399):
            assert together[n] == pytest.approx(probabilities(server, n)[0], abs=CLOSE)


@pytest.mark.load
def test_made_up_requests_are_answered_or_refused(tmp_path: Path) -> None:
    models: list[tuple[type[BaseModel], Literal["validation"]]]
    models = [(dialect.request, "validation") for dialect in DIALECTS.values()]
    references, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")
    paths = {}
    for path, dialect in DIALECTS.items():
        content = {"application/json": {"schema": references[dialect.request, "validation"]}}
        responses = {"200": {"description": "answered"}, "default": {"description": "refused"}}
        paths[path] = {"post": {"requestBody": {"required": True, "content": content}, "responses": responses}}
    described = {"openapi": "3.1.0", "info": {"title": "qcls-gguf", "version": "0"}, "paths": paths}
    schema = written(tmp_path / "openapi.json", json.dumps(described | {"components": {"schemas": schemas["$defs"]}}))
    with Server("--quiet") as server:
        command = [
            str(BIN / "schemathesis"), "run", str(schema), "--url", server.address,
            "--max-examples", "40", "--seed", "1",
            "--checks", "not_a_server_error,status_code_conformance,negative_data_rejection",
            "--phases", "examples,coverage,fuzzing", "--no-color",
            "--request-timeout", "30", "--suppress-health-check", "all",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        print(done.stdout[-6000:])
        assert done.returncode == 0, "".join(line for line in server.lines if "Error" in line)
        assert server.classify(query="red dress").status_code == 200
