"""The examples of docs/serving.md asked of a running service, and the Label Studio adapter of docs/serving."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from typing import Any

import httpx
import pytest
import yaml
from documents import Block, blocks, contains, matches, text_of
from prometheus_client.parser import text_string_to_metric_families
from served import ROOT, Server

from qcls_gguf.questions.forms import FormSettings

PAGE = "docs/serving.md"


@pytest.mark.parametrize("block", [*blocks("sh"), *blocks("py")], ids=lambda block: block.where)
def test_examples_answer_as_shown(server: Server, block: Block) -> None:
    assert block.page == PAGE
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


def test_every_route_is_documented(server: Server) -> None:
    page = text_of(PAGE)
    for path, methods in server.http.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"`{method.upper()} {path}`" in page


def test_the_forms_of_questions_are_those_shown() -> None:
    shown = text_of(PAGE).partition("These are the usual forms")[2].partition("```text\n")[2].partition("```")[0]
    assert FormSettings.model_validate(yaml.safe_load(shown)) == FormSettings()


CONFIG = """<View>
  <Text name="text" value="$query"/>
  <Choices name="category" toName="text"><Choice value="dress"/><Choice value="jeans"/></Choices>
  <Choices name="audience" toName="text"><Choice value="girl"/><Choice value="man"/></Choices>
</View>"""


def test_tasks_are_labelled_by_the_prompts_of_their_choices(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCLS_ADDRESS", server.address)
    spec = importlib.util.spec_from_file_location("label_studio", ROOT / "docs/serving/label_studio.py")
    assert spec
    assert spec.loader
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    tasks = [{"id": n, "data": {"query": query}} for n, query in enumerate(("red dress for girls", "jeans for men"))]
    body = {"tasks": tasks, "project": "1.1", "label_config": CONFIG, "params": {"context": None}}

    async def ask() -> tuple[Any, Any, Any]:
        transport = httpx.ASGITransport(adapter.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://adapter") as client, adapter.client:
            health = (await client.get("/health")).json()
            setup = await client.post("/setup", json={"project": "1.1", "schema": CONFIG, "hostname": ""})
            return health, setup.json(), (await client.post("/predict", json=body)).json()

    health, setup, answer = asyncio.run(ask())
    assert (health["status"], setup["model_version"]) == ("UP", answer["model_version"])
    labels = [[each["value"]["choices"] for each in result["result"]] for result in answer["results"]]
    assert labels == [[["dress"], ["girl"]], [["jeans"], ["man"]]]
    assert all(0 < result["score"] <= 1 for result in answer["results"])
    (first, second) = answer["results"][0]["result"]
    assert (first["from_name"], first["to_name"], first["type"]) == ("category", "text", "choices")
    assert second["from_name"] == "audience"
