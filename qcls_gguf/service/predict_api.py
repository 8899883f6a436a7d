"""`/predict` as text-embeddings-inference and Hugging Face have it, and vLLM's `/classify`: one prompt's labels."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ..score.result import Result
from .bodies import read_model
from .exchange import Exchange
from .openapi import TeiError, VllmError, gives, takes
from .operations_api import MODEL
from .refusal import RefusedError
from .served import Served, unknown_prompt
from .service import Service
from .waiting import answered
from .writing import json_response
from .zero_shot import Labelled, zero_shot

PREDICT, CLASSIFY = "/predict", "/classify"
_PROMPT = {"name": "prompt", "in": "query", "required": False, "schema": {"type": "string"}}
Inputs = str | list[str] | list[list[str]]


class PredictParameters(BaseModel):
    """Hugging Face's parameters; others are ignored."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    top_k: Annotated[int, Field(ge=1)] | None = None
    """how many labels to answer with, the most probable first; none: all"""
    candidate_labels: Annotated[list[str], Field(min_length=1)] | None = None
    """labels to choose from instead of a configured prompt's"""
    hypothesis_template: str | None = None
    """what a label means, with {} in its place; beside candidate_labels"""
    multi_label: bool = False
    """whether each of candidate_labels is judged by itself, so that they do not add up to 1"""


class PredictRequest(BaseModel):
    """A text, `[[text], …]` or a list of three texts and more; other fields are ignored."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    inputs: Inputs
    """a list of exactly two texts is a pair to text-embeddings-inference, and is refused"""
    raw_scores: bool = False
    """whether the answer has raw scores instead of probabilities"""
    model: str | None = None
    """which prompt: its name, or default/<prompt>"""
    parameters: PredictParameters | None = None
    """with them, unless they have candidate_labels, a single text is answered by a list of one list of labels, too"""


class PredictedLabel(BaseModel):
    """A label and how probable it is."""

    label: str
    score: float


class Predictions(BaseModel):
    """Of each text its labels, the most probable first; of a single text the list alone."""

    predictions: list[list[PredictedLabel]]


class VllmRequest(BaseModel):
    """vLLM's request; fields that are not named here are ignored."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: str | None = None
    """which prompt: its name, or default/<prompt>"""
    input: str | list[str]
    """a text, or several"""


class VllmLabel(BaseModel):
    index: int
    label: str
    probs: list[float]
    """in the order of the configuration"""
    num_classes: int


class VllmUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int


class VllmAnswer(BaseModel):
    """vLLM's answer."""

    id: str
    object: str
    created: int
    model: str
    data: list[VllmLabel]
    usage: VllmUsage


def add_predict(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    errors = (400, 401, 404, 408, 413, 415, 422, 500, 503, 504)

    @app.post(PREDICT, summary="Label texts by one prompt, as text-embeddings-inference and Hugging Face do",
              openapi_extra={**takes(PredictRequest), "parameters": [_PROMPT]},
              responses=gives(None, "labels, sorted", *errors, error=TeiError),
              response_class=Response)  # fmt: skip
    async def predict(request: Request) -> Response:
        prompt = request.query_params.get("prompt")
        exchange = service.exchange(request, PREDICT)
        asked = await read_model(PredictRequest, request.scope, request.receive, service.limits)
        served = service.serving.served
        texts, is_single = _texts(asked.inputs)
        parameters = asked.parameters or PredictParameters()
        if (labels := parameters.candidate_labels) is not None:
            how, many = parameters.hypothesis_template, parameters.multi_label
            work = zero_shot(service, served, exchange, texts, labels, how, multi_label=many)
            labelled = await answered(work, request.scope)
        else:
            name = _prompt(served, prompt, "prompt") if prompt is not None else _prompt(served, asked.model, "model")
            results = await answered(_ask(service, served, exchange, name, texts, "inputs"), request.scope)
            labelled = [_labelled(result, raw=asked.raw_scores) for result in results]
        found = [_sorted(each, parameters.top_k) for each in labelled]
        # Clients of Hugging Face send parameters, empty ones too, and want a list of lists from a classification.
        is_nested = asked.parameters is not None and labels is None
        return json_response(found[0] if is_single and not is_nested else found)

    @app.post(CLASSIFY, summary="Label texts by one prompt, as vLLM does", openapi_extra=takes(VllmRequest),
              responses=gives(VllmAnswer, "the labels", *errors, error=VllmError), response_class=Response)  # fmt: skip
    async def classify(request: Request) -> Response:
        exchange = service.exchange(request, CLASSIFY)
        asked = await read_model(VllmRequest, request.scope, request.receive, service.limits)
        served = service.serving.served
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        name = _prompt(served, asked.model, "model")
        results = await answered(_ask(service, served, exchange, name, texts, "input"), request.scope)
        labels = served.prompts[name].labels
        n_tokens = sum(_n_tokens(result) for result in results)
        return json_response({
            "id": f"classify-{exchange.request_id}",
            "object": "list",
            "created": served.created,
            "model": asked.model or f"{MODEL}/{name}",
            "data": [_vllm(index, result, labels) for index, result in enumerate(results)],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens, "completion_tokens": 0},
        })  # fmt: skip


