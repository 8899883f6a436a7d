"""What HTTP costs a request at one client: `make load`. Run with -s to see the figures.

Blocks of requests in turns, so that what else the machine does changes all of them: the process's CPU time, less that
of the same classification without HTTP in the same round; and what of that an application of a few lines takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time, thread_time

import numpy as np
import pytest
import uvicorn
import uvloop
from served import ROOT, raw

from qcls_gguf import load_config
from qcls_gguf.questions.question import Question
from qcls_gguf.service.app import build_app
from qcls_gguf.service.exchange import App, Receive, Scope, Send
from qcls_gguf.service.lifecycle import Lifecycle
from qcls_gguf.service.server import Protocol
from qcls_gguf.service.settings import ServiceSettings

pytestmark = pytest.mark.load

N_ROUNDS = int(os.environ.get("QCLS_LOAD_ROUNDS", "40"))
ALONE = "a request without HTTP"
THE_SERVICE = "the service"
N_REQUESTS = 50
"""of a block"""
QUERY = "red dress"
CHOICES = [("light blue", "like the sky"), ("red", None), ("green", None)]
BODIES = {
    "/v1/classify": {"query": QUERY},
    "/v1/decisions": {
        "model": "any",
        "input": QUERY,
        "questions": [
            {
                "type": "choice",
                "name": "colour",
                "instructions": "Which colour is it?",
                "choices": [{"value": value, "description": description} for value, description in CHOICES],
            }
        ],
    },
}
CLIENT = r"""
import json, re, socket, sys, time
connections, data = {}, bytes.fromhex(sys.argv[1])

def ask(port):
    if port not in connections:
        connections[port] = socket.create_connection(("127.0.0.1", port))
    began = time.perf_counter()
    connections[port].sendall(data)
    got = b""
    while not (head := got.partition(b"\r\n\r\n"))[1]:
        got += connections[port].recv(65536)
    n = len(head[0]) + 4 + int(re.search(rb"content-length: (\d+)", head[0])[1])
    while len(got) < n:
        got += connections[port].recv(65536)
    return (time.perf_counter() - began) * 1e3

for line in sys.stdin:
    n, port = map(int, line.split())
    print(json.dumps([ask(port) for _ in range(n)]), flush=True)
"""


@dataclass
class Blocks:
    """What the blocks of one kind took."""

    cpu_ms: list[float] = field(default_factory=list)
    """of a request, the mean of each block"""
    loop_ms: list[float] = field(default_factory=list)
    """of that, of the event loop's thread"""
    ms: list[float] = field(default_factory=list)
    """of each request"""


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Leave them to the tests."""


def _started(app: App) -> tuple[uvicorn.Server, asyncio.Task[None], int]:
    """An application at a port of this process."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
        timeout_keep_alive=75, proxy_headers=False,
    )  # fmt: skip
    server = _Server(config)
    return server, asyncio.create_task(server.serve(sockets=[listener])), int(listener.getsockname()[1])


async def _measure(route: str) -> dict[str, Blocks]:
    config = load_config(ROOT / "configs/mission.yaml")
    config = replace(config, runtime=replace(config.runtime, n_threads=1))
    settings = ServiceSettings(log_format="none")
    lifecycle = Lifecycle(lambda: config, settings)
    await lifecycle.load()
    backend, question = lifecycle.backend, Question.of("choice", "Which colour is it?", CHOICES)
    prompts = backend.classifier.configured
    if route == "/v1/decisions":
        async with backend.question(question, 60) as prompts:
            pass
    body = b"x" * 1800

    async def few_lines(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await prompts.aclassify(QUERY)
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    servers = [_started(few_lines), _started(build_app(lifecycle, settings))]
    data = raw(json.dumps(BODIES[route]).encode(), "accept: */*", "user-agent: x", path=route).hex()
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, data, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24
    )

    async def drive(port: int) -> list[float]:
        assert client.stdin
        assert client.stdout
        client.stdin.write(f"{N_REQUESTS} {port}\n".encode())
        return list(json.loads(await client.stdout.readline()))

    def classify() -> list[float]:
        took = []
        for _ in range(N_REQUESTS):
            began = perf_counter()
            prompts.classify(QUERY)
            took.append((perf_counter() - began) * 1e3)
        return took

    kinds: dict[str, Callable[[], Awaitable[list[float]]]] = {
        ALONE: lambda: asyncio.to_thread(classify),
        "an application of a few lines that only asks the engine": lambda: drive(servers[0][2]),
        THE_SERVICE: lambda: drive(servers[1][2]),
    }
    found = {name: Blocks() for name in kinds}
    for n_round in range(N_ROUNDS + 1):
        for name, block in kinds.items():
            began, loop_began = process_time(), thread_time()
            ms = await block()
            if n_round:  # the first one opens connections
                found[name].cpu_ms.append((process_time() - began) * 1e3 / N_REQUESTS)
                found[name].loop_ms.append((thread_time() - loop_began) * 1e3 / N_REQUESTS)
                found[name].ms += ms
    assert client.stdin
    client.stdin.close()
    await client.wait()
    for server, task, _ in servers:
        server.should_exit = True
        await task
    await lifecycle.close()
    return found


@pytest.mark.parametrize("route", BODIES)
def test_what_http_costs(route: str) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as the service does
    try:
        found = uvloop.run(_measure(route))
    finally:
        sys.setswitchinterval(before)
    alone = found[ALONE]
    print(f"\n{route}: {ALONE}: {np.median(alone.cpu_ms):.2f} ms of CPU time, p50 {np.median(alone.ms):.2f} ms")
    for name, blocks in list(found.items())[1:]:
        low, middle, high = np.percentile(np.subtract(blocks.cpu_ms, alone.cpu_ms), (25, 50, 75))
        print(f"  {name}: {middle:+.2f} ms of CPU time (quartiles {low:+.2f}, {high:+.2f}), the event loop's "
              f"{np.median(blocks.loop_ms):.2f}; p50 {np.median(blocks.ms) - np.median(alone.ms):+.2f} ms")  # fmt: skip
    assert len(found[THE_SERVICE].ms) == N_ROUNDS * N_REQUESTS
