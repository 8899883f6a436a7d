"""Texts out of the parts that inputs and instructions of decisions may have."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from .bodies import Strict
from .mistakes import MESSAGE
from .refusal import RefusedError, no_images


class _Part(Strict):
    prompt_cache_breakpoint: dict[str, Any] | None = None


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
    data: dict[str, Any] | list[dict[str, Any]]


class InputImage(BaseModel):
    """An image, which is refused."""

    type: Literal["input_image"]


Part = Annotated[InputText | RefusalPart | InputJson | InputImage, Field(discriminator="type")]


class Message(Strict):
    """Something that was said."""

    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: str | list[Part]
    phase: str | None = None


class Call(BaseModel):
    """A call of a function or of a tool."""

    model_config = ConfigDict(strict=True)

    type: Literal["function_call", "custom_tool_call"]
    name: str
    arguments: str | None = None
    input: str | None = None


class CallOutput(BaseModel):
    """What such a call returned."""

    model_config = ConfigDict(strict=True)

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: str | list[Part]


def _kind(item: Any) -> str:
    """Which kind an item is; it is a message if it does not say."""
    return str(item.get("type", MESSAGE)) if isinstance(item, dict) else MESSAGE


Item = Annotated[
    Annotated[Message, Tag(MESSAGE)]
    | Annotated[Call, Tag("function_call")]
    | Annotated[Call, Tag("custom_tool_call")]
    | Annotated[CallOutput, Tag("function_call_output")]
    | Annotated[CallOutput, Tag("custom_tool_call_output")],
    Discriminator(_kind),
]


def text_of_input(given: str | list[Item]) -> str:
    """The text that questions are asked about.

    A single message is its text. Several are `role: text`, calls `call: name arguments`, outputs `output: text`, each
    below the other. Raises RefusedError (422) for images.
    """
    if isinstance(given, str):
        return given
    if len(given) == 1 and isinstance(given[0], Message):
        return text_of_parts(given[0].content, "input[0]")
    return "\n".join(_line(item, f"input[{index}]") for index, item in enumerate(given))


def _line(item: Item, param: str) -> str:
    match item:
        case Message():
            return f"{item.role}: {text_of_parts(item.content, param)}"
        case Call():
            return f"call: {item.name} {item.arguments or item.input or ''}".rstrip()
        case CallOutput():
            return f"output: {text_of_parts(item.output, param)}"


def text_of_parts(parts: str | list[Part], param: str) -> str:
    """Texts one below the other, JSON as it is written shortest. Raises RefusedError (422) for images."""
    if isinstance(parts, str):
        return parts
    return "\n".join(_part(part, f"{param}.content[{index}]") for index, part in enumerate(parts))


def _part(part: Part, param: str) -> str:
    match part:
        case InputText():
            return part.text
        case RefusalPart():
            return part.refusal
        case InputJson():
            return short_json(part.data)
        case InputImage():
            raise no_images(param)


def short_json(value: Any) -> str:
    """A value as JSON without spaces; a text as it is. Raises RefusedError (422) for numbers that JSON cannot say."""
    if isinstance(value, str):
        return value
    try:  # orjson takes no whole numbers of more than 64 bits, which a request may have
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as e:
        raise RefusedError(422, "invalid", f"a number that JSON cannot say: {e}") from None
