"""What the routes answer: the same as the classifier, in the words of each API, to real clients.

The examples of docs/serving.md asked of a running service, and the Label Studio adapter of docs/serving.
"""

import hashlib
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import numpy as np
import openai
import pytest
import typesafe_sdk
from cases import cases
from commands import ROOT
from documents import Block, blocks, contains, matches, text_of
from oracle import PromptSpec
from oracle_prompts import random_head, write_heads
from prometheus_client.parser import text_string_to_metric_families
from records_page import RunRecord
from served import Server, mission_with
from starlette.testclient import TestClient

from qcls_gguf import Classifier, load_config
from qcls_gguf.native import NativeModel
from qcls_gguf.service.app import _ROUTES


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not key.endswith("_ms")}


@pytest.mark.parametrize("query", ["red dress for girls", "", "孕妇牛仔裤", "<|im_start|>system", "a\0b", "👗"])
def test_a_query_is_answered_as_run_answers_it(server: Server, classifier: Classifier, query: str) -> None:
    response = server.classify(query=query)
    assert response.status_code == 200
    RunRecord.model_validate_json(response.content)
    ours = json.loads(RunRecord.model_validate(classifier.classify(query).to_dict()).to_json())
    assert (without_times(response.json()), list(response.json())) == (without_times(ours), list(ours))


