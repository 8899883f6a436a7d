"""`/v1/classify`, the service's own route: what `qcls-gguf run` prints, for a query, several, or a stream of lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import StreamingResponse

from ..config.scoring import Scoring
from ..errors import QclsError
from ..report.run_record import RunRecord
from ..score.result import Result
from .bodies import LINES, content_type, parse, read_lines, read_model
from .exchange import Exchange
from .openapi import gives, takes
from .protocol import Protocol
from .refusal import ClientGoneError, RefusedError, openai_words, refusal_of
from .served import Served
from .service import Answer, Service, in_order
from .waiting import answered
from .writing import answer, json_bytes, json_response

ROUTE = "/v1/classify"
_NDJSON = LINES[0]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    prompts: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    """names of the prompts to ask; none: all"""
    scoring: Scoring | None = None
    """another scoring for all of them, as of `qcls-gguf run`; none: what the configuration says"""
    audit: bool = False
    """whether exact scores are added; costs the model's head for every request meanwhile"""


class ClassifyRequest(_Asked):
    """What to label: `query`, or `queries`."""

    query: str | None = None
    """one text"""
    queries: list[str] | None = None
    """several texts"""

    @model_validator(mode="after")
    def _check(self) -> ClassifyRequest:
        if (self.query is None) == (self.queries is None):
            raise ValueError("give either query or queries")
        return self


class ClassifyLine(_Asked):
    """A line of a stream."""

    query: str
    """one text"""


class FailedQuery(BaseModel):
    """A query of several that could not be labelled."""

    query: str
    error: str
    """why"""


class ClassifyAnswers(BaseModel):
    """The answers to `queries`, in their order."""

    answers: list[RunRecord | FailedQuery]


def add_classify(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post(
        ROUTE,
        summary="Label a query by the configured prompts",
        openapi_extra=takes(ClassifyRequest, _NDJSON),
        responses=gives((RunRecord, ClassifyAnswers), "the answer to `query`, or to `queries`; lines where lines came",
                        400, 401, 404, 408, 413, 415, 422, 500, 503, 504),
        response_class=Response,
    )  # fmt: skip
    async def classify(request: Request) -> Response:
        exchange = service.exchange(request, ROUTE)
        if content_type(request.scope) in LINES:
            service.serving.check_ready()
            return _Lines(_stream(service, request, exchange), media_type=_NDJSON)
        asked = await read_model(ClassifyRequest, request.scope, request.receive, service.limits)
        served = service.serving.served
        if asked.query is not None:
            result = await answered(_one(service, served, exchange, asked, asked.query), request.scope)
            return json_response(answer(result, served.model_json))
        assert asked.queries is not None
        if len(asked.queries) > (most := service.limits.queries):
            raise RefusedError(
                413, "too large", f"{len(asked.queries)} queries, at most {most} are allowed", param="queries"
            )
        answers = await answered(_several(service, served, exchange, asked, asked.queries), request.scope)
        pairs = zip(asked.queries, answers, strict=True)
        return json_response({"answers": [_plain(query, each, served) for query, each in pairs]})


async def _one(service: Service, served: Served, exchange: Exchange, asked: _Asked, query: str) -> Result:
    with service.admitted(served, [query]), served:
        async with served.some_prompts(asked.prompts, asked.scoring, audit=asked.audit) as loaded:
            return await service.ask(exchange, served, loaded, query, param="query", deadline_s=exchange.seconds_left)


async def _several(
    service: Service, served: Served, exchange: Exchange, asked: _Asked, queries: list[str]
) -> list[Answer]:
    with service.admitted(served, queries), served:
        async with served.some_prompts(asked.prompts, asked.scoring, audit=asked.audit) as loaded:
            return await service.ask_all(exchange, served, loaded, queries)


def _plain(query: str, each: Answer, served: Served) -> dict[str, Any]:
    return (
        {"query": query, "error": each.message} if isinstance(each, RefusedError) else answer(each, served.model_json)
    )


# --- lines -----------------------------------------------------------------------------------------------------------


class _Lines(StreamingResponse):
    """Lines as they are ready. Unlike its base it does not read from the client, whose lines are still coming."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.stream_response(send)


async def _stream(service: Service, request: Request, exchange: Exchange) -> AsyncIterator[bytes]:
    """A line for each line that comes, in their order; what is wrong with one does not end the others."""

    served, connection = service.serving.served, Protocol.of(request.scope)

    async def each() -> AsyncIterator[Coroutine[Any, Any, dict[str, Any]]]:
        async for number, line in read_lines(request.scope, request.receive, service.limits):
            if connection is not None and connection.is_lost:  # many lines may have come before
                raise ClientGoneError
            yield _line(service, served, exchange, number, line)

    try:
        with service.admitted(served, []), served:
            async for each_answer in in_order(each(), served.window):
                yield json_bytes(each_answer) + b"\n"
    except RefusedError as refusal:  # of the stream itself: the answer has begun, so its last line says it
        exchange.reason = refusal.reason
        yield json_bytes(openai_words(refusal)) + b"\n"
    except ClientGoneError:
        service.metrics.gone()


async def _line(service: Service, served: Served, exchange: Exchange, number: int, line: bytes) -> dict[str, Any]:
    asked: ClassifyLine | None = None
    try:
        asked = parse(ClassifyLine, line)
        async with served.some_prompts(asked.prompts, asked.scoring, audit=asked.audit) as loaded:
            deadline_s = exchange.timeout_ms / 1e3
            result = await service.ask(exchange, served, loaded, asked.query, param="query", deadline_s=deadline_s)
            return answer(result, served.model_json)
    except QclsError as e:
        refusal = refusal_of(e)
    except RefusedError as e:
        refusal = e
    return {"line": number} | ({} if asked is None else {"query": asked.query}) | dict(openai_words(refusal))
