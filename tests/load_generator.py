"""Requests for the labels of some queries, from a process of its own, whose time is nobody else's.

    python tests/load_generator.py PORT closed CLIENTS SECONDS [REQUESTS]
    python tests/load_generator.py PORT open RATE SECONDS

Closed: each client asks again when it is answered. Open: requests come at random, RATE a second, whether or not those
before are answered. It prints its `Tally` as a line of JSON. Every answer is compared with that of the same query
alone; after the last request, so that nothing is late for it.
"""

import asyncio
import dataclasses
import gc
import json
import random
import re
import sys
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Self

import uvloop

QUERIES = ("red dress", "blue jeans for men", "wool coat", "cheap summer shoes", "孕妇牛仔裤")
CLOSE = 0.02
"""of probabilities: what other queries in a decode do to the arithmetic"""


@dataclass
class Tally:
    """What came back."""

    ms: list[float] = field(default_factory=list)
    """of each answer, from when its request was sent"""
    late_ms: list[float] = field(default_factory=list)
    """how much later than it should each request was sent; of open loops"""
    statuses: dict[str, int] = field(default_factory=dict)
    n_wrong: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, line: str) -> Self:
        """What a generator printed."""
        return cls(**json.loads(line))

    def add(self, other: Self) -> None:
        self.ms += other.ms
        self.late_ms += other.late_ms
        for status, n in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + n
        self.n_wrong += other.n_wrong
        self.seconds += other.seconds


class _Client:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length
        return int(head.split()[1]), await reader.readexactly(int(length[1]))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class _Generator:
    def __init__(self, port: int) -> None:
        self.tally = Tally()
        self._port = port
        self._kept: list[tuple[int, bytes]] = []
        self._requests = [_request(query) for query in QUERIES]
        self._right: list[dict[str, float]] = []

    async def learn(self) -> None:
        """Ask each query alone."""
        client = _Client(self._port)
        for request in self._requests:
            status, body = await client.ask(request)
            assert status == 200, body
            self._right.append(_winners(body))
        client.close()

    async def _one(self, client: _Client, n: int) -> None:
        which = n % len(QUERIES)
        began = perf_counter()
        status, body = await client.ask(self._requests[which])
        ms = (perf_counter() - began) * 1e3
        self.tally.statuses[str(status)] = self.tally.statuses.get(str(status), 0) + 1
        if status == 200:
            self.tally.ms.append(ms)
            self._kept.append((which, body))

    async def closed(self, n_clients: int, seconds: float, n_requests: int) -> None:
        began, n = perf_counter(), 0

        async def work() -> None:
            nonlocal n
            client = _Client(self._port)
            while perf_counter() - began < seconds and n < n_requests:
                n += 1
                await self._one(client, n)
            client.close()

        await asyncio.gather(*(work() for _ in range(n_clients)))
        self.tally.seconds = perf_counter() - began

    async def open(self, rate: float, seconds: float) -> None:
        rng = random.Random(0)
        began, at = perf_counter(), 0.0
        idle: list[_Client] = []
        tasks: list[asyncio.Task[None]] = []

        async def work(n: int, due: float) -> None:
            client = idle.pop() if idle else _Client(self._port)
            self.tally.late_ms.append((perf_counter() - due) * 1e3)
            await self._one(client, n)
            idle.append(client)

        while (at := at + rng.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, began + at - perf_counter()))
            tasks.append(asyncio.create_task(work(len(tasks), began + at)))
        await asyncio.gather(*tasks)
        self.tally.seconds = perf_counter() - began
        for client in idle:
            client.close()

    def compare_kept(self) -> None:
        """Compare what was kept."""
        for which, body in self._kept:
            found, right = _winners(body), self._right[which]
            is_right = found.keys() == right.keys() and all(abs(found[key] - right[key]) < CLOSE for key in right)
            self.tally.n_wrong += not is_right


def _request(query: str) -> bytes:
    body = json.dumps({"query": query}).encode()
    head = f"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def _winners(body: bytes) -> dict[str, float]:
    """Each prompt's label with its probability."""
    results: list[dict[str, Any]] = json.loads(body)["results"]
    return {f"{each['prompt']} {each['label']}": each["probability"] for each in results}


async def _main(port: str, how: str, many: str, seconds: str, *n_requests: str) -> None:
    generator = _Generator(int(port))
    await generator.learn()
    gc.disable()
    if how == "closed":
        await generator.closed(int(many), float(seconds), int(n_requests[0]) if n_requests else 1 << 60)
    else:
        await generator.open(float(many), float(seconds))
    generator.compare_kept()
    print(json.dumps(dataclasses.asdict(generator.tally)))


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
