"""All routes together, behind the door."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from ..report.run_record import RunRecord
from . import classify_api, decisions_api, operations_api, predict_api, sglang_api, systemone_api
from .bodies import Receive, Scope
from .door import GONE, App, Door, Send
from .exchange import Exchange
from .metrics import Metrics
from .openapi import ErrorAnswer, TeiError, TypeSafeError, VllmError, describe
from .quick import QuickAnswers
from .refusal import ClientGoneError, RefusedError, openai_words, tei_words, typesafe_words, vllm_words
from .service import Service
from .serving import Serving
from .settings import ServiceSettings
from .writing import JsonResponse, json_bytes

OPEN_PATHS = (operations_api.PAGE, operations_api.HEALTH, operations_api.READY, operations_api.DOCS, "/openapi.json")
"""Paths that need no key: they tell nothing that the project's pages do not."""
WORDS = {
    predict_api.PREDICT: tei_words,
    predict_api.CLASSIFY: vllm_words,
    systemone_api.ROUTE: typesafe_words,
}
BODIES = (
    classify_api.ClassifyRequest,
    classify_api.ClassifyLine,
    predict_api.PredictRequest,
    predict_api.VllmRequest,
    decisions_api.DecisionsRequest,
    sglang_api.SglangRequest,
    systemone_api.SystemOneRequest,
)
ANSWERS = (
    RunRecord, classify_api.ClassifyAnswers, predict_api.Predictions, predict_api.VllmAnswer,
    operations_api.Health, operations_api.Models, operations_api.Reloaded, ErrorAnswer,
    TeiError, VllmError, TypeSafeError,
)  # fmt: skip


def build_app(serving: Serving, settings: ServiceSettings) -> App:
    """The ASGI application of a service."""
    metrics = Metrics(lambda: operations_api.at_scrape(serving))
    service = Service(serving, metrics, settings)
    app = FastAPI(title="qcls-gguf", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    app.router.redirect_slashes = False
    classify_api.add_classify(app, service)
    predict_api.add_predict(app, service)
    decisions_api.add_decisions(app, service)
    systemone_api.add_system_one(app, service)
    operations_api.add_operations(app, service)
    describe(app, BODIES, ANSWERS)

    for kind in (RefusedError, HTTPException):
        app.add_exception_handler(kind, _handle)
    logs = settings.log_format != "none"
    door = Door(
        _Direct(app, metrics), metrics, keys=settings.api_keys, open_paths=OPEN_PATHS, refused=_response, logs=logs
    )
    if not door.traces:
        door.quick = QuickAnswers(service, door)
    if settings.cors_origins:
        return CORSMiddleware(
            door, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["x-request-id", "server-timing", "retry-after", "retry-after-ms"],
        )  # fmt: skip
    return door


class _Direct:
    """An application, with a short way to its routes that take a body, which are asked most.

    The framework's own way to them costs as much time as all else that the service does for a request.
    """

    def __init__(self, app: FastAPI, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._endpoints = {
            route.path: route.endpoint
            for route in app.routes
            if isinstance(route, APIRoute) and route.methods == {"POST"}
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> JsonResponse | None:
        """For the door."""
        endpoint = self._endpoints.get(scope["path"]) if scope["method"] == "POST" else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return None
        try:
            response = await endpoint(Request(scope, receive))
        except RefusedError as refusal:
            response = _response(refusal, scope)
        except ClientGoneError:
            self._metrics.gone()
            response = Response(status_code=GONE)  # which nobody reads but the log
        if isinstance(response, JsonResponse):
            return response
        await response(scope, receive, send)
        return None


async def _handle(request: Request, error: Exception) -> Response:
    return _response(_refusal(error), request.scope)


def _response(refusal: RefusedError, scope: Scope) -> JsonResponse:
    """The refusal in the words of the path's API."""
    Exchange.of(scope).reason = refusal.reason
    words = WORDS.get(scope["path"], openai_words)
    headers = dict(refusal.headers)
    if refusal.status in (408, 413, 415):  # what is left of the body is not read
        headers["connection"] = "close"
    return JsonResponse(json_bytes(words(refusal)), refusal.status, headers)


def _refusal(error: Exception) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            what = (
                "there is no such path, and no path generates or embeds text: /v1/classify labels a text by the "
                "configured prompts, /v1/decisions by questions of the request; /docs lists the others"
            )
            return RefusedError(404, "unknown path", what)
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            return RefusedError(405, "method", f"this path takes {allowed}", allow=allowed)
        case status:
            return RefusedError(status, "invalid", str(error.detail))