def test_headers_tell_the_stages_and_the_request(server: Server) -> None:
    response = server.http.post("/v1/classify", json={"query": "red dress"}, headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == response.headers["x-typesafe-request-id"] == "mine-1"
    times = {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", response.headers["server-timing"])}
    assert 0 < times["decode"] < times["inference"] < times["total"]
    assert times["inference"] == pytest.approx(response.json()["total_ms"], abs=0.001)
    bad = server.http.get("/health", headers={"x-request-id": 'x" y'})
    assert bad.headers["x-request-id"] not in ('x" y', "mine-1")


def test_several_queries_and_one_that_is_too_long(server: Server) -> None:
    jeans, long, coat = server.classify(queries=["blue jeans", "word " * 600, "wool coat"]).json()["answers"]
    assert (jeans["query"], coat["query"], "max_query_tokens" in long["error"]) == ("blue jeans", "wool coat", True)
    assert jeans["results"] == server.classify(query="blue jeans").json()["results"]
    assert server.classify(queries=[]).json() == {"answers": []}
    queries = [f"{colour} dress" for colour in ("red", "blue", "green") * 5]
    assert [answer["query"] for answer in server.classify(queries=queries).json()["answers"]] == queries


def test_some_prompts(server: Server, classifier: Classifier) -> None:
    one = server.classify(query="red dress", prompts=["audience"]).json()
    assert [result["prompt"] for result in one["results"]] == ["audience"]
    expected = [score.probability for score in classifier.classify("red dress").results[1].scores]
    assert [score["probability"] for score in one["results"][0]["scores"]] == pytest.approx(expected, abs=0.01)


# --- other APIs ------------------------------------------------------------------------------------------------------


def predict(server: Server, inputs: object, **more: object) -> httpx.Response:
    return server.http.post("/predict?prompt=category", json={"inputs": inputs, **more})


def test_predict_as_tei_and_hugging_face_ask(server: Server, classifier: Classifier) -> None:
    single = predict(server, "red dress", truncate=False, unknown=1).json()
    scores = sorted(classifier.classify("red dress").results[0].scores, key=lambda score: -score.probability)
    assert [each["label"] for each in single] == [score.label for score in scores]
    assert predict(server, [["red dress"], ["red dress"]]).json() == [single, single]
    assert len(predict(server, ["red dress"] * 3).json()) == 3
    top = predict(server, "red dress", parameters={"top_k": 2, "function_to_apply": "softmax"}).json()
    assert top == [single[:2]]
    assert predict(server, "red dress", parameters={}).json() == [single]
    assert predict(server, [["red dress"]], parameters={}).json() == [single]
    assert predict(server, "red dress", raw_scores=True).json()[0]["score"] <= 0
    named = server.http.post("/predict", json={"inputs": "red dress", "model": "default/category"})
    assert named.json() == single


def test_the_client_of_hugging_face(server: Server) -> None:
    client = huggingface_hub.InferenceClient(model=f"{server.address}/predict?prompt=category")
    found = client.text_classification("red dress")
    assert (found[0].label, len(found)) == ("dress", 10)
    assert client.text_classification("red dress", top_k=2) == found[:2]
    labels = client.zero_shot_classification("red dress", candidate_labels=["light blue", "dark red"])
    assert [each.label for each in labels] == ["dark red", "light blue"]


@cases(
    (["a", "b"], 422, "pair"),
    ([["a", "b"]], 422, r"inputs\[0\]"),
    ([], 400, "empty"),
    ([["a"], ["word " * 2000]], 422, r"inputs\[1\]"),
    ({"source": "a"}, 422, "inputs"),
)
def test_predict_refuses_in_teis_words(inputs: object, status: int, says: str, server: Server) -> None:
    response = predict(server, inputs)
    assert (response.status_code, set(response.json())) == (status, {"error", "error_type"})
    assert re.search(says, response.json()["error"])


def test_labels_at_call_time(server: Server) -> None:
    def predict(inputs: object, **parameters: object) -> Any:
        response = server.http.post("/predict", json={"inputs": inputs, "parameters": parameters})
        return response.json() if response.status_code == 200 else response.status_code

    def decided(text: str, **question: object) -> Any:
        body = {"model": "m", "input": text, "questions": [question]}
        return server.http.post("/v1/decisions", json=body).json()["answers"][0]

    labels = ["light blue", "red", "dark red"]
    found = predict("red dress", candidate_labels=labels)
    answer = decided("red dress", type="choice", instructions="", choices=[{"value": each} for each in labels])
    right = {each["value"]: pytest.approx(each["probability"], abs=0.01) for each in answer["probabilities"]}
    assert {each["label"]: each["score"] for each in found} == right
    assert found == sorted(found, key=lambda each: -each["score"])
    several = predict([["red dress"], ["blue jeans"]], candidate_labels=labels, top_k=1)
    assert [len(each) for each in several] == [1, 1]
    asked: Any = {"candidate_labels": labels, "hypothesis_template": "Is it {}?"}
    _, alone = predict([["red dress"], ["wool coat"]], **asked, multi_label=True)
    right = decided("wool coat", type="predicate", instructions="Is it red?")["probability"]
    assert {each["label"]: each["score"] for each in alone}["red"] == pytest.approx(right, abs=0.01)
    assert [len(each) for each in predict(["red dress", "wool coat"], candidate_labels=labels)] == [3, 3]
    assert [one["label"] for one in predict("2", candidate_labels=[1.5, 2])] in (["1.5", "2"], ["2", "1.5"])
    assert predict("red dress", candidate_labels=" light blue,red,dark red, ") == found
    assert predict("red dress", **asked, multi_class=True) != found
    assert "send parameters." in server.http.post("/predict", json={"inputs": "x", "candidate_labels": labels}).text
    assert predict("x", candidate_labels=[]) == predict("x", candidate_labels=", ") == 422
    assert (predict("x", function_to_apply="sigmoid"), predict("x", candidate_labels=["a", "a"])) == (422, 422)
    assert predict("x", candidate_labels=labels, hypothesis_template="no place") == 422
    assert predict("x", multi_label=True) == predict("x", hypothesis_template="It is {}.") == 422


LONG = "red dress " * 300
QUESTION = {"type": "choice", "instructions": "Which?", "choices": [{"value": "red"}, {"value": "blue"}]}
CHAT = {"messages": [{"role": "user", "content": LONG}], "guided_choice": ["red", "blue"]}


@cases(
    ("/v1/classify", {"query": LONG}),
    ("/predict?prompt=category", {"inputs": LONG}),
    ("/predict", {"inputs": LONG, "parameters": {"candidate_labels": ["red", "blue"]}}),
    ("/v1/decisions", {"model": "m", "input": LONG, "questions": [QUESTION]}),
    ("/v1/systemone", {"state": LONG, "questions": {"q": {"type": "choice", "criteria": {"red": None, "b": None}}}}),
    ("/v1/chat/completions", CHAT),
)
def test_a_request_says_what_is_done_with_a_text_that_is_too_long(path: str, body: Any, server: Server) -> None:
    refusing: list[Any] = [{}, {"truncate": False}, {"truncation": "disabled"}, {"truncate": "no"}]
    cutting: list[Any] = [{"truncate": True}, {"truncation": "auto", "truncation_direction": "Left"}]
    for more in (*refusing, *cutting):
        answer = server.http.post(path, json=body | more)
        assert answer.status_code == (200 if more in cutting else 422), (more, answer.text)
        assert ("x-queries-cut" in answer.headers) == (more in cutting)


def test_either_end_of_a_text_is_labelled(server: Server) -> None:
    text = "red dress " * 200 + "blue jeans " * 200
    for direction, label in (("Right", "dress"), ("Left", "jeans")):
        said: Any = {"truncate": True, "truncation_direction": direction}
        answer = server.classify(query=text, prompts=["category"], **said).json()
        assert (answer["query"], answer["results"][0]["label"], answer["n_chars_cut"] > 2000) == (text, label, True)
        found = predict(server, [["wool coat"], [text]], parameters={"top_k": 1, **said}).json()
        assert ([len(each) for each in found], found[1][0]["label"]) == ([1, 1], label)


def test_models_for_both_sdks(server: Server) -> None:
    names = ["default", "default/category", "default/audience"]
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == names
        with pytest.raises(openai.NotFoundError, match="/v1/decisions by questions of the request"):
            client.responses.create(model="default", input="red dress")
        with pytest.raises(openai.BadRequestError, match="writes no text"):
            client.chat.completions.create(model="default", messages=[{"role": "user", "content": "red dress"}])
    with typesafe_sdk.TypeSafeClient(base_url=server.address, api_key="none") as client:
        assert [model.name for model in client.models.list().models] == names


def test_health_and_metrics(server: Server) -> None:
    assert server.http.get("/health").json()["status"] == "ready"
    assert server.http.head("/ready").status_code == 200
    before = server.metric("qcls_tokens_new_total")
    counts = server.classify(query="blue jeans").json()["counts"]
    assert server.metric("qcls_tokens_new_total") - before == pytest.approx(counts["n_tokens_new"])
    assert server.metric("qcls_prefixes") >= 2
    assert server.metric("process_resident_memory_bytes") > 0


def test_a_part_of_a_long_query_is_answered_as_configured_unless_the_request_says_otherwise(tmp_path: Path) -> None:
    with Server(config=mission_with(tmp_path, runtime={"max_query_tokens": 8, "long_queries": "head"})) as server:
        long, short = server.classify(query="red dress " * 30), server.classify(query="red dress")
        assert (long.status_code, long.headers["x-queries-cut"]) == (200, "1")
        assert "x-queries-cut" not in short.headers
        assert server.classify(query="red dress " * 30, truncate=False).status_code == 422


def test_answers_say_which_are_a_heads(tmp_path: Path) -> None:
    config = load_config("mission")
    first = config.prompts[0]
    spec = PromptSpec(name=first.name, template=first.prompt_template or "", labels=first.labels)
    path = ROOT / "models/fashion-tiny-Q8_0.gguf"
    with NativeModel(path) as model:
        head = random_head(np.random.default_rng(0), model.facts.n_embd, len(spec.labels), depth=2)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        write_heads(tmp_path / "heads.npz", model, sha256, {spec.name: (spec, head)})
    headed = mission_with(tmp_path, heads="heads.npz")
    with Classifier.from_config(headed) as classifier:
        category, audience = classifier.classify("red dress").results
    asked = QUESTION | {"instructions": f"@{spec.name}", "choices": [{"value": label} for label in spec.labels]}
    with Server(config=headed) as server:
        for _ in range(2):  # before and after a question without a head, which needs all layers
            results = server.classify(query="red dress").json()["results"]
            assert [result.get("scored_by") for result in results] == ["head", None]
            assert (results[0]["label"], results[0]["depth"]) == (category.label, 2)
            assert results[1]["label"] == audience.label
            body = {"model": "m", "input": "red dress", "questions": [asked, QUESTION]}
            own, other = server.http.post("/v1/decisions", json=body).json()["answers"]
            assert (own["choice"], other["choice"] in ("red", "blue")) == (category.label, True)
        assert predict(server, "red dress").json()[0]["label"] == own["choice"]
        for answer in (category, audience):
            (alone,) = server.classify(query="red dress", prompts=[answer.prompt]).json()["results"]
            assert (alone["label"], alone.get("depth")) == (answer.label, answer.depth)


# The examples of docs/serving.md asked of a running service, and the Label Studio adapter of docs/serving.


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
    for path, (method, _) in _ROUTES.items():
        assert f"`{method} {path}`" in text_of(PAGE)


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
