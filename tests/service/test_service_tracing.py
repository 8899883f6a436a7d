"""What the service adds to the spans that OpenTelemetry's instrumentation begins around it."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from served import ROOT

from qcls_gguf import DecodeError, load_config
from qcls_gguf.service.app import build_app
from qcls_gguf.service.lifecycle import Lifecycle
from qcls_gguf.service.settings import ServiceSettings


def test_a_span_has_the_stages_and_why_a_request_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")

    async def ask() -> None:
        settings = ServiceSettings(log_format="none")
        lifecycle = Lifecycle(lambda: load_config(ROOT / "configs/mission.yaml"), settings)
        transport = httpx.ASGITransport(build_app(lifecycle, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://qcls") as client:

            async def classify() -> httpx.Response:
                with tracer.start_as_current_span("POST /v1/classify"):
                    return await client.post("/v1/classify", json={"query": "red dress"})

            assert (await classify()).status_code == 503
            await lifecycle.load()
            assert (await classify()).status_code == 200
            for error, says in (
                (DecodeError("out of memory"), "out of memory"),
                (RuntimeError("a mistake"), "its log"),
            ):
                monkeypatch.setattr(lifecycle.backend, "ask", AsyncMock(side_effect=error))
                failed = await classify()
                assert (failed.status_code, failed.json()["error"]["code"]) == (500, "failed")
                assert says in failed.json()["error"]["message"]
        await lifecycle.close()

    asyncio.run(ask())
    found = [dict(span.attributes or {}) for span in exporter.get_finished_spans()]
    assert [each.get("qcls.reason") for each in found] == ["loading", None, "failed", "failed"]
    decode_ms = found[1]["qcls.decode_ms"]
    assert isinstance(decode_ms, float)
    assert decode_ms > 0
    assert found[1]["qcls.queries"] == 1
