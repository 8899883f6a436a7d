"""What HTTP costs a request at one client: `make load`. Run with -s to see the figures.

Blocks of requests in turns with blocks of the same classification without HTTP, so that what else the machine does
changes both: CPU time of the process that computes.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from served import ROOT, Server, raw, received

from qcls_gguf import Classifier, load_config

pytestmark = pytest.mark.load

N_ROUNDS = int(os.environ.get("QCLS_LOAD_ROUNDS", "40"))
N_REQUESTS = 50
"""of a block"""
QUERY = "red dress"
CONFIG = load_config(ROOT / "configs/mission.yaml")
CHOICES = [{"value": label} for label in CONFIG.prompts[0].labels]
BODIES: dict[str, dict[str, object]] = {
    "/v1/classify": {"query": QUERY, "prompts": [CONFIG.prompts[0].name]},
    "/v1/decisions": {
        "model": "any",
        "input": QUERY,
        "questions": [{"type": "choice", "instructions": f"@{CONFIG.prompts[0].name}", "choices": CHOICES}],
    },
}


def cpu_ms(pid: int) -> float:
    """What the threads of a process have computed."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6


def block(pid: int, ask: Callable[[], object]) -> tuple[float, float]:
    """(CPU time, median time) of a request, in ms. pid: of the process that computes."""
    before, ms = cpu_ms(pid), []
    for _ in range(N_REQUESTS):
        began = perf_counter()
        ask()
        ms.append((perf_counter() - began) * 1e3)
    return (cpu_ms(pid) - before) / N_REQUESTS, float(np.median(ms))


@pytest.mark.parametrize("route", BODIES)
def test_what_http_costs(route: str) -> None:
    config = CONFIG.changed(prompts=CONFIG.prompts[:1], runtime=CONFIG.runtime.changed(n_threads=1))
    data = raw(json.dumps(BODIES[route]).encode(), path=route)
    with Server("--quiet") as server, server.connect() as client, Classifier.from_config(config) as classifier:

        def ask() -> None:
            client.sendall(data)
            assert received(client).startswith(b"HTTP/1.1 200 ")

        ask()
        turns = [
            (block(os.getpid(), lambda: classifier.classify(QUERY)), block(server.process.pid, ask))
            for _ in range(N_ROUNDS)
        ]
    alone, http = np.array(turns).transpose(1, 2, 0)  # each [CPU time or time, round]
    (low, middle, high), p50 = np.percentile(http[0] - alone[0], (25, 50, 75)), np.median(http[1] - alone[1])
    print(f"\n{route}: alone {np.median(alone[0]):.2f} ms of CPU time, over HTTP {middle:+.2f} ms "
          f"(quartiles {low:+.2f}, {high:+.2f}), p50 {p50:+.2f} ms")  # fmt: skip
