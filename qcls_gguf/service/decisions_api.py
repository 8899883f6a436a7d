"""`/v1/decisions` in OpenAI's words, and in SGLang's and TypeSafe's, which are told apart by their keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ..questions.question import Question
from .bodies import Strict, parse_value, read_json
from .deciding import asked_about, decide
from .decision_input import Item, Part, text_of_input, text_of_parts
from .exchange import Exchange
from .found import Found
from .openapi import gives, takes
from .served import Served
from .service import Service
from .sglang_api import SglangRequest, decide_sglang
from .systemone_api import SystemOneRequest, decide_system_one
from .waiting import answered
from .writing import json_response

ROUTE = "/v1/decisions"


class _Question(Strict):
    instructions: str | list[Part]
    name: str | None = None


class PredicateQuestion(_Question):
    """Is something so?"""

    type: Literal["predicate"]


class Choice(Strict):
    """An option of a choice."""

    value: str | bool
    description: str | None = None


class ChoiceQuestion(_Question):
    """Which of some options?"""

    type: Literal["choice"]
    choices: Annotated[list[Choice], Field(min_length=2)]


class Level(Strict):
    """A level of a score."""

    label: str
    description: str | None = None


class ScoreQuestion(_Question):
    """Which level, of ordered ones?"""

    type: Literal["score"]
    levels: Annotated[list[Level], Field(min_length=2)]


AnyQuestion = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionsRequest(BaseModel):
    """OpenAI's request; fields that are not named here are ignored."""

    model_config = ConfigDict(strict=True, use_attribute_docstrings=True)

    model: str
    input: str | Annotated[list[Item], Field(min_length=1)]
    questions: Annotated[
        list[Annotated[AnyQuestion, Field(discriminator="type")]],
        Field(min_length=1),
    ]
    audit: bool = False
    """ours: whether each answer has `x_label_mass`, the probability that lies on its options
    at all; costs the model's head"""


def add_decisions(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post(ROUTE, summary="Answer questions about a text, as OpenAI does", openapi_extra=takes(DecisionsRequest),
              responses=gives(None, "an answer to each question",
                              400, 401, 404, 408, 413, 415, 422, 500, 503, 504),
              response_class=Response)  # fmt: skip
    async def decisions(request: Request) -> Response:
        exchange = service.exchange(request, ROUTE)
        value = await read_json(request.scope, request.receive, service.limits)
        served = service.serving.served
        keys = value if isinstance(value, dict) else {}
        if "state" in keys:
            work = decide_system_one(service, served, exchange, parse_value(SystemOneRequest, value))
        elif _is_sglang(keys.get("questions")):
            work = decide_sglang(service, served, exchange, parse_value(SglangRequest, value))
        else:
            work = _decide(service, served, exchange, parse_value(DecisionsRequest, value))
        return json_response(await answered(work, request.scope))


def _is_sglang(questions: Any) -> bool:
    first = questions[0] if isinstance(questions, list) and questions else None
    return isinstance(first, dict) and "question" in first


async def _decide(service: Service, served: Served, exchange: Exchange, request: DecisionsRequest) -> dict[str, Any]:
    questions = [
        (param := f"questions[{index}]", _question(each, param)) for index, each in enumerate(request.questions)
    ]
    asked = asked_about(text_of_input(request.input), questions, audit=request.audit)
    found, usage = await decide(service, served, exchange, asked)
    answers = [_answer(*each) for each in zip(request.questions, found, strict=True)]
    return {"model": request.model, "answers": answers, "usage": usage.openai()}


def _question(given: AnyQuestion, param: str) -> Question:
    instructions = text_of_parts(given.instructions, f"{param}.instructions")
    match given:
        case PredicateQuestion():
            return Question.predicate(instructions)
        case ChoiceQuestion():
            return Question.of("choice", instructions, _options(given.choices))
        case ScoreQuestion():
            return Question.of("score", instructions, ((each.label, each.description) for each in given.levels))


def _options(choices: Sequence[Choice]) -> Iterator[tuple[str, str | None]]:
    """The options; a text that is spelt as a boolean is put in quotes where that boolean is an option too."""
    booleans = {_boolean(each.value) for each in choices if isinstance(each.value, bool)}
    for each in choices:
        if isinstance(each.value, bool):
            yield _boolean(each.value), each.description
        else:
            yield f'"{each.value}"' if each.value in booleans else each.value, each.description


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _answer(given: AnyQuestion, found: Found | None) -> dict[str, Any]:
    if found is None:
        return {"type": "refusal", "name": given.name}
    return _numbers(given, found) | found.extra


def _numbers(given: AnyQuestion, found: Found) -> dict[str, Any]:
    match given:
        case PredicateQuestion():
            return {"type": "predicate", "name": given.name, "probability": found.probabilities[0]}
        case ChoiceQuestion():
            values = [choice.value for choice in given.choices]
            return {
                "type": "choice",
                "name": given.name,
                "choice": values[found.best],
                "confidence": found.choice_confidence,
                "probabilities": [
                    {"value": value, "probability": probability}
                    for value, probability in zip(values, found.probabilities, strict=True)
                ],
            }
        case ScoreQuestion():
            return {
                "type": "score",
                "name": given.name,
                "score": found.expected_level,
                "confidence": found.score_confidence,
                "probabilities": [
                    {"value": index, "label": level.label, "probability": probability}
                    for index, (level, probability) in enumerate(zip(given.levels, found.probabilities, strict=True))
                ],
            }
