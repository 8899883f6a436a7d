"""Who is admitted to the service, and what is said about a body that is not as it should be."""

from contextlib import ExitStack
from typing import Any

import pytest
from cases import cases

from qcls_gguf import load_config
from qcls_gguf.service.dialects.classify import ClassifyRequest
from qcls_gguf.service.dialects.openai_decisions import DecisionsRequest
from qcls_gguf.service.dialects.predict import PredictRequest
from qcls_gguf.service.dialects.systemone import SystemOneRequest
from qcls_gguf.service.lifecycle import Lifecycle, ServiceSettings
from qcls_gguf.service.refusal import M, RefusedError, parse

CHOICE = {"type": "choice", "instructions": "Which?"}


def decisions(*questions: Any, text: Any = "red dress") -> dict[str, Any]:
    return {"model": "any", "input": text, "questions": list(questions)}


def asked_about(item: Any) -> dict[str, Any]:
    return decisions(CHOICE | {"choices": [{"value": "a"}, {"value": "b"}]}, text=[item])


WRONG_TEXT = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": 3}]}
WRONG_CRITERION = {"state": "a", "questions": {"choice": {"type": "choice", "criteria": {"m": 3}}}}
VALUE, NO_CONTENT = "questions[0].choices[0].value", "input[0].content: is missing; input[0].message: unknown field"
NO_TEXT, NO_TRUTH = ("Input should be a valid " + kind for kind in ("string, got", "boolean, got"))


@cases(
    (ClassifyRequest, {"qurey": "a"}, "qurey: unknown field, did you mean query?"),
    (ClassifyRequest, {"text": "a"}, "text: unknown field, known are prompts, queries, query, "),
    (ClassifyRequest, {}, "the body: give either query or queries"),
    (ClassifyRequest, {"queries": [None]}, f"queries[0]: {NO_TEXT} None"),
    (DecisionsRequest, decisions({"type": "choce"}), "questions[0].type: 'choce' is not one"),
    (DecisionsRequest, decisions(CHOICE | {"choices": [{"value": 1}]}), f"{VALUE}: {NO_TEXT} 1; {VALUE}: {NO_TRUTH} 1"),
    (DecisionsRequest, asked_about(WRONG_TEXT), f"input[0].content[0].text: {NO_TEXT} 3"),
    (DecisionsRequest, asked_about({"role": "user", "message": "red dress"}), NO_CONTENT),
    (PredictRequest, {"inputs": [["a", 3], ["b"]]}, f"inputs[0][1]: {NO_TEXT} 3"),
    (SystemOneRequest, WRONG_CRITERION, f"questions.choice.criteria.m: {NO_TEXT} 3; quest"),
)
def test_a_mistake_has_its_place_its_value_and_a_remedy(model: type[M], value: Any, message: str) -> None:
    with pytest.raises(RefusedError) as raised:
        parse(model, value)
    assert (raised.value.status, raised.value.param) == (422, message.partition(": ")[0])
    assert raised.value.message.startswith(message)


def test_of_many_mistakes_the_first_ones_are_told() -> None:
    with pytest.raises(RefusedError, match=r"queries\[19\]: Input .*; and 5 more mistakes$"):
        parse(ClassifyRequest, {"queries": [3] * 25})
    with pytest.raises(RefusedError, match="the body has 2000 mistakes"):
        parse(ClassifyRequest, {"queries": [3] * 2000})


def test_more_requests_than_are_admitted_are_told_when_half_of_the_queries_will_be_done() -> None:
    lifecycle = Lifecycle(load_config("mission"), ServiceSettings(waiting_requests=2))
    for ms in (8.0, 8.0):
        lifecycle.note_time(ms)
    for n_queries, retry_ms in ((10, 80), (1, 20), (10**9, 60_000)):  # neither at once nor hours later
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(lifecycle.admitted(n_queries))
            with pytest.raises(RefusedError, match=r"^2 requests are in the service") as raised:
                stack.enter_context(lifecycle.admitted(1))
        assert (raised.value.status, raised.value.reason) == (503, "requests")
        assert raised.value.headers["retry-after-ms"] == str(retry_ms)
    assert (lifecycle.n_requests, lifecycle.n_queries) == (0, 0)
