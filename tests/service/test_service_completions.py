"""Chat completions whose answer is one of a closed list, and completions that score given texts, by OpenAI's client."""

import json
import re
from collections.abc import Iterator
from enum import Enum
from math import exp
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from oracle import Oracle, decode_sequence, log_softmax
from pydantic import BaseModel, Field, create_model
from served import ROOT, Server

MESSAGES: Any = [
    {"role": "system", "content": "Say what the customer wants."},
    {"role": "user", "content": "red dress for girls"},
]
NESTED = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(60)} | {"60": {"const": 1}}
COLOURS = ["red", "light blue", "light pink"]
NEXT = {"max_tokens": 1}
MANY_KEYS = {f"k{n}": 0 for n in range(50_000)}
LONG = {
    "properties": {str(n): {"$ref": "#/$defs/a"} for n in range(3000)},
    "$defs": {"a": {"const": 1, "description": "a" * 30_000}},
}


class Size(BaseModel):
    value: Literal[36, 38] | None = None


class Wish(BaseModel):
    colour: Literal["red", "light blue", "light pink"]
    is_dress: bool = Field(description="Is it a dress?")
    size: Size


@pytest.fixture(scope="module")
def scoring() -> Iterator[Server]:
    with Server("--completions", "--api-key", "none") as server:
        server.http.headers["authorization"] = "Bearer none"
        yield server


@pytest.fixture
def client(scoring: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{scoring.address}/v1", api_key="none", max_retries=0) as client:
        yield client


def probabilities(scoring: Server, instructions: str, values: list[str]) -> dict[str, float]:
    """What `/v1/decisions` answers to the same question."""
    choices = [{"value": value} for value in values]
    question = {"type": "choice", "instructions": instructions, "choices": choices}
    body = {"model": "any", "input": "red dress for girls", "questions": [question]}
    answer = scoring.http.post("/v1/decisions", json=body).json()["answers"][0]
    return {each["value"]: each["probability"] for each in answer["probabilities"]}


def test_fields_of_a_schema_are_questions_of_one_decode(client: openai.OpenAI, scoring: Server) -> None:
    completion = client.chat.completions.parse(
        model="any", messages=MESSAGES, response_format=Wish, logprobs=True, top_logprobs=3
    )
    (choice,) = completion.choices
    assert isinstance(choice.message.parsed, Wish)
    assert choice.finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 0
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    for token, asks, labels in zip(
        choice.logprobs.content,
        ("colour", "is_dress: Is it a dress?", "size.value"),
        (COLOURS, ["true", "false"], ["36", "38", "null"]),
        strict=True,
    ):
        expected = probabilities(scoring, f"{MESSAGES[0]['content']}\n\n{asks}", labels)
        found = {each.token: exp(each.logprob) for each in token.top_logprobs}
        assert found == pytest.approx(expected, abs=0.01)
        assert token.token == max(expected, key=lambda label: expected[label])
    again = client.chat.completions.create(model="any", messages=MESSAGES, extra_body={"guided_choice": COLOURS})
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.choices[0].message.content in COLOURS


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ({"structured_outputs": {"choice": [1, True, 2.5], "regex": None}}, ["1", "true", "2.5"]),
        ({"guided_choice": [1, 2]}, ["1", "2"]),
        ({"guided_json": {"type": "integer", "minimum": 1, "maximum": 3}}, ["1", "2", "3"]),
        ({"guided_json": json.dumps({"enum": ["a", "b"]})}, ['"a"', '"b"']),
        (
            {"structured_outputs": {"json": {"enum": ["a", None], "title": "A"}, "disable_fallback": True}},
            ['"a"', "null"],
        ),
        (
            {"structured_outputs": {"json": {"properties": {"a": {"oneOf": [{"const": 1, "description": "few"}]}}}}},
            ['{"a": 1}'],
        ),
    ],
)
def test_lists_in_the_words_of_vllms_clients(client: openai.OpenAI, body: dict[str, Any], values: list[str]) -> None:
    answer = client.chat.completions.create(model="any", messages=MESSAGES, extra_body=body)
    assert answer.choices[0].message.content in values


def test_the_model_reads_what_is_said_of_values(scoring: Server) -> None:
    red, blue = {"const": "red", "description": "like a tomato"}, {"const": "light blue"}
    tools = [{"function": {"name": "f", "parameters": {"properties": {"colour": {"oneOf": [red, blue]}}}}}]
    choices = [{"value": "red", "description": "like a tomato"}, {"value": "light blue"}]
    question = {"type": "choice", "instructions": f"{MESSAGES[0]['content']}\n\ncolour", "choices": choices}
    decisions = {"model": "any", "input": MESSAGES[1]["content"], "questions": [question]}
    right = scoring.http.post("/v1/decisions", json=decisions).json()
    for more in (
        schema({"properties": {"colour": {"anyOf": [red, blue]}}}),
        {"tools": tools, "tool_choice": "required"},
    ):
        body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, **more}
        answer = scoring.http.post("/v1/chat/completions", json=body).json()
        (token,) = answer["choices"][0]["logprobs"]["content"]
        found = {each["token"]: exp(each["logprob"]) for each in token["top_logprobs"]}
        assert found == pytest.approx(
            {each["value"]: each["probability"] for each in right["answers"][0]["probabilities"]}
        )
        assert answer["usage"]["prompt_tokens"] == right["usage"]["input_tokens"]


