"""`/v1/chat/completions` as OpenAI has it, for requests whose answer is one of a closed list.

The list is that of a JSON schema (`response_format`, or a function that has to be called) whose fields have one of some
values, or, as vLLM's clients write it, in `structured_outputs`, `guided_choice` or `guided_json`. A field is a
question; all are answered together, and nothing is generated.
"""

import json
from collections.abc import Iterator
from functools import partial
from math import log
from time import time
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from ...config.words import JsonObject, shown
from ...questions.asking import Usage
from ...questions.closed_lists import ClosedList, Names, chosen, closed_lists
from ...questions.question import Distribution, Question, TextQuestion
from ..dialect import LongTexts, Questions
from ..exchange import Exchange
from ..refusal import NO_IMAGES, RefusedError, invalid, json_value

_GUIDES = (
    *("guided_choice", "guided_json", "json_schema", "guided_regex", "guided_grammar", "truncate_prompt_tokens"),
    *("regex", "ebnf", "grammar"),
)
_CHOICES = ("structured_outputs.choice", "guided_choice")
_SCHEMAS = ("structured_outputs.json", "guided_json", "json_schema", "response_format.json_schema.schema")
_HARMLESS = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties")
_UNUSED = ("chat_template", "chat_template_kwargs", "documents", "logit_bias", "continue_final_message")
_INSTRUCTING = ("system", "developer")


class ContentPart(BaseModel):
    """A part of a message; only texts are read."""

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """Something that was said."""

    role: str
    content: str | list[ContentPart] | None = None


class ResponseFormat(BaseModel, extra="forbid"):
    """The schema that the answer follows."""

    type: str
    json_schema: JsonObject = Field(default_factory=dict)


class Function(BaseModel):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: JsonObject = Field(default_factory=dict)


class Tool(BaseModel):
    """A tool that may be called, or has to be; only functions are known."""

    function: Function


