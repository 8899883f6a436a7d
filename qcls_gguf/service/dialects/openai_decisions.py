"""`/v1/decisions` as OpenAI has it: `{"model", "input", "questions": [{"type", "instructions", …}]}`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ...questions.distribution import Distribution
from ...questions.question import Question
from ..dialect import Context, Dialect, Questions, QuestionsRequest, Strict, TextQuestion, Usage, short_json
from .openai_input import Item, Parts, text_of_input, text_of_parts

PATH = "/v1/decisions"


class _Question(Strict):
    instructions: Parts
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


class DecisionsRequest(QuestionsRequest):
    """OpenAI's request; fields that are not named here are ignored."""

    model: str
    input: str | Annotated[list[Item], Field(min_length=1)]
    questions: Annotated[list[Annotated[AnyQuestion, Field(discriminator="type")]], Field(min_length=1)]


def _ask(request: DecisionsRequest, _: Context) -> Questions:
    text = text_of_input(request.input)
    questions = []
    for index, each in enumerate(request.questions):
        param = f"questions[{index}]"
        questions.append(TextQuestion(_question(each, f"{param}.instructions", request.audit), text, param))

    def answer(found: list[Distribution | None], usage: Usage) -> object:
        pairs = zip(request.questions, found, strict=True)
        return {"model": request.model, "answers": [_answer(*each) for each in pairs], "usage": _usage(usage)}

    return Questions(questions=questions, answer=answer, is_partial=True)


def _question(given: AnyQuestion, param: str, audit: bool) -> Question:
    """The question; an option that is spelt as a boolean is put in quotes where that is an option, too."""
    instructions = text_of_parts(given.instructions, param)
    match given:
        case PredicateQuestion():
            return Question.predicate(instructions, audit=audit)
        case ChoiceQuestion():
            booleans = {short_json(each.value) for each in given.choices if isinstance(each.value, bool)}
            labels = [f'"{each.value}"' if each.value in booleans else short_json(each.value) for each in given.choices]
            options = [(label, each.description) for label, each in zip(labels, given.choices, strict=True)]
            return Question.of("choice", instructions, options, audit=audit)
        case ScoreQuestion():
            levels = [(each.label, each.description) for each in given.levels]
            return Question.of("score", instructions, levels, audit=audit)


def _answer(given: AnyQuestion, found: Distribution | None) -> dict[str, object]:
    if found is None:
        return {"type": "refusal", "name": given.name}
    answer: dict[str, object] = {"type": given.type, "name": given.name}
    match given:
        case PredicateQuestion():
            answer["probability"] = found.probabilities[0]
        case ChoiceQuestion():
            values = [choice.value for choice in given.choices]
            pairs = zip(values, found.probabilities, strict=True)
            answer |= {"choice": values[found.best], "confidence": found.choice_confidence}
            answer["probabilities"] = [{"value": value, "probability": each} for value, each in pairs]
        case ScoreQuestion():
            levels = enumerate(zip(given.levels, found.probabilities, strict=True))
            answer |= {"score": found.expected_level, "confidence": found.score_confidence}
            answer["probabilities"] = [
                {"value": index, "label": level.label, "probability": each} for index, (level, each) in levels
            ]
    return answer | found.extra


def _usage(usage: Usage) -> dict[str, object]:
    details = {"cached_tokens": max(round(usage.cached) - usage.stored, 0), "cache_write_tokens": usage.stored}
    return {
        "input_tokens": usage.whole,
        "input_tokens_details": details,
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.whole,
    }


OPENAI_DECISIONS = Dialect(
    path=PATH, summary="Answer questions about a text, as OpenAI does", request=DecisionsRequest, ask=_ask
)
