"""`/v1/decisions` in OpenAI's words, and in SGLang's and TypeSafe's, which are told apart by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from .bodies import parse_value, read_json
from .deciding import Asked, Probabilities, decide
from .decision_input import Item, Part, text_of_input, text_of_parts
from .exchange import Exchange
from .openapi import gives, takes
from .questions import YES_NO, Option, Question, choice_confidence, expected_level, score_confidence
from .served import Served
from .service import Service
from .sglang_api import SglangRequest, decide_sglang
from .systemone_api import SystemOneRequest, decide_system_one
from .waiting import answered
from .writing import json_response

ROUTE = "/v1/decisions"


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    instructions: str | list[Part]
    name: str | None = None


class PredicateQuestion(_Question):
    """Is something so?"""

    type: Literal["predicate"]


class Choice(BaseModel):
    """An option of a choice."""

    model_config = ConfigDict(extra="forbid", strict=True)

    value: str | bool
    description: str | None = None


class ChoiceQuestion(_Question):
    """Which of some options?"""

    type: Literal["choice"]
    choices: Annotated[list[Choice], Field(min_length=2)]


class Level(BaseModel):
    """A level of a score."""

    model_config = ConfigDict(extra="forbid", strict=True)

    label: str
    description: str | None = None


class ScoreQuestion(_Question):
    """Which level, of ordered ones?"""

    type: Literal["score"]
    levels: Annotated[list[Level], Field(min_length=2)]


AnyQuestion = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionsRequest(BaseModel):
    """OpenAI's request; fields that are not named here are ignored."""

    model_config = ConfigDict(strict=True)

    model: str
    input: str | Annotated[list[Item], Field(min_length=1)]
    questions: Annotated[
        list[Annotated[AnyQuestion, Field(discriminator="type")]],
        Field(min_length=1),
    ]


def add_decisions(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post(ROUTE, summary="Answer questions about a text, as OpenAI does", openapi_extra=takes(DecisionsRequest),
              responses=gives(None, "an answer to each question",
                              400, 401, 404, 408, 413, 415, 422, 500, 503, 504),
              response_class=Response)  # fmt: skip
    async def decisions(request: Request) -> Response:
        exchange = service.exchange(request, ROUTE)
        served = service.serving.served
        value = await read_json(request.scope, request.receive, service.limits)
        keys = value if isinstance(value, dict) else {}
        if "state" in keys:
            work = decide_system_one(service, served, exchange, parse_value(SystemOneRequest, value))
        elif _is_sglang(keys.get("questions")):
            work = decide_sglang(service, served, exchange, parse_value(SglangRequest, value))
        else:
            work = _decide(service, served, exchange, parse_value(DecisionsRequest, value))
        return json_response(await answered(work, request.receive))


def _is_sglang(questions: Any) -> bool:
    first = questions[0] if isinstance(questions, list) and questions else None
    return isinstance(first, dict) and "question" in first


async def _decide(service: Service, served: Served, exchange: Exchange, request: DecisionsRequest) -> dict[str, Any]:
    text = text_of_input(request.input)
    asked = [
        Asked(question=_question(each, f"questions[{index}]"), text=text, param=f"questions[{index}]")
        for index, each in enumerate(request.questions)
    ]
    found, usage = await decide(service, served, exchange, asked)
    answers = [_answer(*each) for each in zip(request.questions, asked, found, strict=True)]
    return {"model": request.model, "answers": answers, "usage": usage.openai()}


def _question(given: AnyQuestion, param: str) -> Question:
    instructions = text_of_parts(given.instructions, f"{param}.instructions")
    match given:
        case PredicateQuestion():
            return Question(kind="predicate", instructions=instructions, options=YES_NO)
        case ChoiceQuestion():
            return Question(kind="choice", instructions=instructions, options=_options(given.choices))
        case ScoreQuestion():
            options = tuple(Option(label=each.label, description=each.description) for each in given.levels)
            return Question(kind="score", instructions=instructions, options=options)


def _options(choices: Sequence[Choice]) -> tuple[Option, ...]:
    """The options; a text that is spelt as a boolean is put in quotes where that boolean is an option too."""
    booleans = {_boolean(each.value) for each in choices if isinstance(each.value, bool)}
    return tuple(
        Option(
            label=_boolean(each.value)
            if isinstance(each.value, bool)
            else f'"{each.value}"'
            if each.value in booleans
            else each.value,
            description=each.description,
        )
        for each in choices
    )


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _answer(given: AnyQuestion, asked: Asked, found: Probabilities) -> dict[str, Any]:
    if found is None:
        return {"type": "refusal", "name": given.name}
    match given:
        case PredicateQuestion():
            return {"type": "predicate", "name": given.name, "probability": found[0]}
        case ChoiceQuestion():
            values = [choice.value for choice in given.choices]
            return {
                "type": "choice",
                "name": given.name,
                "choice": values[found.index(max(found))],
                "confidence": choice_confidence(found),
                "probabilities": [
                    {"value": value, "probability": probability}
                    for value, probability in zip(values, found, strict=True)
                ],
            }
        case ScoreQuestion():
            return {
                "type": "score",
                "name": given.name,
                "score": expected_level(found),
                "confidence": score_confidence(found),
                "probabilities": [
                    {"value": index, "label": level.label, "probability": probability}
                    for index, (level, probability) in enumerate(zip(given.levels, found, strict=True))
                ],
            }
