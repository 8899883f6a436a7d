"""`/v1/decisions` as OpenAI has it: `{"model", "input", "questions": [{"type", "instructions", …}]}`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from ...config.words import JsonObject
from ...questions.asking import Usage
from ...questions.question import Distribution, Question, TextQuestion
from ..dialect import Questions, QuestionsRequest, Strict, short_json
from ..refusal import no_images


class _Part(Strict):
    prompt_cache_breakpoint: JsonObject | None = None


class InputText(_Part):
    """A text."""

    type: Literal["input_text", "output_text"]
    text: str


class RefusalPart(_Part):
    """What an assistant refused."""

    type: Literal["refusal"]
    refusal: str


class InputJson(_Part):
    """An object, or a list of objects."""

    type: Literal["input_json"]
    data: JsonObject | list[JsonObject]


class InputImage(BaseModel):
    """An image, which is refused."""

    type: Literal["input_image"]


Part = Annotated[InputText | RefusalPart | InputJson | InputImage, Field(discriminator="type")]
Parts = str | list[Part]


class Message(Strict):
    """Something that was said."""

    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: Parts
    phase: str | None = None


class Call(BaseModel, strict=True):
    """A call of a function or of a tool."""

    type: Literal["function_call", "custom_tool_call"]
    name: str
    arguments: str | None = None
    input: str | None = None


class CallOutput(BaseModel, strict=True):
    """What such a call returned."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: Parts


def _with_type(item: object) -> object:
    """The item itself, which now says that it is a message where it did not say what it is."""
    if isinstance(item, dict):
        item.setdefault("type", "message")
    return item


Item = Annotated[Message | Call | CallOutput, Field(discriminator="type"), BeforeValidator(_with_type)]


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


def ask(request: DecisionsRequest, _: object) -> Questions:
    """The questions of a request. Raises RefusedError."""
    text = _text_of_input(request.input)
    questions = [
        TextQuestion(
            _question(each, f"questions[{n}].instructions", request.audit), text, f"questions[{n}]", request.long
        )
        for n, each in enumerate(request.questions)
    ]

    def answer(found: list[Distribution | None], usage: Usage) -> object:
        pairs = zip(request.questions, found, strict=True)
        return {"model": request.model, "answers": [_answer(*each) for each in pairs], "usage": _usage(usage)}

    return Questions(questions=questions, answer=answer, is_partial=True)


def _text_of_input(given: str | list[Item]) -> str:
    """The text that questions are asked about.

    A single message is its text. Several are `role: text`, calls `call: name arguments`, outputs `output: text`, each
    below the other. Raises RefusedError (422) for images.
    """
    if isinstance(given, str):
        return given
    if len(given) == 1 and isinstance(given[0], Message):
        return _text_of_parts(given[0].content, "input[0]")
    return "\n".join(_line(item, f"input[{index}]") for index, item in enumerate(given))


def _line(item: Item, param: str) -> str:
    match item:
        case Message():
            return f"{item.role}: {_text_of_parts(item.content, param)}"
        case Call():
            return f"call: {item.name} {item.arguments or item.input or ''}".rstrip()
        case CallOutput():
            return f"output: {_text_of_parts(item.output, param)}"


def _text_of_parts(parts: Parts, param: str) -> str:
    """Texts one below the other, JSON as it is written shortest. Raises RefusedError (422) for images."""
    if isinstance(parts, str):
        return parts
    return "\n".join(_text(part, f"{param}.content[{index}]") for index, part in enumerate(parts))


def _text(part: Part, param: str) -> str:
    match part:
        case InputText():
            return part.text
        case RefusalPart():
            return part.refusal
        case InputJson():
            return short_json(part.data)
        case InputImage():
            raise no_images(param)


def _question(given: AnyQuestion, param: str, audit: bool) -> Question:
    """The question; an option that is spelt as a boolean is put in quotes where that is an option, too."""
    instructions = _text_of_parts(given.instructions, param)
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
    return {
        "input_tokens": usage.whole,
        "input_tokens_details": {"cached_tokens": usage.found, "cache_write_tokens": usage.stored},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.whole,
    }
