"""What HTTP costs a request at one client: `make load`. Run with -s to see the figures.

Blocks of requests in turns, so that what else the machine does changes all of them: the process's CPU time, less that
of the same classification without HTTP in the same round.
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
from qcls_gguf.service.lifecycle import Lifecycle
from qcls_gguf.service.server import http_config
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
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(http_config(build_app(lifecycle, settings)))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    data = raw(json.dumps(BODIES[route]).encode(), "accept: */*", "user-agent: x", path=route).hex()
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, data, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24
    )

    async def drive() -> list[float]:
        assert client.stdin
        assert client.stdout
        client.stdin.write(f"{N_REQUESTS} {listener.getsockname()[1]}\n".encode())
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
        THE_SERVICE: drive,
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
    server.should_exit = True
    await serving
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
    blocks = found[THE_SERVICE]
    low, middle, high = np.percentile(np.subtract(blocks.cpu_ms, alone.cpu_ms), (25, 50, 75))
    print(f"  {THE_SERVICE}: {middle:+.2f} ms of CPU time (quartiles {low:+.2f}, {high:+.2f}), the event loop's "
              f"{np.median(blocks.loop_ms):.2f}; p50 {np.median(blocks.ms) - np.median(alone.ms):+.2f} ms")  # fmt: skip
    assert len(blocks.ms) == N_ROUNDS * N_REQUESTS
