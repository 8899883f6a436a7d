"""`/v1/systemone` in TypeSafe's words, `{"state", "questions": {name: question}}`; `/v1/decisions` takes it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from ...config.words import JsonObject
from ...questions.asking import Usage
from ...questions.question import Distribution, JsonText, Question, TextQuestion
from ..dialect import Questions, QuestionsRequest, Strict, short_json
from ..refusal import RefusedError, no_images

TextOrJson = str | JsonObject | list[Any]
"""a text, or a JSON value, which is written as text"""


class _Question(Strict):
    instructions: TextOrJson | None = None


class NoulCriteria(Strict):
    """What yes and no mean."""

    true: TextOrJson | None = None
    false: TextOrJson | None = None


class NoulQuestion(_Question):
    """Is something so?"""

    type: Literal["noul"]
    criteria: NoulCriteria | None = None


class SystemOneChoice(_Question):
    """Which of some options?"""

    type: Literal["choice"]
    criteria: Annotated[dict[str, TextOrJson | None], Field(min_length=1)]


class SystemOneScore(_Question):
    """Which level, of ordered ones?"""

    type: Literal["score"]
    criteria: Annotated[list[TextOrJson], Field(min_length=1)]


class BoxQuestion(BaseModel):
    """Where in an image something is, which is refused."""

    type: Literal["box"]


AnyQuestion = NoulQuestion | SystemOneChoice | SystemOneScore | BoxQuestion


class SystemOneRequest(QuestionsRequest):
    """TypeSafe's request; fields that are not named here are ignored."""

    model: str = "default"
    state: TextOrJson
    questions: Annotated[dict[str, Annotated[AnyQuestion, Field(discriminator="type")]], Field(min_length=1)]
    assets: JsonObject | None = None
    images: list[Any] | None = None
    files: list[Any] | None = None
    videos: list[Any] | None = None


def claims(body: object) -> bool:
    """Whether a body for `/v1/decisions` is of this dialect."""
    return isinstance(body, dict) and "state" in body


def ask(request: SystemOneRequest, _: object) -> Questions:
    """The questions of a request. Raises RefusedError."""
    if request.assets is not None:
        raise no_images("assets")
    if given := next((name for name in ("images", "files", "videos") if getattr(request, name)), None):
        raise no_images(given)
    if _shows_images(request.state):
        raise no_images("state")
    text = _text(request.state) or ""
    questions = [
        TextQuestion(_question(each, f"questions.{name}", request.audit), text, f"questions.{name}", request.long)
        for name, each in request.questions.items()
    ]

    def answer(found: list[Distribution], usage: Usage) -> object:
        pairs = zip(request.questions.items(), found, strict=True)
        answers = {name: _answer(given, each) | each.extra for (name, given), each in pairs}
        tokens = {"input_tokens": usage.whole, "output_tokens": 0}
        return {"model": request.model, "answers": answers, "usage": tokens}

    return Questions(questions=questions, answer=answer)


def _shows_images(state: TextOrJson) -> bool:
    """Whether one of a chat's messages has a part that is no text."""
    messages = state.get("messages") if isinstance(state, dict) else state
    contents = (
        [each.get("content") for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
    )
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    return any(part.get("type") in ("image_url", "input_audio") for part in parts)


def _question(given: AnyQuestion, param: str, audit: bool) -> Question:
    if isinstance(given, BoxQuestion):
        raise no_images(param)
    instructions = _text(given.instructions) or ""
    match given:
        case NoulQuestion():
            criteria = given.criteria or NoulCriteria()
            if not instructions and criteria.true is None and criteria.false is None:
                what = f"{param}: neither instructions nor criteria say what is asked"
                raise RefusedError(422, "invalid", what, param=param)
            return Question.predicate(instructions, _text(criteria.true), _text(criteria.false), audit=audit)
        case SystemOneChoice():
            options = [(label, _text(value)) for label, value in given.criteria.items()]
            return Question.of("choice", instructions, options, audit=audit)
        case SystemOneScore():
            levels = [(_text(value) or "", None) for value in given.criteria]
            return Question.of("score", instructions, levels, audit=audit)


def _text(value: TextOrJson | None) -> str | None:
    return value if value is None or isinstance(value, str) else JsonText(short_json(value))


def _answer(given: AnyQuestion, found: Distribution) -> dict[str, object]:
    match given:
        case SystemOneChoice():
            labels = list(given.criteria)
            probabilities = dict(zip(labels, found.probabilities, strict=True))
            best = {"choice": labels[found.best], "confidence": found.choice_confidence}
            return {"type": "choice", **best, "probabilities": probabilities}
        case SystemOneScore():
            probabilities = {str(index): each for index, each in enumerate(found.probabilities)}
            legend = {str(index): value for index, value in enumerate(given.criteria)}
            score = {"score": found.expected_level, "confidence": found.score_confidence}
            return {"type": "score", **score, "legend": legend, "probabilities": probabilities}
        case _:
            return {"type": "noul", "noul": found.probabilities[0]}


def words(refusal: RefusedError) -> Mapping[str, object]:
    """The body of an error."""
    if refusal.status == 422:
        where = ["body", *(refusal.param or "").split(".")] if refusal.param else ["body"]
        return {"detail": [{"loc": where, "msg": refusal.message, "type": refusal.reason}]}
    return {"detail": {"error_type": refusal.reason, "message": refusal.message}}
