"""`/classify` in vLLM's words: one prompt's labels for a text, or for several."""

from __future__ import annotations

from http import HTTPStatus

from ...questions.asking import Usage
from ...score.result import Result
from ..dialect import MODEL, Context, Lenient, Texts, token_counts
from ..refusal import RefusedError


class VllmRequest(Lenient):
    """vLLM's request; fields that are not named here are ignored."""

    model: str | None = None
    """which prompt: its name, or default/<prompt>"""
    input: str | list[str]
    """a text, or several"""


def ask(request: VllmRequest, context: Context) -> Texts:
    """The texts of a request. Raises RefusedError."""
    name = context.prompt(request.model, "model")
    texts = [request.input] if isinstance(request.input, str) else request.input

    def answer(results: list[Result], usage: Usage) -> object:
        return {
            "id": f"classify-{context.request_id}",
            "object": "list",
            "created": context.created,
            "model": request.model or f"{MODEL}/{name}",
            "data": [_label(index, result) for index, result in enumerate(results)],
            "usage": token_counts(usage.whole),
        }

    return Texts(texts=texts, param="input", answer=answer, prompts=(name,))


def _label(index: int, result: Result) -> dict[str, object]:
    (answer,) = result.results
    probabilities = [score.probability for score in answer.scores]
    sets = {} if answer.label_set is None else {"x_label_set": answer.label_set}
    return {"index": index, "label": answer.label, "probs": probabilities, "num_classes": len(probabilities), **sets}


def words(refusal: RefusedError) -> dict[str, object]:
    """The body of an error."""
    kind = HTTPStatus(refusal.status).phrase.replace(" ", "")
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.status}}
