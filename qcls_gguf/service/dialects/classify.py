"""`/v1/classify`, the service's own dialect: what `qcls-gguf run` prints, of a query or several."""

from dataclasses import fields
from functools import partial

from pydantic import Field, model_validator

from ...questions.asking import Usage
from ...score.result import Result
from ..dialect import LongTexts, Strict, Texts
from ..refusal import RefusedError

_FIELDS = tuple(field.name for field in fields(Result))


class ClassifyRequest(LongTexts, Strict):
    """What to label: `query`, or `queries`."""

    query: str | None = Field(default=None, description="one text")
    queries: list[str] | None = Field(default=None, description="several texts")
    prompts: tuple[str, ...] | None = Field(default=None, min_length=1, strict=False, description="names; none: all")

    @model_validator(mode="after")
    def _check(self) -> "ClassifyRequest":
        if (self.query is None) == (self.queries is None):
            raise ValueError("give either query or queries")
        return self


def _record(result: Result) -> dict[str, object]:
    """The fields of `Result.to_dict`, with objects that orjson serialises directly: several times faster."""
    return {name: getattr(result, name) for name in _FIELDS if name != "n_chars_cut" or result.n_chars_cut}


def ask(request: ClassifyRequest, _: object) -> Texts:
    """The texts of a request."""
    texts = partial(Texts, prompts=request.prompts, long=request.long)
    if (queries := request.queries) is None:
        return texts(texts=[request.query or ""], param="query", answer=lambda results, _: _record(results[0]))

    def answer(results: list[Result | RefusedError], _: Usage) -> object:
        return {"answers": [
            {"query": query, "error": result.message} if isinstance(result, RefusedError) else _record(result)
            for query, result in zip(queries, results, strict=True)
        ]}  # fmt: skip

    return texts(texts=queries, param="queries", answer=answer, is_partial=True)
