"""Chat completions whose answer is one of a closed list, by OpenAI's client."""

import json
import re
from collections.abc import Iterator
from enum import Enum
from math import exp
from time import sleep, time
from typing import Any, Literal

import openai
import pytest
from cases import cases
from pydantic import BaseModel, Field, create_model
from served import JSON, Server

MESSAGES: Any = [
    {"role": "system", "content": "Say what the customer wants."},
    {"role": "user", "content": "red dress for girls"},
]
NESTED = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(60)} | {"60": {"const": 1}}
PICTURE = {"role": "user", "content": [{"type": "image_url"}]}
COLOURS = ["red", "light blue", "light pink"]
MANY_KEYS = {f"k{n}": 0 for n in range(50_000)}


class Size(BaseModel):
    value: Literal[36, 38] | None = None


class Wish(BaseModel):
    colour: Literal["red", "light blue", "light pink"]
    is_dress: bool = Field(description="Is it a dress?")
    size: Size


@pytest.fixture(scope="module")
def scoring() -> Iterator[Server]:
    with Server("--api-key", "none") as server:
        server.http.headers["authorization"] = "Bearer none"
        yield server


@pytest.fixture
def client(scoring: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{scoring.address}/v1", api_key="none", max_retries=0) as client:
        yield client


def decided(scoring: Server, asks: str, *choices: dict[str, str]) -> tuple[dict[str, float], int]:
    """What `/v1/decisions` answers to the same question, and by how many tokens."""
    question = {"type": "choice", "instructions": f"{MESSAGES[0]['content']}\n\n{asks}", "choices": choices}
    body = {"model": "any", "input": MESSAGES[1]["content"], "questions": [question]}
    answer = scoring.http.post("/v1/decisions", json=body).json()
    found = {each["value"]: each["probability"] for each in answer["answers"][0]["probabilities"]}
    return found, answer["usage"]["input_tokens"]


def test_fields_of_a_schema_are_questions_of_one_decode(client: openai.OpenAI, scoring: Server) -> None:
    sleep(1)  # after the service was started
    asked_s = int(time())
    asked: dict[str, Any] = {"model": "any", "messages": MESSAGES}
    completion = client.chat.completions.parse(**asked, response_format=Wish, logprobs=True, top_logprobs=3)
    assert completion.created >= asked_s
    (choice,) = completion.choices
    assert (type(choice.message.parsed), choice.finish_reason) == (Wish, "stop")
    assert completion.usage
    assert completion.usage.completion_tokens == 0
    assert choice.logprobs
    assert choice.logprobs.content
    fields = {"colour": COLOURS, "is_dress: Is it a dress?": ["true", "false"], "size.value": ["36", "38", "null"]}
    for token, (asks, labels) in zip(choice.logprobs.content, fields.items(), strict=True):
        expected, _ = decided(scoring, asks, *({"value": label} for label in labels))
        found = {each.token: exp(each.logprob) for each in token.top_logprobs}
        assert found == pytest.approx(expected, abs=0.01)
        assert token.token == max(expected, key=lambda label: expected[label])
    again = client.chat.completions.create(**asked, extra_body={"guided_choice": COLOURS})
    assert again.usage
    assert again.usage.prompt_tokens_details


@cases(
    ({"structured_outputs": {"choice": [1, True, 2.5], "regex": None}}, ["1", "true", "2.5"]),
    ({"guided_choice": [1, 2]}, ["1", "2"]),
    ({"guided_json": {"type": "integer", "minimum": 1, "maximum": 3, "nullable": True}}, ["1", "2", "3", "null"]),
    ({"guided_choice": [1, 2], "chat_template_kwargs": {"enable_thinking": False}, "logit_bias": {}}, ["1", "2"]),
    *(({key: json.dumps({"enum": ["a", "b"]})}, ['"a"', '"b"']) for key in ("guided_json", "json_schema")),
    ({"structured_outputs": {"json": {"enum": ["a", None], "title": "A"}, "disable_fallback": True}}, ['"a"', "null"]),
    ({"structured_outputs": {"json": {"properties": {"a": {"oneOf": [{"const": 1}]}}}}}, ['{"a": 1}']),
)
def test_lists_in_the_words_of_vllms_clients(body: dict[str, Any], values: list[str], client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="any", messages=MESSAGES, extra_body=body)
    assert answer.choices[0].message.content in values


def test_the_model_reads_what_is_said_of_values(scoring: Server) -> None:
    red, blue = {"const": "red", "description": "like a tomato"}, {"const": "light blue"}
    tools = [{"function": {"name": "f", "parameters": {"properties": {"colour": {"oneOf": [red, blue]}}}}}]
    described = {"value": "red", "description": "like a tomato"}
    wanted, n_tokens = decided(scoring, "colour", described, {"value": "light blue"})
    of_schema = schema({"properties": {"colour": {"anyOf": [red, blue]}}})
    for more in (of_schema, {"tools": tools, "tool_choice": "required"}):
        body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, **more}
        answer = scoring.http.post("/v1/chat/completions", json=body).json()
        (token,) = answer["choices"][0]["logprobs"]["content"]
        found = {each["token"]: exp(each["logprob"]) for each in token["top_logprobs"]}
        assert found == pytest.approx(wanted)
        assert answer["usage"]["prompt_tokens"] == n_tokens


