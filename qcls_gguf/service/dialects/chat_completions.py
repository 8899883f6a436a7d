"""`/v1/chat/completions` as OpenAI has it, for requests whose answer is one of a closed list.

The list is that of a JSON schema (`response_format`, or a function that has to be called) each of whose fields has one
of some values, or, as vLLM's clients write it, in `structured_outputs`, `guided_choice` or `guided_json`. A field is a
question; all are answered together, and nothing is generated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import log
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from ...config.words import JsonObject
from ...questions.asking import Usage
from ...questions.closed_lists import ClosedList, Names, chosen, closed_lists
from ...questions.question import Distribution, Question, TextQuestion
from ..dialect import Context, Events, Lenient, Questions, QuestionsRequest, token_counts
from ..refusal import RefusedError, json_value, no_images

_GUIDES = ("guided_choice", "guided_json", "guided_regex", "guided_grammar", "truncate_prompt_tokens")
_HARMLESS = tuple(
    f"structured_outputs.disable_{name}" for name in ("fallback", "any_whitespace", "additional_properties")
)
_INSTRUCTING = ("system", "developer")
_LEAST_LOG = -9999.0
"""OpenAI's log-probability of what is impossible"""


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
    guided_choice: list[Any] | None = None
    guided_json: JsonObject | str | None = None
    structured_outputs: JsonObject | None = None
    guided_regex: Any = None
    """refused, as what follows"""
    guided_grammar: Any = None
    truncate_prompt_tokens: Any = None
    n: Literal[1] | None = 1
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    stream: bool | None = None
    stream_options: JsonObject | None = None


class _AnswerForm(NamedTuple):
    """How a request wants its answer."""

    lists: dict[Names, ClosedList]
    param: str
    function: Function | None = None
    is_json: bool = True


def _wanted(request: ChatRequest) -> _AnswerForm:
    """What the answer is chosen from. Raises RefusedError (400) for an answer that would have to be written."""
    choice, form = request.tool_choice, request.response_format
    if request.tools and choice not in (None, "none", "auto"):
        named = choice.function.name if isinstance(choice, Tool) else None
        functions = [each.function for each in request.tools if named in (None, each.function.name)]
        if len(functions) != 1:
            what = f"tool_choice: {len(functions)} of the tools may be called: name one of them"
            raise RefusedError(400, "open answer", what, param="tool_choice")
        param = "tools.parameters"
        return _AnswerForm(closed_lists(functions[0].parameters, param), param, functions[0])
    outputs = {key: value for key, value in (request.structured_outputs or {}).items() if value not in (None, False)}
    given: dict[str, Any] = {f"structured_outputs.{key}": value for key, value in outputs.items()}
    given |= {key: value for key in _GUIDES if (value := getattr(request, key)) is not None}
    if form is not None and form.type == "json_schema":
        given["response_format.json_schema.schema"] = form.json_schema.get("schema")
    forms = [_form(param, value) for param, value in given.items() if param not in _HARMLESS]
    if any(other.lists != forms[0].lists for other in forms):
        what = f"{forms[0].param} and {forms[1].param} ask for different answers: give one of them"
        raise RefusedError(400, "open answer", what, param=forms[1].param)
    if forms:
        return forms[0]
    what = (
        "this service chooses one of given answers and writes no text: give response_format with a json_schema of "
        "enums, a tool_choice of a function whose parameters are enums, or guided_choice"
    )
    raise RefusedError(400, "open answer", what, param="response_format")


def _form(param: str, value: Any) -> _AnswerForm:
    """An answer as one field asks for it. Raises RefusedError (400) for a field that is not answered."""
    if param in ("structured_outputs.choice", "guided_choice"):
        return _AnswerForm(closed_lists({"enum": value}, param), param, is_json=False)
    if param not in ("structured_outputs.json", "guided_json", "response_format.json_schema.schema"):
        what = (
            f"{param}: is not answered here: this service chooses one of given answers, as `choice` or `json` has them"
        )
        raise RefusedError(400, "open answer", what, param=param)
    schema = json_value(value.encode(), param) if isinstance(value, str) else value
    return _AnswerForm(closed_lists(schema, param), param)


def ask(request: ChatRequest, context: Context) -> Questions:
    """A question for each field of the answer. Raises RefusedError."""
    wanted = _wanted(request)
    said = [(each.role, _text(each, f"messages[{index}]")) for index, each in enumerate(request.messages)]
    instructions = [text for role, text in said if role in _INSTRUCTING]
    asked = [(role, text) for role, text in said if role not in _INSTRUCTING]
    if wanted.function and wanted.function.description:
        instructions.append(wanted.function.description)
    text = asked[0][1] if len(asked) == 1 else "\n".join(f"{role}: {words}" for role, words in asked)

    def questions() -> Iterator[TextQuestion]:  # each has the system messages
        for names, field in wanted.lists.items():
            own = ": ".join(filter(None, [".".join(names), field.description]))
            whole = "\n\n".join(filter(None, [*instructions, own]))
            question = Question.of("choice", whole, field.options, audit=request.audit)
            yield TextQuestion(question, text, ".".join([wanted.param, *names]), request.long)

    return Questions(questions=questions(), answer=lambda found, usage: _answer(request, context, wanted, found, usage))


def _text(message: ChatMessage, param: str) -> str:
    """Its texts one below the other. Raises RefusedError for images."""
    if not isinstance(message.content, list):
        return message.content or ""
    if any(part.type != "text" for part in message.content):
        raise no_images(param)
    return "\n".join(part.text for part in message.content)


def _answer(
    request: ChatRequest, context: Context, wanted: _AnswerForm, found: list[Distribution], usage: Usage
) -> object:
    value = chosen(wanted.lists, [each.best for each in found])
    is_text = isinstance(value, str) and not wanted.is_json
    content = value if is_text else json.dumps(value, ensure_ascii=False)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if wanted.function:
        call = {"name": wanted.function.name, "arguments": content}
        calls = [{"index": 0, "id": f"call_{context.request_id}", "type": "function", "function": call}]
        message |= {"content": None, "tool_calls": calls}
    tokens = [_token(field, each, request) for field, each in zip(wanted.lists.values(), found, strict=True)]
    ended: dict[str, Any] = {
        "index": 0,
        "logprobs": {"content": tokens, "refusal": None} if request.logprobs else None,
        "finish_reason": "tool_calls" if wanted.function else "stop",
    }
    counts = token_counts(usage.whole) | {"prompt_tokens_details": {"cached_tokens": usage.found}}
    head = {"id": f"chatcmpl-{context.request_id}", "created": context.created, "model": request.model}
    if not request.stream:
        return head | {"object": "chat.completion", "choices": [ended | {"message": message}], "usage": counts}
    head["object"] = "chat.completion.chunk"
    first = head | {"choices": [ended | {"delta": message, "finish_reason": None}]}
    events = [first, head | {"choices": [ended | {"delta": {}, "logprobs": None}]}]
    if (request.stream_options or {}).get("include_usage"):
        events.append(head | {"choices": [], "usage": counts})
    return Events(events)


def _token(field: ClosedList, found: Distribution, request: ChatRequest) -> dict[str, Any]:
    """The chosen label in the place of a token, with the most probable other ones."""
    ranked = sorted(zip(field.labels, found.probabilities, strict=True), key=lambda pair: -pair[1])
    tokens = [
        {"token": label, "logprob": log(each) if each > 0 else _LEAST_LOG, "bytes": list(label.encode())}
        for label, each in ranked
    ]
    return tokens[0] | {"top_logprobs": tokens[: request.top_logprobs or 0]}
