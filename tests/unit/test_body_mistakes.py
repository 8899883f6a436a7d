"""What is said about a body that is not as it should be."""

from __future__ import annotations

from typing import Any

import pytest

from qcls_gguf.service.bodies import json_value
from qcls_gguf.service.dialects.classify import ClassifyRequest
from qcls_gguf.service.dialects.openai_decisions import DecisionsRequest
from qcls_gguf.service.dialects.predict import PredictRequest
from qcls_gguf.service.dialects.systemone import SystemOneRequest
from qcls_gguf.service.mistakes import M, parse
from qcls_gguf.service.refusal import RefusedError

CHOICE = {"type": "choice", "instructions": "Which?"}
ITEMS = "'message', 'function_call', 'custom_tool_call', 'function_call_output', 'custom_tool_call_output'"


def decisions(*questions: Any) -> dict[str, Any]:
    return {"model": "any", "input": "red dress", "questions": list(questions)}


def asked_about(item: Any) -> dict[str, Any]:
    return decisions(CHOICE | {"choices": [{"value": "a"}, {"value": "b"}]}) | {"input": [item]}


@pytest.mark.parametrize(
    ("model", "value", "param", "message"),
    [
        (ClassifyRequest, {"qurey": "a"}, "qurey", "qurey: unknown field, did you mean query?"),
        (ClassifyRequest, {}, "the body", "the body: give either query or queries"),
        (ClassifyRequest, "red dress", "the body", "the body: expected an object, got the text 'red dress'"),
        (ClassifyRequest, {"query": 3}, "query", "query: expected a text, got the number 3"),
        (ClassifyRequest, {"query": True}, "query", "query: expected a text, got true"),
        (ClassifyRequest, {"queries": [None]}, "queries[0]", "queries[0]: expected a text, got null"),
        (ClassifyRequest, {"queries": "a"}, "queries", "queries: expected a list, got the text 'a'"),
        (ClassifyRequest, {"query": "a", "prompts": []}, "prompts", "prompts: has 0 items, at least 1 is needed"),
        (ClassifyRequest, {"query": "a", "audit": 1}, "audit", "audit: expected true or false, got the number 1"),
        (
            ClassifyRequest,
            {"query": "a", "scoring": "Tree"},
            "scoring",
            "scoring: 'Tree' is not 'tree', 'first_token', 'joint' or 'mean'",
        ),
        (DecisionsRequest, {"model": "any", "input": "a"}, "questions", "questions: is missing"),
        (DecisionsRequest, decisions(), "questions", "questions: has 0 items, at least 1 is needed"),
        (
            DecisionsRequest,
            decisions({"type": "choce", "instructions": "Which?"}),
            "questions[0].type",
            "questions[0].type: 'choce' is not one of 'predicate', 'choice', 'score', did you mean choice?",
        ),
        (
            DecisionsRequest,
            decisions({"type": None, "instructions": "Which?"}),
            "questions[0].type",
            "questions[0].type: null is not one of 'predicate', 'choice', 'score'",
        ),
        (DecisionsRequest, decisions({}), "questions[0].type", "questions[0].type: is missing"),
        (
            DecisionsRequest,
            decisions(CHOICE | {"choices": ["a", "b"]}),
            "questions[0].choices[0]",
            "questions[0].choices[0]: expected an object, got the text 'a'; "
            "questions[0].choices[1]: expected an object, got the text 'b'",
        ),
        (
            DecisionsRequest,
            decisions(CHOICE | {"choices": [{"value": 1}, {"value": "b"}]}),
            "questions[0].choices[0].value",
            "questions[0].choices[0].value: expected a text or true or false, got the number 1",
        ),
        (DecisionsRequest, decisions(CHOICE), "questions[0].choices", "questions[0].choices: is missing"),
        (
            DecisionsRequest,
            decisions(CHOICE | {"choices": [{"value": "a"}, {"value": "b"}], "lables": []}),
            "questions[0].lables",
            "questions[0].lables: unknown field, known are choices, instructions, name, type",
        ),
        (
            DecisionsRequest,
            decisions(
                {"type": "score", "instructions": "Which?", "levels": [{"label": "a"}, {"label": "b"}], "score": 1}
            ),
            "questions[0].score",
            "questions[0].score: unknown field, known are instructions, levels, name, type",
        ),
        (
            DecisionsRequest,
            decisions(CHOICE | {"choices": [{"value": "a"}, {"value": "b"}]}) | {"input": {"a": 1}},
            "input",
            "input: expected a text or a list, got an object",
        ),
        (
            DecisionsRequest,
            decisions(CHOICE | {"choices": [{"value": "a"}, {"value": "b"}]})
            | {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": 3}]}]},
            "input[0].content[0].text",
            "input[0].content[0].text: expected a text, got the number 3",
        ),
        (
            DecisionsRequest,
            decisions(CHOICE | {"choices": [{"value": "a"}, {"value": "b"}]})
            | {"input": [{"type": "message", "role": "user", "content": 3}]},
            "input[0].content",
            "input[0].content: expected a text or a list, got the number 3",
        ),
        (
            DecisionsRequest,
            asked_about({"type": "mesage", "role": "user"}),
            "input[0].type",
            f"input[0].type: 'mesage' is not one of {ITEMS}, did you mean message?",
        ),
        (
            DecisionsRequest,
            asked_about({"type": "reasoning", "summary": []}),
            "input[0].type",
            f"input[0].type: 'reasoning' is not one of {ITEMS}",
        ),
        (
            DecisionsRequest,
            asked_about({"type": 3}),
            "input[0].type",
            f"input[0].type: the number 3 is not one of {ITEMS}",
        ),
        (
            DecisionsRequest,
            asked_about({"type": "custom_tool_call", "output": "a"}),
            "input[0].name",
            "input[0].name: is missing",
        ),
        (DecisionsRequest, asked_about({"role": "user"}), "input[0].content", "input[0].content: is missing"),
        (
            DecisionsRequest,
            asked_about({"role": "user", "message": "red dress"}),
            "input[0].content",
            "input[0].content: is missing; input[0].message: unknown field, known are content, phase, role, type",
        ),
        (DecisionsRequest, asked_about("a"), "input[0]", "input[0]: expected an object, got the text 'a'"),
        (PredictRequest, {"inputs": {"a": 1}}, "inputs", "inputs: expected a text or a list, got an object"),
        (PredictRequest, {"inputs": ["a", 3]}, "inputs[1]", "inputs[1]: expected a text or a list, got the number 3"),
        (
            PredictRequest,
            {"inputs": [["a", 3], ["b"]]},
            "inputs[0][1]",
            "inputs[0][1]: expected a text, got the number 3",
        ),
        (
            SystemOneRequest,
            {"state": "a", "questions": {"q": {"type": "choice", "instructions": "Which?"}}},
            "questions.q.criteria",
            "questions.q.criteria: is missing",
        ),
        (
            SystemOneRequest,
            {"state": "a", "questions": {"message": {"type": "choice", "instructions": "Which?"}}},
            "questions.message.criteria",
            "questions.message.criteria: is missing",
        ),
        (
            SystemOneRequest,
            {"state": "a", "questions": {"q": {"type": "choice", "criteria": {"message": 3}}}},
            "questions.q.criteria.message",
            "questions.q.criteria.message: expected a text or an object or a list, got the number 3",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place_the_value_and_what_belongs_there(
    model: type[M], value: Any, param: str, message: str
) -> None:
    with pytest.raises(RefusedError) as raised:
        parse(model, value)
    refused = raised.value
    assert (refused.status, refused.param, refused.message) == (422, param, message)


def test_of_many_mistakes_the_first_ones_are_told() -> None:
    with pytest.raises(RefusedError, match=r"queries\[19\]: expected a text, .*; and 5 more mistakes$"):
        parse(ClassifyRequest, {"queries": [3] * 25})


def test_a_body_that_is_no_json_is_malformed() -> None:
    for data in (b"", b"{", b'{"query": NaN}', b'{"query": "\xff"}'):
        with pytest.raises(RefusedError) as raised:
            json_value(data)
        assert raised.value.status == 400
