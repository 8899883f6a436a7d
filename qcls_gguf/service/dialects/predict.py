"""`/predict` as text-embeddings-inference and Hugging Face have it: one prompt's labels, or labels of the request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from ...config.schema import LongQueries
from ...questions.asking import Usage
from ...questions.question import Distribution, Question, TextQuestion
from ...score.result import Result
from ..dialect import Context, LongTexts, Questions, Texts
from ..refusal import RefusedError

Inputs = str | list[str | list[str]]
_LABELS, _HYPOTHESIS = "parameters.candidate_labels", "parameters.hypothesis_template"
_SLOT = "{}"
_USUAL_HYPOTHESIS = "Is the text about {}?"


class PredictParameters(LongTexts):
    """Hugging Face's parameters; others are ignored."""

    top_k: Annotated[int, Field(ge=1)] | None = None
    """how many labels to answer with, the most probable first; none: all"""
    candidate_labels: Annotated[list[str], Field(min_length=1)] | None = None
    """labels to choose from instead of a configured prompt's"""
    hypothesis_template: str | None = None
    """what a label means, with {} in its place; beside candidate_labels"""
    multi_label: bool = False
    """whether each of candidate_labels is judged by itself, so that they do not add up to 1"""


class PredictRequest(LongTexts):
    """A text, `[[text], …]` or a list of texts; other fields are ignored."""

    inputs: Inputs
    """a list of exactly two texts is a pair to text-embeddings-inference, and is refused without candidate_labels"""
    raw_scores: bool = False
    """whether the answer has raw scores instead of probabilities"""
    model: str | None = None
    """which prompt: its name, or default/<prompt>"""
    parameters: PredictParameters | None = None
    """with them, unless they have candidate_labels, a single text is answered by a list of one list of labels, too"""


def ask(request: PredictRequest, context: Context) -> Texts | Questions:
    """The texts of a request, or questions with its own labels. Raises RefusedError."""
    is_single, parameters = isinstance(request.inputs, str), request.parameters or PredictParameters()
    texts = _texts(request.inputs, may_pair=parameters.candidate_labels is None)
    long = request.long or parameters.long
    if parameters.candidate_labels is not None:
        return _zero_shot(texts, parameters, parameters.candidate_labels, long, is_single=is_single)
    named = context.parameters.get("prompt")
    name = context.prompt(named, "prompt") if named is not None else context.prompt(request.model, "model")

    def answer(results: list[Result], _: Usage) -> object:
        field = "score" if request.raw_scores else "probability"
        found = [
            _ranked(((each.label, getattr(each, field)) for each in result.results[0].scores), parameters.top_k)
            for result in results
        ]
        # Clients of Hugging Face send parameters, empty ones too, and want a list of lists from a classification.
        return found[0] if is_single and request.parameters is None else found

    return Texts(texts=texts, param="inputs", answer=answer, prompts=(name,), long=long)


def _texts(inputs: Inputs, *, may_pair: bool) -> list[str]:
    """The texts. Raises RefusedError for pairs, and for no text at all."""
    if isinstance(inputs, str):
        return [inputs]
    if may_pair and len(inputs) == 2 and all(isinstance(each, str) for each in inputs):
        what = "a list of two texts is a pair to text-embeddings-inference, and pairs are not labelled: "
        raise RefusedError(422, "invalid", f'{what}send [["one"], ["two"]] for two texts', param="inputs")
    for index, each in enumerate(inputs):
        if isinstance(each, list) and len(each) != 1:
            raise RefusedError(422, "invalid", f"inputs[{index}]: {len(each)} texts where one belongs", param="inputs")
    if not inputs:
        raise RefusedError(400, "invalid", "inputs is empty: send at least one text", param="inputs")
    return [each if isinstance(each, str) else each[0] for each in inputs]


def _zero_shot(
    texts: list[str], parameters: PredictParameters, labels: list[str], long: LongQueries | None, *, is_single: bool
) -> Questions:
    """One question with all labels as options, or one for each that stands by itself. Raises RefusedError."""
    hypothesis = parameters.hypothesis_template
    if hypothesis is not None and (n := hypothesis.count(_SLOT)) != 1:
        what = f"{_HYPOTHESIS}: has {n} {_SLOT} for the label: it needs one"
        raise RefusedError(422, "invalid", what, param=_HYPOTHESIS)
    if parameters.multi_label:
        template = hypothesis or _USUAL_HYPOTHESIS
        asked = [Question.predicate(template.replace(_SLOT, label)) for label in labels]
    else:
        options = [(label, hypothesis and hypothesis.replace(_SLOT, label)) for label in labels]
        asked = [Question.of("choice", "", options)]

    def answer(found: list[Distribution], _: Usage) -> object:
        n = len(asked)
        of_texts = [found[at : at + n] for at in range(0, len(found), n)]
        ranked = []
        for each in of_texts:
            probabilities = [one.probabilities[0] for one in each] if parameters.multi_label else each[0].probabilities
            ranked.append(_ranked(zip(labels, probabilities, strict=True), parameters.top_k))
        return ranked[0] if is_single else ranked

    return Questions(
        questions=[TextQuestion(each, text, _LABELS, long) for text in texts for each in asked], answer=answer
    )


def _ranked(labelled: Iterable[tuple[str, float]], top_k: int | None) -> list[dict[str, object]]:
    best = sorted(labelled, key=lambda each: each[1], reverse=True)[:top_k]
    return [{"label": label, "score": score} for label, score in best]


def words(refusal: RefusedError) -> dict[str, object]:
    """The body of an error."""
    kind = {400: "Validation", 413: "Validation", 422: "Validation", 503: "Overloaded"}.get(refusal.status, "Backend")
    return {"error": refusal.message, "error_type": kind}
