"""`/v1/systemone` in TypeSafe's words: `{"state", "questions": {name: question}}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from .bodies import content_type, read_model
from .deciding import Asked, decide
from .decision_input import short_json
from .exchange import Exchange
from .openapi import TypeSafeError, gives, takes
from .questions import YES_NO, Option, Question, choice_confidence, expected_level, score_confidence
from .refusal import RefusedError
from .served import Served
from .service import Service
from .waiting import answered
from .writing import json_response

ROUTE = "/v1/systemone"

Told = str | dict[str, Any] | list[Any]
"""a text, or JSON that is given as its text"""


class _SystemOneQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    instructions: Told | None = None


class NoulCriteria(BaseModel):
    """What yes and no mean."""

    model_config = ConfigDict(extra="forbid", strict=True)

    true: Told | None = None
    false: Told | None = None


class NoulQuestion(_SystemOneQuestion):
    """Is something so?"""

    type: Literal["noul"]
    criteria: NoulCriteria | None = None


class SystemOneChoice(_SystemOneQuestion):
    """Which of some options?"""

    type: Literal["choice"]
    criteria: Annotated[dict[str, Told | None], Field(min_length=1)]


class SystemOneScore(_SystemOneQuestion):
    """Which level, of ordered ones?"""

    type: Literal["score"]
    criteria: Annotated[list[Told], Field(min_length=1)]


class BoxQuestion(BaseModel):
    """Where in an image something is, which is refused."""

    type: Literal["box"]


class SystemOneRequest(BaseModel):
    """TypeSafe's request; fields that are not named here are ignored."""

    model_config = ConfigDict(strict=True)

    model: str = "default"
    state: Told
    questions: Annotated[
        dict[
            str,
            Annotated[NoulQuestion | SystemOneChoice | SystemOneScore | BoxQuestion, Field(discriminator="type")],
        ],
        Field(min_length=1),
    ]
    assets: dict[str, Any] | None = None


AnyQuestion = NoulQuestion | SystemOneChoice | SystemOneScore | BoxQuestion


def add_system_one(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post(ROUTE, summary="Answer questions about a text, as TypeSafe does", openapi_extra=takes(SystemOneRequest),
              responses=gives(None, "an answer to each question",
                              400, 401, 404, 408, 413, 415, 422, 500, 503, 504, error=TypeSafeError),
              response_class=Response)  # fmt: skip
    async def system_one(request: Request) -> Response:
        exchange = service.exchange(request, ROUTE)
        served = service.serving.served
        if content_type(request.scope).startswith("multipart/"):
            raise _no_images("assets")
        asked = await read_model(SystemOneRequest, request.scope, request.receive, service.limits)
        work = decide_system_one(service, served, exchange, asked)
        return json_response(await answered(work, request.receive))


async def decide_system_one(
    service: Service, served: Served, exchange: Exchange, request: SystemOneRequest
) -> dict[str, Any]:
    """The answer to a request. Raises RefusedError."""
    if request.assets is not None:
        raise _no_images("assets")
    text = short_json(request.state)
    asked = [
        Asked(question=_question(each, f"questions.{name}"), text=text, param=f"questions.{name}")
        for name, each in request.questions.items()
    ]
    found, usage = await decide(service, served, exchange, asked)
    answers = {}
    for (name, each), question, probabilities in zip(request.questions.items(), asked, found, strict=True):
        if probabilities is None:
            raise RefusedError(500, "failed", f"{question.param}: its scores are not finite", param=question.param)
        answers[name] = _answer(each, probabilities)
    return {"model": request.model, "answers": answers, "usage": {"input_tokens": usage.whole, "output_tokens": 0}}


def _question(given: AnyQuestion, param: str) -> Question:
    if isinstance(given, BoxQuestion):
        raise _no_images(param)
    instructions = "" if given.instructions is None else short_json(given.instructions)
    match given:
        case NoulQuestion():
            criteria = given.criteria or NoulCriteria()
            described = (criteria.true, criteria.false)
            if not instructions and described == (None, None):
                what = f"{param}: neither instructions nor criteria say what is asked"
                raise RefusedError(422, "invalid", what, param=param)
            options = tuple(
                Option(label=option.label, description=None if told is None else short_json(told))
                for option, told in zip(YES_NO, described, strict=True)
            )
            return Question(kind="predicate", instructions=instructions, options=options)
        case SystemOneChoice():
            options = tuple(
                Option(label=label, description=None if told is None else short_json(told))
                for label, told in given.criteria.items()
            )
            return Question(kind="choice", instructions=instructions, options=options)
        case SystemOneScore():
            options = tuple(Option(label=short_json(told)) for told in given.criteria)
            return Question(kind="score", instructions=instructions, options=options)


def _no_images(param: str) -> RefusedError:
    return RefusedError(422, "invalid", f"{param}: images are not answered: this model reads text", param=param)


def _answer(given: AnyQuestion, found: list[float]) -> dict[str, Any]:
    match given:
        case SystemOneChoice():
            labels = list(given.criteria)
            return {
                "type": "choice",
                "choice": labels[found.index(max(found))],
                "confidence": choice_confidence(found),
                "probabilities": dict(zip(labels, found, strict=True)),
            }
        case SystemOneScore():
            return {
                "type": "score",
                "score": expected_level(found),
                "confidence": score_confidence(found),
                "legend": {str(index): short_json(told) for index, told in enumerate(given.criteria)},
                "probabilities": {str(index): probability for index, probability in enumerate(found)},
            }
        case _:
            return {"type": "noul", "noul": found[0]}