def test_functions_and_streams(client: openai.OpenAI) -> None:
    colour = Enum("colour", {"RED": "red", "BLUE": "light blue"})
    tool = openai.pydantic_function_tool(create_model("note", colour=(colour, ...)), name="note")
    for tool_choice in ("required", {"type": "function", "function": {"name": "note"}}):
        request: Any = {"model": "any", "messages": MESSAGES, "tools": [tool], "tool_choice": tool_choice}
        (choice,) = client.chat.completions.create(**request).choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        call = choice.message.tool_calls[0]
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) in [
            ("note", '{"colour": "red"}'),
            ("note", '{"colour": "light blue"}'),
        ]
    body = {"structured_outputs": {"choice": COLOURS}}
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="any", messages=MESSAGES, stream=True, stream_options=options, extra_body=body
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    whole = client.chat.completions.create(model="any", messages=MESSAGES, extra_body=body)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "stop"]
    assert chunks[-1].usage is not None


def schema(of: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": of}}}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "writes no text: give response_format"),
        ({"response_format": {"type": "json_object"}}, 400, "writes no text"),
        (
            schema({"type": "object", "properties": {"why": {"type": "string"}}}),
            400,
            r"schema\.why: .* no.* closed list",
        ),
        (schema({"type": "object", "properties": {}}), 400, "without fields"),
        (schema({"enum": []}), 400, "no.* closed list"),
        (schema({"enum": [["a"], "b"]}), 400, "no.* closed list"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), 400, "without end"),
        (schema({"$ref": "#/a", "a": {"$ref": "#/a", **MANY_KEYS}}), 400, "without end"),
        (schema({"$ref": "#/$defs/0", "$defs": NESTED}), 400, "without end"),
        (schema({"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}), 400, "more than 16 objects"),
        (schema(LONG), 413, "questions: 401 questions, at most 400"),
        ({"guided_choice": ["a" * 200_000] * 3}, 413, "guided_choice: 200,"),
        (schema({"enum": ["a", True, "true"]}), 422, "given twice"),
        (schema({"enum": ["1", 1]}), 422, "given twice"),
        (
            {"guided_choice": ["a", "b"], "messages": [{"role": "user", "content": "a" * 50_000}]},
            422,
            "query has 50000",
        ),
        ({"guided_choice": ["a", "b"], "messages": [MESSAGES[1] | {"role": "system"}] * 900}, 422, "their question do"),
        (schema(None), 400, "no.* closed list"),
        ({"guided_choice": ["a", 3]}, 200, ""),
        ({"guided_choice": ["a"], "structured_outputs": {"choice": ["a"]}}, 200, ""),
        ({"guided_choice": ["a"], "structured_outputs": {"choice": ["b"]}}, 400, "ask for different answers"),
        (
            {"guided_choice": ["a"], "structured_outputs": {"regex": "a"}},
            400,
            "structured_outputs.regex: is not answered",
        ),
        ({"structured_outputs": {"json": "{"}}, 400, "structured_outputs.json is not valid JSON"),
        ({"structured_outputs": {"json": {"enum": ["a"], "minLength": 1}, "regex": None}}, 400, "the key 'minLength'"),
        ({"guided_json": '{"type": "string"}'}, 400, "guided_json: .* no.* closed list"),
        ({"guided_regex": "a|b"}, 400, "guided_regex: is not answered"),
        ({"guided_choice": ["a", "b"], "truncate_prompt_tokens": 9}, 400, "truncate_prompt_tokens: is not answered"),
        ({"guided_choice": ["a", "b"], "n": 2}, 422, "n: "),
        ({"guided_choice": ["a", "b"], "messages": []}, 422, "messages"),
        ({"guided_choice": ["a"] * 20_000}, 200, ""),
        (
            {"guided_choice": ["a", "b"], "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            *(422, r"messages\[0\]: images"),
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, 400, "closed list"),
        ({"tools": [{"function": {"name": "f"}}] * 2, "tool_choice": "required"}, 400, "2 of the tools"),
        ({"tools": [{"function": {"name": "f"}}], "tool_choice": {"type": "function"}}, 422, "tool_choice"),
    ],
)
def test_what_would_have_to_be_written_is_refused(
    scoring: Server, body: dict[str, Any], status: int, message: str
) -> None:
    answer = scoring.http.post("/v1/chat/completions", json={"model": "any", "messages": MESSAGES} | body)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert re.search(message, answer.json()["error"]["message"])


def test_scores_of_given_texts_equal_stock_ones(client: openai.OpenAI) -> None:
    """As lm-evaluation-harness asks them: token arrays, echo, one token more, which it drops."""
    with Oracle(Path(ROOT, "models/fashion-tiny-Q8_0.gguf"), flash_attn=False) as oracle:
        texts = ["red dress for girls", "red dress for boys", "x", "👗 and 孕妇"]
        tokens = [oracle.model.tokenize(text, parse_special=False).tolist() for text in texts]
        answer = client.completions.create(model="any", prompt=tokens, max_tokens=1, echo=True, logprobs=1)
        for choice, given in zip(answer.choices, tokens, strict=True):
            rows = decode_sequence(oracle.context, given)
            oracle.context.clear()
            assert choice.logprobs is not None
            assert choice.logprobs.token_logprobs is not None
            assert choice.logprobs.top_logprobs is not None
            assert choice.logprobs.text_offset is not None
            assert choice.logprobs.token_logprobs[0] is None
            assert len(choice.logprobs.token_logprobs) == len(given) + 1
            for place, row in enumerate(rows):
                scores = log_softmax(row.astype(float))
                token = given[place + 1] if place + 1 < len(given) else int(scores.argmax())
                assert choice.logprobs.token_logprobs[place + 1] == pytest.approx(scores[token], abs=0.1)
                best = max(choice.logprobs.top_logprobs[place + 1].values())
                assert best == pytest.approx(scores.max(), abs=0.1)
            assert choice.text[: choice.logprobs.text_offset[-1]] == texts[choice.index]
            pieces = [oracle.model.piece(token)[0] for token in given]  # some begin or end within a character
            offsets = [len(b"".join(pieces[:n]).decode(errors="ignore")) for n in range(len(given) + 1)]
            assert choice.logprobs.text_offset == offsets
            names: list[str] = choice.logprobs.tokens or []
            assert [name.encode() == piece for name, piece in zip(names, pieces, strict=False)] == [
                not name.startswith("bytes:\\x") for name in names[: len(given)]
            ]
            assert "\ufffd" not in "".join(names)
    assert sum(name.startswith("bytes:") for name in names) > 1
    unscored = client.completions.create(model="any", prompt=texts[0], max_tokens=1)
    assert texts[0] + unscored.choices[0].text == answer.choices[0].text
    echoed = client.completions.create(model="any", prompt=texts[0], max_tokens=None, echo=True)
    assert echoed.choices[0].text == texts[0]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("value", ["1e999", "NaN", '"\\ud800"', "[" * 300 + "]" * 300])
def test_values_that_json_cannot_say_are_refused(scoring: Server, path: str, value: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], "structured_outputs": {{"choice": ["a", {value}]}}'
    body += f', "max_tokens": 0, "prompt": {value}}}'
    answer = scoring.http.post(f"/v1/{path}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422), answer.text


def test_a_deadline_that_passes_while_others_are_scored(scoring: Server) -> None:
    body = {"prompt": [[n, *[6] * 1000] for n in range(8)], "max_tokens": 0, "echo": True, "logprobs": 1}
    with pytest.raises(httpx.ReadTimeout):
        scoring.http.post("/v1/completions", json=body, timeout=0.2)
    late = {"x-request-timeout-ms": "1"}
    assert scoring.http.post("/v1/completions", json={"prompt": "x"} | NEXT, headers=late).status_code == 504


def test_clients_that_leave_do_not_end_what_others_get(scoring: Server) -> None:
    """Their prompts may still be scored while the configuration is read anew, which closes the scorer."""
    body = {"prompt": [[n, *[5] * 1000] for n in range(8)], "max_tokens": 0, "echo": True, "logprobs": 1}
    with pytest.raises(httpx.ReadTimeout):
        scoring.http.post("/v1/completions", json=body, timeout=0.2)
    assert scoring.http.post("/admin/reload").status_code == 200
    assert scoring.http.post("/v1/completions", json={"prompt": "x"} | NEXT).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "x", "max_tokens": 2}, "max_tokens: 2: no text is generated"),
        ({"prompt": "x"}, "max_tokens: 16"),
        ({"prompt": "x", "max_tokens": 0, "best_of": 0}, "best_of: 0"),
        ({"prompt": "x", "max_tokens": 0, "n": 2}, "n: 2"),
        ({"prompt": "x", "max_tokens": 0, "stream": True}, "stream: True"),
        ({"prompt": [], "max_tokens": 0}, "empty list"),
        ({"prompt": [[]], "max_tokens": 0}, r"prompt\[0\]: 0 tokens"),
        ({"prompt": [1, 2, 1 << 20], "max_tokens": 0}, "1048576 is no token"),
        ({"prompt": [5] * 5000, "max_tokens": 0}, r"prompt\[0\]: 5000 tokens"),
    ],
)
def test_completions_that_are_refused(client: openai.OpenAI, body: Any, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(model="any", **body)


def test_a_prompt_that_is_too_long_is_not_even_tokenised(scoring: Server) -> None:
    answer = scoring.http.post("/v1/completions", json={"prompt": ["x", "word " * 100_000]} | NEXT)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (413, "prompt[1]"), error


def test_a_service_that_scores_no_texts_says_so(server: Server) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 0})
    assert answer.status_code == 501
    assert "starts it with completions" in answer.json()["error"]["message"]
