"""Decisions in SGLang's words: `{"input", "questions": [{"id", "type", "question", …}]}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..questions.question import Question
from .bodies import Strict
from .deciding import asked_about, decide_all
from .exchange import Exchange
from .refusal import RefusedError, no_images
from .served import Served
from .service import Service


class SglangOption(Strict):
    """An option of a choice."""

    name: str
    description: str | None = None


class SglangQuestion(Strict):
    """A question with the name that its answer has."""

    id: str
    type: Literal["choice", "score", "yes_no"]
    question: str
    options: Annotated[list[SglangOption], Field(min_length=2)] | None = None
    levels: Annotated[list[str], Field(min_length=2)] | None = None
    yes: str | None = None
    no: str | None = None


class SglangRequest(BaseModel):
    """SGLang's request; fields that are not named here are ignored."""

    model_config = ConfigDict(strict=True, use_attribute_docstrings=True)

    input: str
    questions: Annotated[list[SglangQuestion], Field(min_length=1)]
    model: str = "default"
    images: list[Any] | None = None
    audit: bool = False
    """ours: whether each answer has `label_mass`, the probability that lies on its options
    at all; costs the model's head"""


async def decide_sglang(service: Service, served: Served, exchange: Exchange, request: SglangRequest) -> dict[str, Any]:
    """The answer to a request. Raises RefusedError."""
    if request.images:
        raise no_images("images")
    names = [each.id for each in request.questions]
    if len(set(names)) < len(names):
        raise RefusedError(422, "invalid", "two questions have one id", param="questions")
    questions = [
        (param := f"questions[{index}]", _question(each, param)) for index, each in enumerate(request.questions)
    ]
    asked = asked_about(request.input, questions, audit=request.audit)
    found, usage = await decide_all(service, served, exchange, asked)
    answers = {}
    for each, (_, question), of_it in zip(request.questions, questions, found, strict=True):
        labels = [option.label for option in question.options]
        answer: dict[str, Any] = {
            "type": each.type,
            "probabilities": dict(zip(labels, of_it.probabilities, strict=True)),
            "label_mass": of_it.label_mass,
        }
        if each.type == "score":
            answer["score"] = of_it.expected_level
        else:
            answer["choice"] = labels[of_it.best]
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
            return Question.predicate(given.question, given.yes, given.no)
        case "choice":
            if given.options is None:
                raise RefusedError(422, "invalid", f"{param}.options: a choice needs options", param=param)
            return Question.of("choice", given.question, ((each.name, each.description) for each in given.options))
        case "score":
            if given.levels is None:
                raise RefusedError(422, "invalid", f"{param}.levels: a score needs levels", param=param)
            return Question.of("score", given.question, ((each, None) for each in given.levels))
