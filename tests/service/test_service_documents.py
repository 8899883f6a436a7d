"""The examples of docs/serving.md asked of a running service, and the Label Studio adapter of docs/serving."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from documents import Block, blocks, contains, matches, text_of
from prometheus_client.parser import text_string_to_metric_families
from served import ROOT, Server

from qcls_gguf.service.app import _ROUTES

PAGE = "docs/serving.md"


EXAMPLES = [block for language in ("sh", "py") for block in blocks(language) if block.page == PAGE]


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.where)
def test_examples_answer_as_shown(server: Server, block: Block) -> None:
    text = block.text.replace("localhost:8080", f"127.0.0.1:{server.port}")
    command = ["bash", "-euc", text] if block.language == "sh" else [sys.executable, "-W", "error", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert block.output
    if block.output.language == "json":
        reason = contains(json.loads(done.stdout), json.loads(block.output.text))
    else:
        reason = matches(block.output.text, done.stdout)
    assert reason is None, f"{reason}\n{done.stdout}"


def test_every_metric_is_documented(server: Server) -> None:
    server.classify(query="red dress")
    found = text_string_to_metric_families(server.http.get("/metrics").text)
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in found}
    page = text_of(PAGE)
    assert [name for name in names if name.startswith("qcls_") and f"`{name}" not in page] == []


def test_every_route_is_documented() -> None:
    page = text_of(PAGE)
    for path, (method, _) in _ROUTES.items():
        assert f"`{method} {path}`" in page


CONFIG = """<View>
  <Text name="text" value="$query"/><Header value="What?"/>
  <Choices name="category" toName="text" choice="single"><Choice value="dress"/><Choice value="jeans"/></Choices>
  <Choices name="audience" toName="text"><Choice value="Girls" alias="girl"/><Choice value="man"/></Choices>
</View>"""


@pytest.fixture
def studio(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[httpx.Response]]:
    """Sends requests, each (method, path, body), to the adapter."""
    monkeypatch.setenv("QCLS_ADDRESS", server.address)
    spec = importlib.util.spec_from_file_location("label_studio", ROOT / "docs/serving/label_studio.py")
    assert spec
    assert spec.loader
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)

    async def ask(*requests: tuple[str, str, Any]) -> list[httpx.Response]:
        transport = httpx.ASGITransport(adapter.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://adapter") as client, adapter.client:
            return [await client.request(method, path, json=body) for method, path, body in requests]

    return lambda *requests: asyncio.run(ask(*requests))


def test_tasks_are_labelled_by_the_prompts_of_their_choices(studio: Callable[..., list[httpx.Response]]) -> None:
    """In the words of Label Studio 1.x, which sends the configuration with the tasks, or only at the set-up."""
    tasks = [{"id": n, "data": {"query": query}} for n, query in enumerate(("red dress for girls", "jeans for men"))]
    params = {"login": None, "password": None, "context": None}
    body = {"tasks": tasks, "model_version": None, "project": "1.1", "label_config": CONFIG, "params": params}
    set_up = {"project": "1.1", "schema": CONFIG, "hostname": "", "access_token": "k", "extra_params": None}
    health, setup, *answers, versions, told = studio(
        *(("GET", "/health", None), ("POST", "/setup", set_up), ("POST", "/predict", body)),
        ("POST", "/predict", body | {"label_config": None}),
        *(("POST", "/versions", {"project": "1.1"}), ("POST", "/webhook", {"action": "ANNOTATION_CREATED"})),
    )
    assert health.json()["status"] == "UP"
    assert {response.status_code for response in (setup, versions, told)} == {200}
    for answer in (response.json() for response in answers):
        assert setup.json()["model_version"] == answer["model_version"]
        labels = [[each["value"]["choices"] for each in result["result"]] for result in answer["results"]]
        assert labels == [[["dress"], ["girl"]], [["jeans"], ["man"]]]
        assert all(0 < result["score"] <= 1 for result in answer["results"])
        (first, second) = answer["results"][0]["result"]
        assert (first["from_name"], first["to_name"], first["type"]) == ("category", "text", "choices")
        assert second["from_name"] == "audience"
