"""Texts out of the items and parts that the input and the instructions of OpenAI's decisions may consist of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ...config.words import JsonObject
from ..dialect import Strict, no_images, short_json


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
    output: Parts


def _with_type(item: object) -> object:
    """The item itself, which now says that it is a message where it did not say what it is."""
    if isinstance(item, dict):
        item.setdefault("type", "message")
    return item


Item = Annotated[Message | Call | CallOutput, Field(discriminator="type"), BeforeValidator(_with_type)]


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


def text_of_parts(parts: Parts, param: str) -> str:
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
