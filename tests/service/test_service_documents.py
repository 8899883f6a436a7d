"""The examples of docs/serving.md asked of a running service, and the Label Studio adapter of docs/serving."""

import json
import runpy
import subprocess
import sys

import pytest
from documents import Block, blocks, contains, matches, text_of
from prometheus_client.parser import text_string_to_metric_families
from served import ROOT, Server
from starlette.testclient import TestClient

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


def test_tasks_are_labelled_by_the_prompts_of_their_choices(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of Label Studio 1.x, which sends the configuration with the tasks, or only at the set-up."""
    monkeypatch.setenv("QCLS_ADDRESS", server.address)
    adapter = runpy.run_path(str(ROOT / "docs/serving/label_studio.py"))
    tasks = [{"id": n, "data": {"query": query}} for n, query in enumerate(("red dress for girls", "jeans for men"))]
    params = {"login": None, "password": None, "context": None}
    body = {"tasks": tasks, "model_version": None, "project": "1.1", "label_config": CONFIG, "params": params}
    set_up = {"project": "1.1", "schema": CONFIG, "hostname": "", "access_token": "k", "extra_params": None}
    with TestClient(adapter["app"]) as client:
        assert client.get("/health").json()["status"] == "UP"
        setup = client.post("/setup", json=set_up).json()
        answers = [client.post("/predict", json=body | more).json() for more in ({}, {"label_config": None})]
        for path, event in (("/versions", {"project": "1.1"}), ("/webhook", {"action": "ANNOTATION_CREATED"})):
            assert client.post(path, json=event).status_code == 200
        assert client.portal
        client.portal.call(adapter["client"].aclose)
    for answer in answers:
        assert setup["model_version"] == answer["model_version"]
        labels = [[each["value"]["choices"] for each in result["result"]] for result in answer["results"]]
        assert labels == [[["dress"], ["girl"]], [["jeans"], ["man"]]]
        assert all(0 < result["score"] <= 1 for result in answer["results"])
        (first, second) = answer["results"][0]["result"]
        assert (first["from_name"], first["to_name"], first["type"]) == ("category", "text", "choices")
        assert second["from_name"] == "audience"
