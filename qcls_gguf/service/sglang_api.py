"""Decisions in SGLang's words: `{"input", "questions": [{"id", "type", "question", …}]}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .deciding import Asked, decide
from .exchange import Exchange
from .questions import YES_NO, Option, Question, expected_level
from .refusal import RefusedError
from .served import Served
from .service import Service


class SglangOption(BaseModel):
    """An option of a choice."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    description: str | None = None


class SglangQuestion(BaseModel):
    """A question with the name that its answer has."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str
    type: Literal["choice", "score", "yes_no"]
    question: str
    options: Annotated[list[SglangOption], Field(min_length=2)] | None = None
    levels: Annotated[list[str], Field(min_length=2)] | None = None
    yes: str | None = None
    no: str | None = None


class SglangRequest(BaseModel):
    """SGLang's request; fields that are not named here are ignored."""

    model_config = ConfigDict(strict=True)

    input: str
    questions: Annotated[list[SglangQuestion], Field(min_length=1)]
    model: str = "default"
    images: list[Any] | None = None


async def decide_sglang(service: Service, served: Served, exchange: Exchange, request: SglangRequest) -> dict[str, Any]:
    """The answer to a request. Raises RefusedError."""
    if request.images:
        raise RefusedError(422, "invalid", "images are not answered: this model reads text", param="images")
    names = [each.id for each in request.questions]
    if len(set(names)) < len(names):
        raise RefusedError(422, "invalid", "two questions have one id", param="questions")
    asked = [
        Asked(question=_question(each, f"questions[{index}]"), text=request.input, param=f"questions[{index}]")
        for index, each in enumerate(request.questions)
    ]
    found, usage = await decide(service, served, exchange, asked)
    answers = {}
    for each, question, probabilities in zip(request.questions, asked, found, strict=True):
        if probabilities is None:
            raise RefusedError(500, "failed", f"{question.param}: its scores are not finite", param=question.param)
        labels = [option.label for option in question.question.options]
        answer: dict[str, Any] = {
            "type": each.type,
            "probabilities": dict(zip(labels, probabilities, strict=True)),
            "label_mass": None,  # the share of all that the model might write is not computed
        }
        if each.type == "score":
            answer["score"] = expected_level(probabilities)
        else:
            answer["choice"] = labels[probabilities.index(max(probabilities))]
        answers[each.id] = answer
    return {
        "object": "decisions",
        "model": request.model,
        "prompt_format_version": None,
        "answers": answers,
        "usage": usage.chat(),
    }


def _question(given: SglangQuestion, param: str) -> Question:
    match given.type:
        case "yes_no":
            descriptions = (given.yes, given.no)
            options = tuple(
                Option(label=option.label, description=what) for option, what in zip(YES_NO, descriptions, strict=True)
            )
            return Question(kind="predicate", instructions=given.question, options=options)
        case "choice":
            if given.options is None:
                raise RefusedError(422, "invalid", f"{param}.options: a choice needs options", param=param)
            options = tuple(Option(label=each.name, description=each.description) for each in given.options)
            return Question(kind="choice", instructions=given.question, options=options)
        case "score":
            if given.levels is None:
                raise RefusedError(422, "invalid", f"{param}.levels: a score needs levels", param=param)
            return Question(
                kind="score", instructions=given.question, options=tuple(Option(label=each) for each in given.levels)
            )
