"""Load, for minutes: `make load`; docs/serving.md has what it prints on a machine. Run with -s to see the figures.

QCLS_LOAD_SECONDS, QCLS_LOAD_REQUESTS and QCLS_LOAD_QUESTIONS say how much of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import yaml
from served import BIN, ROOT, Server, raw

pytestmark = pytest.mark.load

SECONDS = float(os.environ.get("QCLS_LOAD_SECONDS", "10"))
N_REQUESTS = int(os.environ.get("QCLS_LOAD_REQUESTS", "20000"))
N_QUESTIONS = int(os.environ.get("QCLS_LOAD_QUESTIONS", "2000"))
N_TURNS = 4
CONFIG = "configs/fashion-8-joint.yaml"
QUERIES = ("red dress", "blue jeans for men", "wool coat", "cheap summer shoes", "孕妇牛仔裤")
CLOSE = 0.02
"""of probabilities: what other queries in a decode do to the arithmetic"""


@dataclass
class Tally:
    """What came back."""

    ms: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    n_wrong: int = 0
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        self.ms += other.ms
        for status, n in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + n
        self.n_wrong += other.n_wrong
        self.seconds += other.seconds

    def line(self, name: str) -> str:
        p50, p99 = np.percentile(self.ms or [0], (50, 99))
        rate = len(self.ms) / self.seconds
        return f"{name:40} {rate:7.1f}/s  p50 {p50:7.1f}  p99 {p99:7.1f} ms  {self.statuses}  wrong {self.n_wrong}"


class Client:
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


@dataclass
class Load:
    """Requests for the labels of some queries, whose right answers are known."""

    server: Server
    right: dict[str, dict[str, float]]

    @classmethod
    def of(cls, server: Server) -> Load:
        return cls(server, {query: winners(server.classify(query=query).json()) for query in QUERIES})

    async def one(self, client: Client, n: int, tally: Tally) -> None:
        query = QUERIES[n % len(QUERIES)]
        began = perf_counter()
        status, body = await client.ask(raw(json.dumps({"query": query}).encode()))
        tally.statuses[status] = tally.statuses.get(status, 0) + 1
        if status == 200:
            tally.ms.append((perf_counter() - began) * 1e3)
            found, right = winners(json.loads(body)), self.right[query]
            is_right = found.keys() == right.keys() and all(abs(found[key] - right[key]) < CLOSE for key in right)
            tally.n_wrong += not is_right

    async def closed(self, n_clients: int, *, seconds: float = SECONDS, n_requests: int = 1 << 60) -> Tally:
        """So many clients, each with its next request when the last is answered."""
        tally, began, n = Tally(), perf_counter(), 0

        async def work() -> None:
            nonlocal n
            client = Client(self.server.port)
            while perf_counter() - began < seconds and n < n_requests:
                n += 1
                await self.one(client, n, tally)
            client.close()

        await asyncio.gather(*(work() for _ in range(n_clients)))
        tally.seconds = perf_counter() - began
        return tally

    async def open(self, rate: float) -> Tally:
        """Requests that arrive at random, whether or not those before are answered."""
        random = np.random.default_rng(0)
        tally, began, at, idle = Tally(), perf_counter(), 0.0, [Client(self.server.port)]
        tasks: list[asyncio.Task[None]] = []

        async def work(n: int) -> None:
            client = idle.pop() if idle else Client(self.server.port)
            await self.one(client, n, tally)
            idle.append(client)

        while at < SECONDS:
            at += random.exponential(1 / rate)
            await asyncio.sleep(max(0.0, began + at - perf_counter()))
            tasks.append(asyncio.create_task(work(len(tasks))))
        await asyncio.gather(*tasks)
        tally.seconds = perf_counter() - began
        for client in idle:
            client.close()
        return tally


def winners(answer: dict[str, Any]) -> dict[str, float]:
    """Each prompt's label with its probability."""
    return {f"{each['prompt']} {each['label']}": each["probability"] for each in answer["results"]}


def held(server: Server) -> dict[str, float]:
    """What must not grow."""
    names = ("process_open_fds", "qcls_prefix_cells", "qcls_prefixes", "qcls_admitted_requests", "qcls_admitted_tokens")
    return {name: server.metric(name) for name in names}


@pytest.mark.parametrize("name", ["mission", "fashion-8", "fashion-8-joint"])
def test_closed_loops(name: str, tmp_path: Path) -> None:
    """Merging what waits, as far as it pays, beside never merging: in turns, as others use the machine as well."""
    tree = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())
    tree.setdefault("runtime", {})["max_batch"] = 1
    if "path" in tree.get("model", {}):
        tree["model"]["path"] = str(ROOT / "configs" / tree["model"]["path"])
    (tmp_path / "apart.yaml").write_text(yaml.safe_dump(tree))
    with (
        Server("--log-format", "none", config=f"configs/{name}.yaml") as merging,
        Server("--log-format", "none", config=tmp_path / "apart.yaml") as apart,
    ):
        loads = {"merged": Load.of(merging), "apart": Load.of(apart)}
        print(*(line for line in merging.lines if "measure turns" in line))
        for n_clients in (1, 2, 4, 8, 32):
            whole = {how: Tally() for how in loads}
            for _ in range(N_TURNS):
                for how, load in loads.items():
                    whole[how].add(asyncio.run(load.closed(n_clients, seconds=SECONDS / N_TURNS)))
            for how, tally in whole.items():
                print(tally.line(f"{name}, {n_clients} clients, {how}"))
                assert (tally.n_wrong, set(tally.statuses)) == (0, {200})


