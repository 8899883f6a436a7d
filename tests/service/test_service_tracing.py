"""Spans, as OpenTelemetry's SDK collects them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from unittest.mock import AsyncMock

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from served import ROOT

from qcls_gguf import DecodeError, load_config
from qcls_gguf.service.app import build_app
from qcls_gguf.service.lifecycle import Lifecycle
from qcls_gguf.service.settings import ServiceSettings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:  # the SDK lets a provider be set once in a process
        patch.setattr(trace, "get_tracer_provider", lambda: provider)
        yield exporter


def test_a_request_is_a_span(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        settings = ServiceSettings(log_format="none")
        lifecycle = Lifecycle(lambda: load_config(ROOT / "configs/mission.yaml"), settings)
        app = build_app(lifecycle, settings)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://qcls") as client:
            early = await client.post("/v1/classify", json={"query": "red dress"})
            assert early.status_code == 503
            await lifecycle.load()
            headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
            answer = await client.post("/v1/classify", json={"query": "red dress"}, headers=headers)
            assert answer.status_code == 200
            for error, says in (
                (DecodeError("out of memory"), "out of memory"),
                (RuntimeError("a mistake"), "its log"),
            ):
                monkeypatch.setattr(lifecycle.backend, "ask", AsyncMock(side_effect=error))
                failed = await client.post("/v1/classify", json={"query": "red dress"})
                assert (failed.status_code, failed.json()["error"]["code"]) == (500, "failed")
                assert says in failed.json()["error"]["message"]
        await lifecycle.close()

    asyncio.run(ask())
    early, answered, *failed = spans.get_finished_spans()
    assert [span.status.status_code for span in failed] == [trace.StatusCode.ERROR] * 2
    assert early.attributes is not None
    assert early.attributes["error.type"] == "loading"
    assert early.status.status_code is trace.StatusCode.ERROR
    assert (answered.name, answered.kind) == ("POST /v1/classify", trace.SpanKind.SERVER)
    assert answered.attributes is not None
    assert answered.attributes["http.response.status_code"] == 200
    assert answered.attributes["http.route"] == "/v1/classify"
    decode_ms = answered.attributes["qcls.decode_ms"]
    assert isinstance(decode_ms, float)
    assert decode_ms > 0
    assert answered.context is not None
    assert f"{answered.context.trace_id:032x}" == TRACE
