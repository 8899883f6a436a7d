"""The Label Studio adapter of docs/serving, asked as label-studio-ml's own server is asked."""

import asyncio
import importlib.util
from typing import Any

import httpx
import pytest
from served import ROOT, Server

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
