"""`/v1/decisions` as OpenAI has it: `{"model", "input", "questions": [{"type", "instructions", …}]}`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from ...config.words import JsonObject
from ...questions.asking import Usage
from ...questions.question import Distribution, Question, TextQuestion
from ..dialect import LongTexts, Questions, Strict, short_json


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


Parts = str | list[Annotated[InputText | RefusalPart | InputJson, Field(discriminator="type")]]


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


class _Asked(Strict):
    instructions: Parts
    name: str | None = None


class PredicateQuestion(_Asked):
    """Is something so?"""

    type: Literal["predicate"]


class Choice(Strict):
    """An option of a choice."""

    value: str | bool
    description: str | None = None


class ChoiceQuestion(_Asked):
    """Which of some options?"""

    type: Literal["choice"]
    choices: Annotated[list[Choice], Field(min_length=2)]


class Level(Strict):
    """A level of a score."""

    label: str
    description: str | None = None


class ScoreQuestion(_Asked):
    """Which level, of ordered ones?"""

    type: Literal["score"]
    levels: Annotated[list[Level], Field(min_length=2)]


AnyQuestion = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionsRequest(LongTexts, strict=True):
    """OpenAI's request; fields that are not named here are ignored."""

    model: str
    input: str | Annotated[list[Item], Field(min_length=1)]
    questions: Annotated[list[Annotated[AnyQuestion, Field(discriminator="type")]], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _check(cls, body: Any) -> Any:
        if isinstance(body, dict) and "state" in body and "input" not in body:
            raise ValueError("TypeSafe's requests, with a `state`, are answered at /v1/systemone")
        return body


def ask(request: DecisionsRequest, _: object) -> Questions:
    """The questions of a request. Raises RefusedError.

    An input of a single message is its text. Several are `role: text`, calls `call: name arguments`, outputs `output:
    text`, one below the other.
    """
    given = request.input
    if isinstance(given, str):
        text = given
    elif len(given) == 1 and isinstance(given[0], Message):
        text = _text(given[0].content)
    else:
        text = "\n".join(map(_line, given))
    questions = [
        TextQuestion(_question(question), text, f"questions[{n}]", request.long)
        for n, question in enumerate(request.questions)
    ]

    def answer(answers: list[Distribution | None], usage: Usage) -> object:
        pairs = zip(request.questions, answers, strict=True)
        details = {"cached_tokens": usage.found, "cache_write_tokens": usage.stored}
        counts = {"input_tokens": usage.whole, "input_tokens_details": details, "total_tokens": usage.whole}
        counts |= {"output_tokens": 0, "output_tokens_details": {"reasoning_tokens": 0}}
        return {"model": request.model, "answers": [_answer(*pair) for pair in pairs], "usage": counts}

    return Questions(questions=questions, answer=answer, is_partial=True)


def _line(item: Item) -> str:
    match item:
        case Message():
            return f"{item.role}: {_text(item.content)}"
        case Call():
            return f"call: {item.name} {item.arguments or item.input or ''}".rstrip()
        case CallOutput():
            return f"output: {_text(item.output)}"


def _text(parts: Parts) -> str:
    """Texts one below the other, JSON as it is written shortest."""
    if isinstance(parts, str):
        return parts
    return "\n".join(
        short_json(part.data) if isinstance(part, InputJson) else part.refusal if part.type == "refusal" else part.text
        for part in parts
    )


def _question(given: AnyQuestion) -> Question:
    """The question; an option that is spelt as a boolean is put in quotes where that is an option, too."""
    instructions = _text(given.instructions)
    match given:
        case PredicateQuestion():
            return Question.predicate(instructions)
        case ChoiceQuestion(choices=choices):
            booleans = {short_json(choice.value) for choice in choices if isinstance(choice.value, bool)}
            values = [f'"{choice.value}"' if choice.value in booleans else choice.value for choice in choices]
            options = [(short_json(value), choice.description) for value, choice in zip(values, choices, strict=True)]
            return Question.of("choice", instructions, options)
        case ScoreQuestion():
            levels = [(level.label, level.description) for level in given.levels]
            return Question.of("score", instructions, levels)


def _answer(given: AnyQuestion, answer: Distribution | None) -> dict[str, object]:
    head: dict[str, object] = {"type": given.type, "name": given.name}
    if answer is None:
        return head | {"type": "refusal"}
    options: list[dict[str, object]]
    p = answer.probabilities
    match given:
        case PredicateQuestion():
            return head | {"probability": p[0]}
        case ChoiceQuestion(choices=choices):
            head |= {"choice": choices[answer.best].value, "confidence": answer.choice_confidence}
            options = [{"value": choice.value} for choice in choices]
        case ScoreQuestion(levels=levels):
            head |= {"score": answer.expected_level, "confidence": answer.score_confidence}
            options = [{"value": index, "label": level.label} for index, level in enumerate(levels)]
    pairs = zip(options, p, strict=True)
    return head | {"probabilities": [option | {"probability": share} for option, share in pairs]}
