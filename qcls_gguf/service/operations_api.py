"""Routes for whoever runs the service: is it alive, is it ready, what does it count, which models, read it anew."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client.core import Metric
from pydantic import BaseModel

from ..config.words import shown
from ..report.gpu import GpuState, gpu_state
from ..version import __version__
from .description_page import description_page
from .exchange import Exchange
from .metrics import CONTENT_TYPE, counter, gauge
from .openapi import gives
from .refusal import RefusedError
from .served import Served
from .service import Service
from .serving import Serving
from .writing import json_response

PAGE = "/"
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""for the page: nothing comes from elsewhere, and no other page shows it within itself"""
DOCS, HEALTH, READY, METRICS, MODELS, RELOAD = "/docs", "/health", "/ready", "/metrics", "/v1/models", "/admin/reload"
ONE_MODEL = f"{MODELS}/{{name:path}}"
MODEL = "default"
"""what the models of `/v1/models` are named for: all configured prompts; one of them is `default/<prompt>`"""


class Health(BaseModel):
    """The state of the service."""

    status: str
    """loading, ready or draining"""
    version: str
    """of qcls-gguf"""


class OpenAIModel(BaseModel):
    """A model in OpenAI's words."""

    id: str
    """`default`, or `default/<prompt>`"""
    object: str
    created: int
    owned_by: str


class TypeSafeModel(BaseModel):
    """A model in TypeSafe's words."""

    name: str
    description: str
    release_date: str


class Models(BaseModel):
    """The configured prompts as models, in OpenAI's words (`data`) and in TypeSafe's (`models`)."""

    object: str
    data: list[OpenAIModel]
    models: list[TypeSafeModel]


class Reloaded(BaseModel):
    """What answers after a reload."""

    status: str
    prompts: list[str]
    """names of the configured prompts"""
    model: str
    """the model file"""


def add_operations(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    serving = service.serving

    page = (Path(__file__).parent / "page.html").read_bytes()

    @app.get(PAGE, include_in_schema=False)
    async def index(request: Request) -> Response:
        Exchange.of(request.scope).route = PAGE
        return Response(page, headers={"content-type": "text/html; charset=utf-8", "content-security-policy": _POLICY})

    @app.get(DOCS, include_in_schema=False)
    async def description(request: Request) -> Response:
        Exchange.of(request.scope).route = DOCS
        headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": _POLICY}
        return Response(description_page(app.openapi()), headers=headers)

    @app.head(HEALTH, include_in_schema=False)
    @app.get(HEALTH, summary="Whether the process is alive", response_class=Response,
             responses=gives(Health, "it is"))  # fmt: skip
    async def health(request: Request) -> Response:
        Exchange.of(request.scope).route = HEALTH
        return json_response({"status": serving.state.value, "version": __version__})

    @app.head(READY, include_in_schema=False)
    @app.get(READY, summary="Whether requests are answered", response_class=Response,
             responses=gives(Health, "they are", 503))  # fmt: skip
    async def ready(request: Request) -> Response:
        exchange = Exchange.of(request.scope)
        exchange.route = READY
        serving.check_ready()
        return json_response({"status": serving.state.value, "version": __version__})

    @app.get(METRICS, summary="Counts for Prometheus", response_class=Response,
             responses=gives(None, "its text format", 401, kind="text/plain"))  # fmt: skip
    async def metrics(request: Request) -> Response:
        Exchange.of(request.scope).route = METRICS
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    @app.get(MODELS, summary="The configured prompts, as models", response_class=Response,
             responses=gives(Models, "each prompt, and all of them", 401, 503))  # fmt: skip
    async def models(request: Request) -> Response:
        Exchange.of(request.scope).route = MODELS
        return json_response(_models(serving.served))

    @app.get(ONE_MODEL, summary="A configured prompt, as a model", response_class=Response,
             responses=gives(OpenAIModel, "it is there", 401, 404, 503))  # fmt: skip
    async def model(request: Request, name: str) -> Response:
        Exchange.of(request.scope).route = ONE_MODEL
        known = {each["id"]: each for each in _models(serving.served)["data"]}
        if name not in known:
            what = f"there is no model {shown(name)}: this service has {', '.join(map(shown, known))}"
            raise RefusedError(404, "unknown prompt", what)
        return json_response(known[name])

    @app.post(RELOAD, summary="Read the configuration anew", response_class=Response,
              responses=gives(Reloaded, "it answers now", 401, 403, 409, 422, 503))  # fmt: skip
    async def reload(request: Request) -> Response:
        Exchange.of(request.scope).route = RELOAD
        if not service.settings.api_keys:
            what = "only whoever has an API key may reload, and this service has none: give it one, or send SIGHUP"
            raise RefusedError(403, "key", what)
        served = await serving.reload()
        return json_response(
            {"status": "reloaded", "prompts": list(served.prompts), "model": served.classifier.model.path}
        )


def _models(served: Served) -> dict[str, Any]:
    info = served.classifier.model
    about = f"{info.description}, {info.quantization}"
    named = {MODEL: f"all prompts by {about}"} | {
        f"{MODEL}/{name}": f"one of {len(prompt.labels)} labels by {about}" for name, prompt in served.prompts.items()
    }
    date = datetime.fromtimestamp(served.created, UTC).date().isoformat()
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": served.created, "owned_by": "qcls-gguf"} for name in named],
        "models": [{"name": name, "description": what, "release_date": date} for name, what in named.items()],
    }


