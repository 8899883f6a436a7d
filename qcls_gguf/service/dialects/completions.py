"""`/v1/completions` as OpenAI has it, for clients that read the log-probabilities of given texts (`echo`, `logprobs`).

Nothing is generated but the one most probable token that clients of this kind ask for and drop.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import Annotated, Any

from pydantic import Field

from ...config.words import shown
from ...questions.asking import Usage
from ..dialect import Completions, Context, Lenient, ScoredToken, token_counts
from ..refusal import RefusedError

_MAY = {"max_tokens": (0, 1, None), "n": (1, None), "best_of": (1, None), "stream": (False, None), "suffix": (None, "")}
"""be the values of fields that let other services generate text"""


class CompletionsRequest(Lenient, strict=True):
    """OpenAI's request; fields that are not named here are ignored."""

    prompt: str | list[str] | list[int] | list[list[int]]
    """texts, or token ids"""
    model: str = "default"
    max_tokens: Annotated[int, Field(ge=0)] | None = 16
    """0 or null, or 1"""
    echo: bool | None = False
    """whether the answer begins with the prompt, with its log-probabilities"""
    logprobs: Annotated[int, Field(ge=0)] | None = None
    """each token has its own log-probability and that of the most probable one, whatever the number"""
    n: int | None = 1
    best_of: int | None = 1
    stream: bool | None = False
    suffix: str | None = None


def ask(request: CompletionsRequest, context: Context) -> Completions:
    """The texts of a request. Raises RefusedError (400) for what would have to be generated."""
    for name, only in _MAY.items():
        if (given := getattr(request, name)) not in only:
            what = f"{name}: {shown(given)}: no text is generated here, so it is {only[0]!r} or {only[1]!r}"
            raise RefusedError(400, "invalid", f"{what}; log-probabilities come by echo and logprobs", param=name)
    n_next = request.max_tokens or 0

    def answer(found: list[list[ScoredToken]], _: Usage) -> object:
        n_prompt, n_more = sum(len(tokens) - 1 for tokens in found), n_next * len(found)
        return {
            "id": f"cmpl-{context.request_id}",
            "object": "text_completion",
            "created": context.created,
            "model": request.model,
            "choices": [_choice(index, tokens, request) for index, tokens in enumerate(found)],
            "usage": token_counts(n_prompt, n_more),
        }

    from_start = bool(request.echo) and request.logprobs is not None
    prompts: Any = request.prompt
    if prompts == []:
        raise RefusedError(400, "invalid", "prompt: an empty list: send at least one prompt", param="prompt")
    if isinstance(prompts, str) or isinstance(prompts[0], int):
        prompts = [prompts]
    return Completions(prompts=prompts, from_start=from_start, answer=answer)


def _choice(index: int, tokens: list[ScoredToken], request: CompletionsRequest) -> dict[str, Any]:
    """The prompt's tokens if they are echoed, then the most probable next one if it is asked for."""
    shown = [*(tokens[:-1] if request.echo else []), *tokens[-1:] * (request.max_tokens or 0)]
    decoder, text, offsets = getincrementaldecoder("utf-8")("replace"), "", []
    for each in shown:
        offsets.append(len(text))
        text += decoder.decode(each.piece)
    logprobs = {
        "tokens": [_word(each.piece) for each in shown],
        "token_logprobs": [each.log_probability for each in shown],
        "top_logprobs": [_top(each) for each in shown],
        "text_offset": offsets,
    }
    return {
        "index": index,
        "text": text + decoder.decode(b"", final=True),
        "finish_reason": "length",
        "logprobs": None if request.logprobs is None else logprobs,
    }


def _top(token: ScoredToken) -> dict[str, float] | None:
    """The log-probabilities of a token and of the most probable one in its place; None where they are not known."""
    if token.log_probability is None:
        return None
    # of two tokens with one text, the more probable one is returned
    return {_word(token.piece): token.log_probability, _word(token.best_piece): token.best_log_probability}


def _word(piece: bytes) -> str:
    """A token as OpenAI writes it: `bytes:` and escapes for one that begins or ends within a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return f"bytes:{piece.decode('ascii', 'backslashreplace')}"
