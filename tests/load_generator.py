"""Requests for the labels of some queries, from a process of its own, whose time is nobody else's.

    python tests/load_generator.py PORT closed CLIENTS SECONDS [REQUESTS]
    python tests/load_generator.py PORT open RATE SECONDS

Closed: each client asks again when it is answered. Open: requests come at random, RATE a second, whether or not those
before are answered. It prints a `Tally` as a line of JSON. Every answer is compared with that of the same query alone.
"""

import asyncio
import json
import random
import re
import sys
from time import perf_counter
from typing import TypedDict

import uvloop

QUERIES = ("red dress", "blue jeans for men", "wool coat", "cheap summer shoes", "孕妇牛仔裤")
CLOSE = 0.02
"""of probabilities: what other queries in a decode do to the arithmetic"""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Tally(TypedDict):
    """What came back: the milliseconds of each answer from its request, how often each status, wrong answers."""

    ms: list[float]
    statuses: dict[str, int]
    n_wrong: int
    seconds: float


async def asked(connection: Connection, query: str) -> tuple[str, dict[str, float]]:
    """The status, and each prompt's label with its probability."""
    reader, writer = connection
    body = json.dumps({"query": query}).encode()
    head = f"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = re.search(r"content-length: (\d+)", head)
    assert length
    results = json.loads(await reader.readexactly(int(length[1]))).get("results", [])
    return head.split()[1], {f"{each['prompt']} {each['label']}": each["probability"] for each in results}


async def load(port: int, how: str, many: float, seconds: float, n_requests: int) -> Tally:
    tally = Tally(ms=[], statuses={}, n_wrong=0, seconds=0.0)
    idle = [await asyncio.open_connection("127.0.0.1", port)]
    right = [(await asked(idle[0], query))[1] for query in QUERIES]
    began, n = perf_counter(), 0

    async def ask(number: int) -> None:
        connection = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        start, wanted = perf_counter(), right[number % len(QUERIES)]
        status, found = await asked(connection, QUERIES[number % len(QUERIES)])
        idle.append(connection)
        tally["statuses"][status] = tally["statuses"].get(status, 0) + 1
        if status == "200":
            tally["ms"].append((perf_counter() - start) * 1e3)
            tally["n_wrong"] += any(abs(found.get(key, 9) - p) > CLOSE for key, p in wanted.items())

    async def client() -> None:
        nonlocal n
        while perf_counter() - began < seconds and n < n_requests:
            n += 1
            await ask(n)

    if how == "closed":
        await asyncio.gather(*(client() for _ in range(int(many))))
    else:
        rng, at = random.Random(0), 0.0
        tasks: list[asyncio.Task[None]] = []
        while (at := at + rng.expovariate(many)) < seconds:
            await asyncio.sleep(max(0.0, began + at - perf_counter()))
            tasks.append(asyncio.create_task(ask(len(tasks))))
        await asyncio.gather(*tasks)
    tally["seconds"] = perf_counter() - began
    for _, writer in idle:
        writer.close()
    return tally


if __name__ == "__main__":
    _, port, how, many, seconds, *more = sys.argv
    print(json.dumps(uvloop.run(load(int(port), how, float(many), float(seconds), int(more[0]) if more else 1 << 60))))
