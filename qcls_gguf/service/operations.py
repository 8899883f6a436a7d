"""Routes for operations: is it alive, is it ready, what does it count, which models, read it anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from ..config.words import shown
from ..version import __version__
from .backend import Backend
from .dialect import MODEL
from .lifecycle import Lifecycle
from .metrics import CONTENT_TYPE, Metrics
from .openapi import Operation
from .refusal import RefusedError

Endpoint = Callable[[Request], Awaitable[Response]]
HEALTH, READY, MODELS = "/health", "/ready", "/v1/models"


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


def operations(lifecycle: Lifecycle, metrics: Metrics, *, may_reload: bool) -> list[tuple[Operation, Endpoint]]:
    """The routes with what answers them; may_reload: whether clients are known by their keys."""

    async def health(_: Request) -> Response:
        return _json(Health(status=lifecycle.state.value, version=__version__))

    async def ready(request: Request) -> Response:
        _ = lifecycle.backend
        return await health(request)

    async def counts(_: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def models(_: Request) -> Response:
        return _json(_models(lifecycle.backend))

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        known = {each.id: each for each in _models(lifecycle.backend).data}
        if name not in known:
            what = f"there is no model {shown(name)}: this service has {', '.join(map(shown, known))}"
            raise RefusedError(404, "unknown prompt", what)
        return _json(known[name])

    async def reload(_: Request) -> Response:
        if not may_reload:
            what = "only a client with an API key may reload, and this service has none: give it one, or send SIGHUP"
            raise RefusedError(403, "key", what)
        backend = await lifecycle.reload()
        file = backend.classifier.model.path
        return _json(Reloaded(status="reloaded", prompts=list(backend.prompts), model=file))

    rows: list[tuple[str, str, str, type[BaseModel] | None, tuple[int, ...], Endpoint]] = [
        ("get", HEALTH, "Whether the process is alive", Health, (), health),
        ("get", READY, "Whether requests are answered", Health, (503,), ready),
        ("get", "/metrics", "Counts for Prometheus", None, (401,), counts),
        ("get", MODELS, "The configured prompts, as models", Models, (401, 503), models),
        ("get", f"{MODELS}/{{name}}", "A prompt, as a model", OpenAIModel, (401, 404, 503), model),
        ("post", "/admin/reload", "Read the configuration anew", Reloaded, (401, 403, 409, 422, 503), reload),
    ]
    return [
        (Operation(path=path, method=method, summary=summary, answer=(answer,) if answer else (), errors=errors,
                   kind="application/json" if answer else "text/plain"), endpoint)
        for method, path, summary, answer, errors, endpoint in rows
    ]  # fmt: skip


def _json(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


def _models(backend: Backend) -> Models:
    info = backend.classifier.model
    about = f"{info.description}, {info.quantization}"
    named = {MODEL: f"all prompts by {about}"} | {
        f"{MODEL}/{name}": f"one of {len(prompt.labels)} labels by {about}" for name, prompt in backend.prompts.items()
    }
    created = backend.created
    date = datetime.fromtimestamp(created, UTC).date().isoformat()
    return Models(
        object="list",
        data=[OpenAIModel(id=name, object="model", created=created, owned_by="qcls-gguf") for name in named],
        models=[TypeSafeModel(name=name, description=what, release_date=date) for name, what in named.items()],
    )