def _prompt(served: Served, named: str | None, param: str) -> str:
    """The prompt that a request names, or the only one. Raises RefusedError."""
    names = served.prompts
    if named is not None and named != MODEL:
        name = named.removeprefix(f"{MODEL}/")
        if name not in names:
            raise unknown_prompt(name, names, param)
        return name
    if len(names) == 1:
        return next(iter(names))
    what = f"{len(names)} prompts are configured: name one, such as {MODEL}/{next(iter(names))}"
    raise RefusedError(422, "invalid", f"{what}; /predict also takes ?prompt=NAME", param=param)


def _texts(inputs: Inputs) -> tuple[list[str], bool]:
    """(the texts, whether there is one that stands alone). Raises RefusedError for pairs, and for no text at all."""
    if isinstance(inputs, str):
        return [inputs], True
    if len(inputs) == 2 and all(isinstance(each, str) for each in inputs):
        what = "a list of two texts is a pair to text-embeddings-inference, and pairs are not labelled: "
        raise RefusedError(422, "invalid", f'{what}send [["one"], ["two"]] for two texts', param="inputs")
    texts = []
    for index, each in enumerate(inputs):
        if isinstance(each, list) and len(each) != 1:
            raise RefusedError(422, "invalid", f"inputs[{index}]: {len(each)} texts where one belongs", param="inputs")
        texts.append(each if isinstance(each, str) else each[0])
    if not texts:
        raise RefusedError(400, "invalid", "inputs is empty: send at least one text", param="inputs")
    return texts, False


async def _ask(
    service: Service, served: Served, exchange: Exchange, name: str, texts: list[str], param: str
) -> list[Result]:
    """The answers of one prompt, all or none. Raises RefusedError."""
    if not texts:
        raise RefusedError(400, "invalid", f"{param} is empty: send at least one text", param=param)
    if len(texts) > (most := service.limits.queries):
        raise RefusedError(413, "too large", f"{param}: {len(texts)} texts, at most {most} are allowed", param=param)
    with service.admitted(served, texts), served:
        async with served.some_prompts((name,), None, audit=False) as loaded:
            answers = await service.ask_all(exchange, served, loaded, texts)
    results = []
    for index, each in enumerate(answers):
        if isinstance(each, RefusedError):
            each.param = param if len(texts) == 1 else f"{param}[{index}]"
            each.message = f"{each.param}: {each.message}"
            raise each
        results.append(each)
    return results


def _labelled(result: Result, *, raw: bool) -> Labelled:
    return [(each.label, each.score if raw else each.probability) for each in result.results[0].scores]


def _sorted(labelled: Labelled, top_k: int | None) -> list[dict[str, Any]]:
    found = sorted(labelled, key=lambda each: each[1], reverse=True)[:top_k]
    return [{"label": label, "score": score} for label, score in found]


def _vllm(index: int, result: Result, labels: tuple[str, ...]) -> dict[str, Any]:
    probabilities = [score.probability for score in result.results[0].scores]
    label = result.results[0].label
    return {"index": index, "label": label, "probs": probabilities, "num_classes": len(labels)}


def _n_tokens(result: Result) -> int:
    counts = result.counts
    return round((counts.n_tokens_new + counts.n_tokens_cached) / counts.n_queries)
