"""`/v1/systemone` in TypeSafe's words, `{"state", "questions": {name: question}}`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from ...config.words import JsonObject
from ...questions.asking import Usage
from ...questions.question import Distribution, JsonText, Question, TextQuestion
from ..dialect import LongTexts, Questions, Strict, short_json
from ..refusal import NO_IMAGES, RefusedError, invalid

TextOrJson = str | JsonObject | list[Any]
"""a text, or a JSON value, which is written as text"""


class _Asked(Strict):
    instructions: TextOrJson | None = None


class NoulQuestion(_Asked):
    """Is something so? The criteria are what yes and no mean."""

    type: Literal["noul"]
    criteria: dict[Literal["true", "false"], TextOrJson | None] | None = None


class SystemOneChoice(_Asked):
    """Which of some options?"""

    type: Literal["choice"]
    criteria: Annotated[dict[str, TextOrJson | None], Field(min_length=1)]


class SystemOneScore(_Asked):
    """Which level, of ordered ones?"""

    type: Literal["score"]
    criteria: Annotated[list[TextOrJson], Field(min_length=1)]


AnyQuestion = NoulQuestion | SystemOneChoice | SystemOneScore


class SystemOneRequest(LongTexts, extra="allow", strict=True):
    """TypeSafe's request; fields that are not named here are ignored."""

    model: str = "default"
    state: TextOrJson
    questions: Annotated[dict[str, Annotated[AnyQuestion, Field(discriminator="type")]], Field(min_length=1)]


def ask(request: SystemOneRequest, _: object) -> Questions:
    """The questions of a request. Raises RefusedError."""
    shown = {**(request.model_extra or {}), "state": _shows_images(request.state)}
    if param := next(filter(shown.get, ("assets", "images", "files", "videos", "state")), None):
        raise invalid(param, NO_IMAGES)
    text = _text(request.state) or ""
    questions = [
        TextQuestion(_question(given, f"questions.{name}"), text, f"questions.{name}", request.long)
        for name, given in request.questions.items()
    ]

    def answer(answers: list[Distribution], usage: Usage) -> object:
        pairs = zip(request.questions.items(), answers, strict=True)
        by_name = {name: _answer(given, answer) for (name, given), answer in pairs}
        tokens = {"input_tokens": usage.whole, "output_tokens": 0}
        return {"model": request.model, "answers": by_name, "usage": tokens}

    return Questions(questions=questions, answer=answer)


def _shows_images(state: TextOrJson) -> bool:
    """Whether one of a chat's messages has a part that is not text."""
    messages = state.get("messages") if isinstance(state, dict) else state
    messages = messages if isinstance(messages, list) else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    return any(part.get("type") in ("image_url", "input_audio") for part in parts)


def _question(given: AnyQuestion, param: str) -> Question:
    instructions = _text(given.instructions) or ""
    match given:
        case NoulQuestion():
            yes, no = (_text((given.criteria or {}).get(answer)) for answer in ("true", "false"))
            if not instructions and yes is None and no is None:
                raise invalid(param, "neither instructions nor criteria say what is asked")
            return Question.predicate(instructions, yes, no)
        case SystemOneChoice():
            options = [(label, _text(value)) for label, value in given.criteria.items()]
            return Question.of("choice", instructions, options)
        case SystemOneScore():
            levels = [(_text(value) or "", None) for value in given.criteria]
            return Question.of("score", instructions, levels)


def _text(value: TextOrJson | None) -> str | None:
    return value if value is None or isinstance(value, str) else JsonText(short_json(value))


def _answer(given: AnyQuestion, answer: Distribution) -> dict[str, object]:
    match given:
        case SystemOneChoice():
            labels = list(given.criteria)
            probabilities = dict(zip(labels, answer.probabilities, strict=True))
            best = {"choice": labels[answer.best], "confidence": answer.choice_confidence}
            return {"type": "choice", **best, "probabilities": probabilities}
        case SystemOneScore():
            probabilities = {str(level): probability for level, probability in enumerate(answer.probabilities)}
            legend = {str(level): value for level, value in enumerate(given.criteria)}
            score = {"score": answer.expected_level, "confidence": answer.score_confidence}
            return {"type": "score", **score, "legend": legend, "probabilities": probabilities}
        case _:
            return {"type": "noul", "noul": answer.probabilities[0]}


def words(refusal: RefusedError) -> Mapping[str, object]:
    """The body of an error."""
    if refusal.status == 422:
        where = ["body", *(refusal.param or "").split(".")] if refusal.param else ["body"]
        return {"detail": [{"loc": where, "msg": refusal.message, "type": refusal.reason}]}
    return {"detail": {"error_type": refusal.reason, "message": refusal.message}}