@pytest.mark.parametrize("is_bounded", [False, True])
def test_open_loops(is_bounded: bool) -> None:
    """Bounded: nobody is admitted who would wait longer than two requests take."""
    with Server("--log-format", "none", config=CONFIG) as server:
        alone_ms = float(np.mean(asyncio.run(Load.of(server).closed(1)).ms))
    bound = ["--max-wait", f"{2 * alone_ms:.1f}"] if is_bounded else []
    with Server("--log-format", "none", *bound, config=CONFIG) as server:
        load = Load.of(server)
        for share in (0.5, 0.8, 1.5):
            alone = asyncio.run(load.closed(1, seconds=SECONDS / 2))  # how fast the machine is just now
            rate = len(alone.ms) / alone.seconds
            tally = asyncio.run(load.open(share * rate))
            print(tally.line(f"{share} of the capacity of {rate:.0f}/s {' '.join(bound)}"), end=" ")
            print(f"p99 {np.percentile(tally.ms, 99) / np.mean(alone.ms):.1f} × a request alone")
            assert (tally.n_wrong, set(tally.statuses) | {503}) == (0, {200, 503})


def test_nothing_grows_with_requests() -> None:
    with Server("--log-format", "none", config="configs/mission.yaml") as server:
        load = Load.of(server)
        asyncio.run(load.closed(4, seconds=1e9, n_requests=N_REQUESTS // 10))
        before, memory = held(server), server.metric("process_resident_memory_bytes")
        tally = asyncio.run(load.closed(4, seconds=1e9, n_requests=N_REQUESTS))
        grown = server.metric("process_resident_memory_bytes") - memory
        print(tally.line(f"{N_REQUESTS} requests"), f"memory {memory / 2**20:.1f} MiB, then {grown / 2**20:+.1f}")
        assert (tally.n_wrong, set(tally.statuses)) == (0, {200})
        assert held(server) == before
        assert grown < 8 << 20


def test_nothing_grows_with_questions() -> None:
    def ask(first: int, n: int) -> None:
        for at in range(first, first + n, 20):
            questions = [
                {"type": "choice", "instructions": f"Is {each} it?", "choices": [{"value": "a"}, {"value": "b"}]}
                for each in range(at, at + 20)
            ]
            body = {"model": "m", "input": "red dress", "questions": questions}
            response = server.http.post("/v1/decisions", json=body)
            assert response.status_code == 200, response.text

    with Server("--log-format", "none", config="configs/mission.yaml") as server:
        ask(0, max(400, N_QUESTIONS // 5))
        before, memory = held(server), server.metric("process_resident_memory_bytes")
        began = perf_counter()
        ask(1_000_000, N_QUESTIONS)
        ms = (perf_counter() - began) * 1e3 / N_QUESTIONS
        grown = server.metric("process_resident_memory_bytes") - memory
        print(f"{N_QUESTIONS} questions, {ms:.1f} ms each, memory {memory / 2**20:.1f} MiB, then {grown / 2**20:+.1f}")
        after = held(server)
        assert after.keys() == before.keys()
        assert after["process_open_fds"] == before["process_open_fds"]
        assert after["qcls_prefixes"] == before["qcls_prefixes"]
        assert after["qcls_prefix_cells"] <= server.metric("qcls_prefix_cells_most")
        assert grown < 8 << 20


def test_a_thousand_idle_connections_and_400_questions() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with Server("--log-format", "none") as server, ExitStack() as stack:
        files = server.metric("process_open_fds")
        for _ in range(1000):
            stack.enter_context(server.connect())
        assert server.classify(query="red dress").status_code == 200
        assert server.metric("process_open_fds") == files + 1000
        choices = [{"value": "light blue"}, {"value": "red"}]
        questions = [{"type": "choice", "instructions": f"Is it number {n}?", "choices": choices} for n in range(400)]
        body = {"model": "m", "input": "red dress", "questions": questions}
        began = perf_counter()
        answer = server.http.post("/v1/decisions", json=body, headers={"x-request-timeout-ms": "60000"}).json()
        print(f"400 questions in {perf_counter() - began:.1f} s")
        for n in (0, 200, 399):
            alone = server.http.post("/v1/decisions", json={**body, "questions": questions[n : n + 1]}).json()
            probabilities = [each["answers"][at]["probabilities"] for each, at in ((answer, n), (alone, 0))]
            one, other = ([each["probability"] for each in found] for found in probabilities)
            assert one == pytest.approx(other, abs=CLOSE)


def test_the_schema_is_what_the_service_does(tmp_path: Path) -> None:
    with Server("--log-format", "none", config="configs/mission.yaml") as server:
        command = [
            str(BIN / "schemathesis"), "run", f"{server.address}/openapi.json", "--max-examples", "40", "--seed", "1",
            "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
            "response_schema_conformance,negative_data_rejection",
            "--exclude-path", "/admin/reload", "--phases", "examples,coverage,fuzzing", "--no-color",
            "--request-timeout", "30", "--suppress-health-check", "all",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        print(done.stdout[-6000:])
        assert done.returncode == 0, "".join(line for line in server.lines if "Error" in line)
        assert server.classify(query="red dress").status_code == 200
