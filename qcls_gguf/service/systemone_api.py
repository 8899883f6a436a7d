"""`/v1/systemone` in TypeSafe's words: `{"state", "questions": {name: question}}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ..questions.question import Question
from .bodies import Strict, content_type, read_model
from .deciding import asked_about, decide_all
from .decision_input import short_json
from .exchange import Exchange
from .found import Found
from .openapi import TypeSafeError, gives, takes
from .refusal import RefusedError, no_images
from .served import Served
from .service import Service
from .waiting import answered
from .writing import json_response

ROUTE = "/v1/systemone"

Told = str | dict[str, Any] | list[Any]
"""a text, or JSON that is given as its text"""


class _SystemOneQuestion(Strict):
    instructions: Told | None = None


class NoulCriteria(Strict):
    """What yes and no mean."""

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

    model_config = ConfigDict(strict=True, use_attribute_docstrings=True)

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
    audit: bool = False
    """ours: whether each answer has `x_label_mass`, the probability that lies on its options
    at all; costs the model's head"""


AnyQuestion = NoulQuestion | SystemOneChoice | SystemOneScore | BoxQuestion


def add_system_one(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post(ROUTE, summary="Answer questions about a text, as TypeSafe does", openapi_extra=takes(SystemOneRequest),
              responses=gives(None, "an answer to each question",
                              400, 401, 404, 408, 413, 415, 422, 500, 503, 504, error=TypeSafeError),
              response_class=Response)  # fmt: skip
    async def system_one(request: Request) -> Response:
        exchange = service.exchange(request, ROUTE)
        if content_type(request.scope).startswith("multipart/"):
            raise no_images("assets")
        asked = await read_model(SystemOneRequest, request.scope, request.receive, service.limits)
        served = service.serving.served
        work = decide_system_one(service, served, exchange, asked)
        return json_response(await answered(work, request.scope))


async def decide_system_one(
    service: Service, served: Served, exchange: Exchange, request: SystemOneRequest
) -> dict[str, Any]:
    """The answer to a request. Raises RefusedError."""
    if request.assets is not None:
        raise no_images("assets")
    questions = [(param := f"questions.{name}", _question(each, param)) for name, each in request.questions.items()]
    asked = asked_about(short_json(request.state), questions, audit=request.audit)
    found, usage = await decide_all(service, served, exchange, asked)
    answers = {
        name: _answer(each, of_it) | of_it.extra
        for (name, each), of_it in zip(request.questions.items(), found, strict=True)
    }
    return {"model": request.model, "answers": answers, "usage": {"input_tokens": usage.whole, "output_tokens": 0}}


def _question(given: AnyQuestion, param: str) -> Question:
    if isinstance(given, BoxQuestion):
        raise no_images(param)
    instructions = _told(given.instructions) or ""
    match given:
        case NoulQuestion():
            criteria = given.criteria or NoulCriteria()
            if not instructions and criteria.true is None and criteria.false is None:
                what = f"{param}: neither instructions nor criteria say what is asked"
                raise RefusedError(422, "invalid", what, param=param)
            return Question.predicate(instructions, _told(criteria.true), _told(criteria.false))
        case SystemOneChoice():
            return Question.of("choice", instructions, ((label, _told(told)) for label, told in given.criteria.items()))
        case SystemOneScore():
            return Question.of("score", instructions, ((short_json(told), None) for told in given.criteria))


def _told(told: Told | None) -> str | None:
    return None if told is None else short_json(told)


def _answer(given: AnyQuestion, found: Found) -> dict[str, Any]:
    match given:
        case SystemOneChoice():
            labels = list(given.criteria)
            return {
                "type": "choice",
                "choice": labels[found.best],
                "confidence": found.choice_confidence,
                "probabilities": dict(zip(labels, found.probabilities, strict=True)),
            }
        case SystemOneScore():
            return {
                "type": "score",
                "score": found.expected_level,
                "confidence": found.score_confidence,
                "legend": {str(index): short_json(told) for index, told in enumerate(given.criteria)},
                "probabilities": {str(index): probability for index, probability in enumerate(found.probabilities)},
            }
        case _:
            return {"type": "noul", "noul": found.probabilities[0]}
