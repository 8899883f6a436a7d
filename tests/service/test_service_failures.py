"""Errors inside the service, and of the engine."""

import asyncio
from unittest.mock import AsyncMock

import httpx
import pytest
from served import ROOT

from qcls_gguf import DecodeError, load_config
from qcls_gguf.service.app import build_app
from qcls_gguf.service.lifecycle import Lifecycle
from qcls_gguf.service.settings import ServiceSettings


def test_every_failure_is_answered_in_the_words_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        settings = ServiceSettings(logs_requests=False)
        lifecycle = Lifecycle(lambda: load_config(ROOT / "configs/mission.yaml"), settings)
        transport = httpx.ASGITransport(build_app(lifecycle, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://qcls") as client:
            early = await client.post("/v1/classify", json={"query": "red dress"})
            assert (early.status_code, early.json()["error"]["code"]) == (503, "loading")
            await lifecycle.load()
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
