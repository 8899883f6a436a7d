"""Load, for minutes: `make load`. Run with -s to see the figures.

QCLS_LOAD_REQUESTS, QCLS_LOAD_QUESTIONS and QCLS_LOAD_KEPT say how much of it.
"""

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Literal

import httpx
import pytest
import yaml
from cases import written
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from served import BIN, ROOT, Server, with_runtime

from qcls_gguf.service.dialects import DIALECTS

pytestmark = pytest.mark.load

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


def test_nothing_grows_with_requests(tmp_path: Path) -> None:
    """By one short prompt, so that there can be many."""
    template = "Which garment of [{labels}] is it?\nquery: {query}\nlabel:"
    prompt = {"name": "garment", "prompt_template": template, "labels": ["dress", "light blue jeans", "none"]}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({"prompts": [prompt]}))
    with Server("--quiet", config=tmp_path / "one.yaml") as server:
        ask_often(server, N_REQUESTS // 10)
        with steady(server, f"{N_REQUESTS} requests"):
            ask_often(server, N_REQUESTS)


def test_nothing_grows_with_questions(tmp_path: Path) -> None:
    def ask(first: int, n: int) -> None:
        for at in range(first, first + n, 20):
            probabilities(server, *range(at, at + 20))

    config = with_runtime(tmp_path, ROOT / "configs/mission.yaml", question_prefixes=N_KEPT, question_cells=40 * N_KEPT)
    with Server("--quiet", config=config) as server:
        ask(0, 8 * N_KEPT)
        with steady(server, f"{N_QUESTIONS} questions"):
            ask(1_000_000, N_QUESTIONS)


def test_a_thousand_idle_connections_and_400_questions() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with Server("--quiet") as server, ExitStack() as stack:
        files = server.metric("process_open_fds")
        for _ in range(1000):
            stack.enter_context(server.connect())
        assert server.classify(query="red dress").status_code == 200
        assert server.metric("process_open_fds") == files + 1000
        began = perf_counter()
        together = probabilities(server, *range(400))
        print(f"400 questions in {perf_counter() - began:.1f} s")
        for n in (0, 200, 399):
            assert together[n] == pytest.approx(probabilities(server, n)[0], abs=CLOSE)


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
    with Server("--quiet", config="configs/mission.yaml") as server:
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