class ChatRequest(LongTexts, extra="allow", strict=True):
    """OpenAI's request; fields that are not named here are ignored, but for those in _GUIDES and _UNUSED."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    model: str = "default"
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Tool | None = None
    structured_outputs: JsonObject | None = None
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


def ask(request: ChatRequest, exchange: Exchange) -> Questions:
    """A question for every field of the answer. Raises RefusedError."""
    others = request.model_extra or {}
    for key in _UNUSED:
        value = others.get(key)
        if any(value.values()) if isinstance(value, dict) else value:
            what = f"{shown(value)} is not used: questions have the prompts of this service, without a thought"
            raise invalid(key, what)
    form = _form(request, others)
    said = [(message.role, _text(message, f"messages[{index}]")) for index, message in enumerate(request.messages)]
    instructions = [text for role, text in said if role in _INSTRUCTING]
    asked = [(role, text) for role, text in said if role not in _INSTRUCTING]
    if form.function and form.function.description:
        instructions.append(form.function.description)
    text = asked[0][1] if len(asked) == 1 else "\n".join(f"{role}: {words}" for role, words in asked)

    def questions() -> Iterator[TextQuestion]:  # which all have the system messages
        for names, field in form.lists.items():
            about = ": ".join(filter(None, [".".join(names), field.description]))
            whole = "\n\n".join(filter(None, [*instructions, about]))
            question = Question.of("choice", whole, field.options)
            yield TextQuestion(question, text, ".".join([form.param, *names]), request.long)

    answer = partial(_answer, request, exchange, form)
    return Questions(questions=questions(), answer=answer, is_stream=bool(request.stream))


def _form(request: ChatRequest, others: JsonObject) -> _AnswerForm:
    """What the answer is chosen from. Raises RefusedError (400) for an answer that would have to be written."""
    choice, form = request.tool_choice, request.response_format
    if request.tools and choice not in (None, "none", "auto"):
        named = choice.function.name if isinstance(choice, Tool) else None
        functions = [tool.function for tool in request.tools if named in (None, tool.function.name)]
        if len(functions) != 1:
            raise _open("tool_choice", f"{len(functions)} of the tools may be called: name one of them")
        param = "tools.parameters"
        return _AnswerForm(closed_lists(functions[0].parameters, param), param, functions[0])
    outputs = request.structured_outputs or {}
    given = {f"structured_outputs.{key}": outputs[key] for key in outputs if key not in _HARMLESS}
    given |= {key: others.get(key) for key in _GUIDES}
    if form is not None and form.type == "json_schema":
        if unknown := form.json_schema.keys() - {"name", "description", "schema", "strict"}:
            raise invalid(f"response_format.json_schema.{min(unknown)}", "unknown field")
        given[_SCHEMAS[-1]] = form.json_schema.get("schema") or {}
    forms = [_given_form(param, value) for param, value in given.items() if value is not None and value is not False]
    if not forms:
        what = "give response_format with a json_schema of enums, a tool_choice of a function with such parameters, or "
        what = f"this service chooses one of given answers and writes no text: {what}guided_choice"
        raise _open("response_format", what)
    for other in forms[1:]:
        if other.lists != forms[0].lists:
            raise _open(other.param, f"asks for another answer than {forms[0].param}: give one of them")
    return forms[0]


def _given_form(param: str, value: Any) -> _AnswerForm:
    """An answer as one field asks for it. Raises RefusedError (400) for a field that is not answered."""
    if param in _CHOICES:
        return _AnswerForm(closed_lists({"enum": value}, param), param, is_json=False)
    if param not in _SCHEMAS:
        what = "this service chooses one of given answers, as `choice` or `json` has them, and writes no text"
        raise _open(param, what)
    schema = json_value(value.encode(), param) if isinstance(value, str) else value
    return _AnswerForm(closed_lists(schema, param), param)


def _open(param: str, what: str) -> RefusedError:
    return RefusedError(400, "open answer", f"{param}: {what}", param=param)


def _text(message: ChatMessage, param: str) -> str:
    """Its texts one below the other. Raises RefusedError for images."""
    if not isinstance(message.content, list):
        return message.content or ""
    if any(part.type != "text" for part in message.content):
        raise invalid(param, NO_IMAGES)
    return "\n".join(part.text for part in message.content)


def _answer(
    request: ChatRequest, exchange: Exchange, form: _AnswerForm, answers: list[Distribution], usage: Usage
) -> object:
    """The body of the answer; of a stream the bodies of its events."""
    value = chosen(form.lists, [answer.best for answer in answers])
    is_text = isinstance(value, str) and not form.is_json
    content = value if is_text else json.dumps(value, ensure_ascii=False)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if form.function:
        call = {"name": form.function.name, "arguments": content}
        calls = [{"index": 0, "id": f"call_{exchange.request_id}", "type": "function", "function": call}]
        message |= {"content": None, "tool_calls": calls}
    tokens = [_token(field, answer, request) for field, answer in zip(form.lists.values(), answers, strict=True)]
    end: dict[str, Any] = {
        "index": 0,
        "logprobs": {"content": tokens, "refusal": None} if request.logprobs else None,
        "finish_reason": "tool_calls" if form.function else "stop",
    }
    counts = {
        **{"prompt_tokens": usage.whole, "completion_tokens": 0, "total_tokens": usage.whole},
        "prompt_tokens_details": {"cached_tokens": usage.found},
    }
    head = {"id": f"chatcmpl-{exchange.request_id}", "created": int(time()), "model": request.model}
    if not request.stream:
        return head | {"object": "chat.completion", "choices": [end | {"message": message}], "usage": counts}
    head["object"] = "chat.completion.chunk"
    first = head | {"choices": [end | {"delta": message, "finish_reason": None}]}
    events = [first, head | {"choices": [end | {"delta": {}, "logprobs": None}]}]
    if (request.stream_options or {}).get("include_usage"):
        events.append(head | {"choices": [], "usage": counts})
    return events


def _token(field: ClosedList, answer: Distribution, request: ChatRequest) -> dict[str, Any]:
    """The chosen label in the place of a token, with the most probable other ones."""
    ranked = sorted(zip(field.labels, answer.probabilities, strict=True), key=lambda pair: -pair[1])
    tokens = [  # OpenAI's log-probability of what is impossible is -9999
        {"token": label, "logprob": log(p) if p > 0 else -9999.0, "bytes": list(label.encode())} for label, p in ranked
    ]
    return tokens[0] | {"top_logprobs": tokens[: request.top_logprobs or 0]}
