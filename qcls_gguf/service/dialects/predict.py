"""`/predict` as text-embeddings-inference and Hugging Face have it: one prompt's labels, or labels of the request."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ...config.schema import LongQueries
from ...data.labelled import label_text
from ...questions.asking import Usage
from ...questions.question import Distribution, Question, TextQuestion, UnknownPromptError
from ...score.result import Result
from ..dialect import MODEL, LongTexts, Questions, Texts
from ..exchange import Exchange
from ..refusal import RefusedError, invalid

_LABELS, _HYPOTHESIS = "parameters.candidate_labels", "parameters.hypothesis_template"
_SLOT = "{}"


def _labels(given: object) -> object:
    """Labels as Hugging Face's clients give them: also one text with commas between them, or numbers."""
    labels = given.split(",") if isinstance(given, str) else given
    if not isinstance(labels, list):
        return given
    texts = [label_text(label) if isinstance(label, int | float) else label for label in labels]
    return [text.strip() for text in texts if text.strip()] if isinstance(given, str) else texts


class PredictParameters(LongTexts):
    """Hugging Face's parameters; others are ignored."""

    top_k: int | None = Field(default=None, ge=1, description="how many labels to answer with; none: all")
    candidate_labels: Annotated[list[str] | None, BeforeValidator(_labels, json_schema_input_type=Any)] = Field(
        default=None, min_length=1, description="replace a prompt's labels; in one text, with commas between them"
    )
    hypothesis_template: str | None = Field(default=None, description="what a candidate means, with {} in its place")
    function_to_apply: Literal["softmax"] | None = None
    multi_label: bool = Field(default=False, description="whether candidates are judged one by one")
    multi_class: bool = Field(default=False, description="the same, as older clients name it")


class PredictRequest(LongTexts):
    """A text, `[[text], …]` or a list of texts; other fields are ignored."""

    inputs: str | list[str | list[str]] = Field(description="two texts are a pair, refused without candidate_labels")
    candidate_labels: Any = Field(default=None, description="belongs in parameters")
    raw_scores: bool = Field(default=False, description="whether scores are raw, not probabilities")
    model: str | None = Field(default=None, description="which prompt: its name, or default/<prompt>")
    parameters: PredictParameters | None = Field(default=None, description="with them a text is answered by two lists")


def ask(request: PredictRequest, exchange: Exchange) -> Texts | Questions:
    """The texts of a request, or questions with its own labels. Raises RefusedError."""
    is_single, parameters = isinstance(request.inputs, str), request.parameters or PredictParameters()
    texts = _texts(request.inputs, may_pair=parameters.candidate_labels is None)
    long = request.long or parameters.long
    if request.candidate_labels is not None:
        raise invalid("candidate_labels", f"stands beside parameters, where it is not read: send {_LABELS}")
    if parameters.candidate_labels is not None:
        return _zero_shot(texts, parameters, parameters.candidate_labels, long, is_single=is_single)
    if parameters.hypothesis_template is not None or parameters.multi_label or parameters.multi_class:
        raise invalid(_LABELS, "is missing, and a hypothesis_template or multi_label is for these")
    prompt = _prompt(request, exchange)

    def answer(results: list[Result], _: Usage) -> object:
        field = "score" if request.raw_scores else "probability"
        labelled = [[(label.label, getattr(label, field)) for label in result.results[0].scores] for result in results]
        ranked = [_ranked(labels, parameters.top_k) for labels in labelled]
        # Clients of Hugging Face send parameters, empty ones too, and want a list of lists from a classification.
        return ranked[0] if is_single and request.parameters is None else ranked

    return Texts(texts=texts, param="inputs", answer=answer, prompts=(prompt,), long=long)


def _prompt(request: PredictRequest, exchange: Exchange) -> str:
    """The prompt that a request names, or the only one. Raises RefusedError."""
    prompts = exchange.backend.prompts
    named = exchange.query_params.get("prompt") if exchange.scope["query_string"] else None
    param, named = ("model", request.model) if named is None else ("prompt", named)
    if named not in (None, MODEL):
        name = named.removeprefix(f"{MODEL}/")
        if name not in prompts:
            raise UnknownPromptError(name, prompts, param)
        return name
    first, *others = prompts
    if others:
        what = f"{len(prompts)} prompts are configured: name one, such as {MODEL}/{first}; or by ?prompt=NAME"
        raise RefusedError(422, "invalid", what, param=param)
    return first


def _texts(inputs: str | list[str | list[str]], *, may_pair: bool) -> list[str]:
    """The texts. Raises RefusedError for pairs, and for no text at all."""
    if isinstance(inputs, str):
        return [inputs]
    if may_pair and len(inputs) == 2 and all(isinstance(text, str) for text in inputs):
        what = "a list of two texts is a pair to text-embeddings-inference, and is not labelled: send "
        raise invalid("inputs", f'{what}[["one"], ["two"]] for two texts')
    if not inputs:
        raise RefusedError(400, "invalid", "inputs is empty: send at least one text", param="inputs")
    texts = [[text] if isinstance(text, str) else text for text in inputs]
    for index, text in enumerate(texts):
        if len(text) != 1:
            raise invalid(f"inputs[{index}]", f"{len(text)} texts where one belongs")
    return [text for (text,) in texts]


def _zero_shot(
    texts: list[str], parameters: PredictParameters, labels: list[str], long: LongQueries | None, *, is_single: bool
) -> Questions:
    """One question with all labels as options, or a predicate for every label. Raises RefusedError."""
    hypothesis = parameters.hypothesis_template
    if hypothesis is not None and (n := hypothesis.count(_SLOT)) != 1:
        raise invalid(_HYPOTHESIS, f"has {n} {_SLOT} for the label: it needs one")
    is_multi = parameters.multi_label or parameters.multi_class
    if is_multi:
        template = hypothesis or "Is the text about {}?"
        asked = [Question.predicate(template.replace(_SLOT, label)) for label in labels]
    else:
        options = [(label, hypothesis and hypothesis.replace(_SLOT, label)) for label in labels]
        asked = [Question.of("choice", "", options)]

    def answer(answers: list[Distribution], _: Usage) -> object:
        ranked = []
        for first in range(0, len(answers), len(asked)):
            of_text = answers[first : first + len(asked)]
            yes = [predicate.probabilities[0] for predicate in of_text]
            probabilities = yes if is_multi else of_text[0].probabilities
            ranked.append(_ranked(zip(labels, probabilities, strict=True), parameters.top_k))
        return ranked[0] if is_single else ranked

    questions = [TextQuestion(question, text, _LABELS, long) for text in texts for question in asked]
    return Questions(questions=questions, answer=answer)


def _ranked(labelled: Iterable[tuple[str, float]], top_k: int | None) -> list[dict[str, object]]:
    best = sorted(labelled, key=lambda pair: pair[1], reverse=True)[:top_k]
    return [{"label": label, "score": score} for label, score in best]


def words(refusal: RefusedError) -> dict[str, object]:
    """The body of an error."""
    kinds = {400: "Validation", 413: "Validation", 422: "Validation", 503: "Overloaded"}
    return {"error": refusal.message, "error_type": kinds.get(refusal.status, "Backend")}
