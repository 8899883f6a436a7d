"""What chat clients send whose answer is one of a closed list, and where that list stands."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ...config.words import JsonObject
from ..dialect import Lenient, QuestionsRequest
from ..refusal import RefusedError
from .closed_lists import ClosedList, Names, closed_lists


class ContentPart(Lenient):
    """A part of a message; only texts are read."""

    type: str
    text: str = ""


class ChatMessage(Lenient):
    """Something that was said."""

    role: str
    content: str | list[ContentPart] | None = None


class ResponseFormat(Lenient):
    """The schema that the answer follows."""

    type: str
    json_schema: JsonObject = Field(default_factory=dict)


class Function(Lenient):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: JsonObject = Field(default_factory=dict)


class Tool(Lenient):
    """A tool that may be called, or has to be; only functions are known."""

    function: Function


class ChatRequest(QuestionsRequest):
    """OpenAI's request; fields that are not named here are ignored."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    model: str = "default"
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Tool | None = None
    guided_choice: list[str] | None = None
    structured_outputs: JsonObject | None = None
    n: Literal[1] | None = 1
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    stream: bool | None = None
    stream_options: JsonObject | None = None


class Wanted(NamedTuple):
    """How a request wants its answer."""

    lists: dict[Names, ClosedList]
    param: str
    function: Function | None = None
    is_json: bool = True


def wanted_of(request: ChatRequest) -> Wanted:
    """What the answer is chosen from. Raises RefusedError (400) for an answer that would have to be written."""
    choice = request.tool_choice
    if request.tools and choice not in (None, "none", "auto"):
        named = choice.function.name if isinstance(choice, Tool) else None
        functions = [each.function for each in request.tools if named in (None, each.function.name)]
        if len(functions) == 1:
            (function,) = functions
            return Wanted(closed_lists(function.parameters, "tools.parameters"), "tools.parameters", function)
        what = f"tool_choice: {len(functions)} of the tools may be called: name one of them"
        raise RefusedError(400, "open answer", what, param="tool_choice")
    given = (request.structured_outputs or {}).get("choice", request.guided_choice)
    if given is not None:
        param = "guided_choice" if given is request.guided_choice else "structured_outputs.choice"
        return Wanted(closed_lists({"enum": given}, param), param, is_json=False)
    form = request.response_format
    if form is not None and form.type == "json_schema":
        param = "response_format.json_schema.schema"
        return Wanted(closed_lists(form.json_schema.get("schema"), param), param)
    what = (
        "this service chooses one of given answers and writes no text: give response_format with a json_schema of "
        "enums, a tool_choice of a function whose parameters are enums, or guided_choice"
    )
    raise RefusedError(400, "open answer", what, param="response_format")