def test_functions_and_streams(client: openai.OpenAI) -> None:
    colour = Enum("colour", {"RED": "red", "BLUE": "light blue"})
    tool = openai.pydantic_function_tool(create_model("note", colour=(colour, ...)), name="note")
    for tool_choice in ("required", {"type": "function", "function": {"name": "note"}}):
        request: Any = {"model": "any", "messages": MESSAGES, "tools": [tool], "tool_choice": tool_choice}
        (choice,) = client.chat.completions.create(**request).choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls
        answers = [json.dumps({"colour": label}) for label in ("red", "light blue")]
        call = choice.message.tool_calls[0].to_dict()
        assert call["function"] in [{"name": "note", "arguments": answer} for answer in answers]
    asked: Any = {"model": "any", "messages": MESSAGES, "extra_body": {"structured_outputs": {"choice": COLOURS}}}
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    whole = client.chat.completions.create(**asked)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "stop"]
    assert chunks[-1].usage is not None


def schema(of: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": of}}}


@cases(
    ({}, 400, "writes no text: give response_format"),
    ({"response_format": {"type": "json_object"}}, 400, "writes no text"),
    ({"response_format": {"type": "json_object", "schema": {}}}, 422, "response_format.schema: unknown field"),
    (schema({"type": "object", "properties": {}}), 400, "without fields"),
    (schema({"enum": []}), 400, "no.* closed list"),
    (schema({"$ref": "#/a", "a": {"$ref": "#/a", **MANY_KEYS}}), 400, "without end"),
    (schema({"$ref": "#/$defs/0", "$defs": NESTED}), 400, "without end"),
    (schema({"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}), 400, "more than 16 objects"),
    ({"guided_choice": ["a" * 200_000] * 3}, 413, "guided_choice: 200,"),
    (schema({"enum": ["a", True, "true"]}), 422, "given twice"),
    (schema({"enum": ["1", 1]}), 422, "given twice"),
    *((schema({"enum": ["café", twin]}), 422, "differ only in") for twin in ("cafe\u0301", "café ", "café\u200b")),
    ({"response_format": {"type": "json_schema", "json_schema": {"schma": {}}}}, 422, "schma: unknown field"),
    ({"guided_choice": ["a", "b"], "messages": [{"role": "user", "content": "a" * 50_000}]}, 422, "query has 50000"),
    ({"guided_choice": ["a", "b"], "messages": [MESSAGES[1] | {"role": "system"}] * 900}, 422, "their question do"),
    ({"guided_choice": ["a", 3]}, 200, ""),
    ({"guided_choice": ["a"], "structured_outputs": {"choice": ["a"]}}, 200, ""),
    ({"guided_choice": ["a"], "structured_outputs": {"choice": ["b"]}}, 400, "asks for another answer"),
    ({"guided_choice": ["a"], "structured_outputs": {"regex": "a"}}, 400, "structured_outputs.regex: this service"),
    ({"structured_outputs": {"json": "{"}}, 400, "structured_outputs.json is not valid JSON"),
    ({"structured_outputs": {"json": {"enum": ["a"], "minLength": 1}, "regex": None}}, 400, "the key 'minLength'"),
    ({"guided_choice": ["a", "b"], "regex": "a"}, 400, "regex: this service chooses"),
    ({"guided_regex": "a|b"}, 400, "guided_regex: this service chooses"),
    ({"guided_choice": ["a", "b"], "truncate_prompt_tokens": 9}, 400, "truncate_prompt_tokens: this service"),
    ({"guided_choice": ["a", "b"], "n": 2}, 422, "n: "),
    *(
        ({"guided_choice": ["a", "b"], name: value}, 422, f"{name}: .* is not used")
        for name, value in (
            ("chat_template", "{{ messages }}"),
            ("chat_template_kwargs", {"enable_thinking": True}),
            ("documents", [{"text": "a"}]),
            ("logit_bias", {"5": 9}),
            ("continue_final_message", True),
        )
    ),
    ({"guided_choice": ["a", "b"], "messages": []}, 422, "messages"),
    ({"guided_choice": ["a"] * 20_000}, 200, ""),
    ({"guided_choice": ["a", "b"], "messages": [PICTURE]}, 422, r"messages\[0\]: images"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, 400, "closed list"),
    ({"tools": [{"function": {"name": "f"}}] * 2, "tool_choice": "required"}, 400, "2 of the tools"),
    ({"tools": [{"function": {"name": "f"}}], "tool_choice": {"type": "function"}}, 422, "tool_choice"),
)
def test_what_has_to_be_written_is_refused(body: dict[str, Any], status: int, message: str, scoring: Server) -> None:
    answer = scoring.http.post("/v1/chat/completions", json={"model": "any", "messages": MESSAGES} | body)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert re.search(message, answer.json()["error"]["message"])


@pytest.mark.parametrize("value", ["1e999", "NaN", '"\\ud800"', "[" * 300 + "]" * 300])
def test_values_that_json_cannot_say_are_refused(scoring: Server, value: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], "structured_outputs": {{"choice": ["a", {value}]}}}}'
    answer = scoring.http.post("/v1/chat/completions", content=body, headers=JSON)
    assert answer.status_code in (400, 422), answer.text
