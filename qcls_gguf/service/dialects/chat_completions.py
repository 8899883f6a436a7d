"""`/v1/chat/completions` as OpenAI has it, for requests whose answer is one of a closed list.

The list is that of a JSON schema (`response_format`, or a function that has to be called) each of whose fields has one
of some values, or vLLM's `guided_choice` and `structured_outputs.choice`. A field is a question; all are answered
together, and nothing is generated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import log
from typing import Any

from ...questions.distribution import Distribution
from ...questions.question import Question
from ..dialect import Context, Dialect, Events, Questions, TextQuestion, Usage, no_images
from .chat_request import ChatMessage, ChatRequest, Wanted, wanted_of
from .closed_lists import ClosedList

_INSTRUCTING = ("system", "developer")
_LEAST_LOG = -9999.0
"""OpenAI's log-probability of what is impossible"""


def _ask(request: ChatRequest, context: Context) -> Questions:
    wanted = wanted_of(request)
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
            options = [(label, None) for label in field.labels]
            question = Question.of("choice", whole, options, audit=request.audit)
            yield TextQuestion(question, text, ".".join([wanted.param, *names]))

    def answer(found: list[Distribution], usage: Usage) -> object:
        return _answer(request, context, wanted, found, usage)

    return Questions(questions=questions(), answer=answer)


def _text(message: ChatMessage, param: str) -> str:
    """Its texts one below the other. Raises RefusedError for images."""
    if not isinstance(message.content, list):
        return message.content or ""
    if any(part.type != "text" for part in message.content):
        raise no_images(param)
    return "\n".join(part.text for part in message.content)


def _answer(request: ChatRequest, context: Context, wanted: Wanted, found: list[Distribution], usage: Usage) -> object:
    value: Any = {}
    for (names, field), each in zip(wanted.lists.items(), found, strict=True):
        if not names:
            value = field.values[each.best]
            break
        inner = value
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
        inner[names[-1]] = field.values[each.best]
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
    counts = {
        "prompt_tokens": usage.whole,
        "completion_tokens": 0,
        "total_tokens": usage.whole,
        "prompt_tokens_details": {"cached_tokens": max(round(usage.cached) - usage.stored, 0)},
    }
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
    pairs = zip(field.labels, found.probabilities, strict=True)
    ranked = sorted(pairs, key=lambda pair: -pair[1])
    tokens = [
        {"token": label, "logprob": log(each) if each > 0 else _LEAST_LOG, "bytes": list(label.encode())}
        for label, each in ranked
    ]
    return tokens[0] | {"top_logprobs": tokens[: request.top_logprobs or 0]}


CHAT_COMPLETIONS = Dialect(
    path="/v1/chat/completions",
    summary="Choose one of given answers, as OpenAI's chat completions with a schema do",
    request=ChatRequest,
    ask=_ask,
)