def at_scrape(serving: Serving) -> Iterator[Metric]:
    """What is read when the metrics are asked for."""
    admission = serving.admission
    yield gauge("qcls_ready", "1 while requests are answered.", float(serving.state.value == "ready"))
    yield gauge("qcls_admitted_requests", "Requests in the service.", admission.n_requests)
    yield gauge("qcls_admitted_tokens", "Tokens that they would feed, estimated.", admission.n_tokens)
    wait_s = admission.wait_ms(loaded.classifier.turn_ms if (loaded := serving.loaded) else 0.0) / 1e3
    yield gauge("qcls_wait_seconds", "What a request that comes now would wait, estimated.", wait_s)
    yield counter("qcls_reloads", "Configurations that replaced another.", serving.n_reloads)
    if served := serving.loaded:
        yield from _engine(served)
    if (state := gpu_state()) is not None:
        yield from _gpu(state)


def _engine(served: Served) -> Iterator[Metric]:
    engine = served.classifier.engine
    cache, (n_reused, n_graphs) = engine.cache, engine.context.graphs()  # while another thread decodes
    yield gauge("qcls_prefix_cells", "Cells of the KV cache that prefixes occupy.", cache.n_cells)
    yield gauge("qcls_prefix_cells_most", "Cells that prefixes may occupy.", engine.n_prefix_cells)
    yield gauge("qcls_prefixes", "Prefixes in the cache.", len(cache))
    yield gauge("qcls_prefixes_free", "Sequences for more prefixes.", cache.n_free_holders)
    yield gauge("qcls_sets", "Prompt sets kept beside the configured one.", len(served.sets))
    yield counter("qcls_sets_found", "Requests whose prompt set was there.", served.sets.n_found)
    yield counter("qcls_sets_made", "Prompt sets made for requests.", served.sets.n_made)
    yield counter("qcls_sets_let_go", "Prompt sets let go.", served.sets.n_let_go)
    yield counter("qcls_prefixes_found", "Prefixes that were wanted and in the cache.", engine.n_found)
    yield counter("qcls_prefixes_stored", "Prefixes that were computed, long ones in pieces.", engine.n_stored)
    yield counter("qcls_prefixes_evicted", "Prefixes that made room for others.", engine.n_evicted)
    if engine.kept_queries:
        what = "Tokens that were not fed, as an earlier query begins with them."
        yield counter("qcls_kept_query_tokens", what, engine.kept_queries.n_found)
    if served.results.most:
        yield gauge("qcls_results", "Answers kept.", len(served.results))
        yield counter("qcls_results_found", "Queries whose answer was kept.", served.results.n_hits)
        yield counter("qcls_results_missed", "Queries whose answer was not kept.", served.results.n_misses)
    yield counter("qcls_graphs_reused", "Decodes that reused a graph.", n_reused)
    yield gauge("qcls_graphs", "Graphs kept.", n_graphs)


def _gpu(state: GpuState) -> Iterator[Metric]:
    if state.sm_mhz is not None:
        yield gauge("qcls_gpu_clock_mhz", "Clock of the GPU's multiprocessors.", state.sm_mhz)
    if state.power_w is not None:
        yield gauge("qcls_gpu_power_watts", "Power that the GPU draws.", state.power_w)
    if state.temperature_c is not None:
        yield gauge("qcls_gpu_temperature_celsius", "Temperature of the GPU.", state.temperature_c)
    if state.brakes is not None:
        yield gauge(
            "qcls_gpu_brakes", "What holds the GPU's clock down now, such as its power limit.", len(state.brakes)
        )
