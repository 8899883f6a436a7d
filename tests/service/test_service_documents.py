"""The examples of docs/serving.md, asked of a running service."""

import json
import subprocess
import sys

import pytest
import yaml
from documents import Block, blocks, contains, matches, text_of
from prometheus_client.parser import text_string_to_metric_families
from served import Server

from qcls_gguf.config.settings import check
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
    assert check(FormSettings, yaml.safe_load(shown)) == FormSettings()
