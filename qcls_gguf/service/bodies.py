"""Reads bodies of requests within limits of size and time, and notices clients that disconnect before the answer."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from .exchange import Exchange
from .refusal import RefusedError, check_size
from .settings import RequestLimits

JSON = "application/json"
T = TypeVar("T")
_UNWATCHED_S = 0.02
"""of a request's work, after which it is looked whether its client is still there"""
LINES = ("application/x-ndjson", "application/jsonl", "application/jsonlines")


def check_encoding(exchange: Exchange) -> None:
    """Raise RefusedError (415) for a compressed body."""
    if (encoding := exchange.header(b"content-encoding").lower()) not in ("", "identity"):
        what = f"content-encoding {encoding[:40]!r} is not known: send the body as it is"
        raise RefusedError(415, "media type", what, param="content-encoding")


async def read_json(request: Request, limits: RequestLimits) -> object:
    """The body as any JSON. Raises RefusedError: 400, 408, 413 or 415."""
    exchange = Exchange.of(request.scope)
    kind = exchange.content_type
    if kind not in ("", JSON) and not kind.endswith("+json"):
        what = f"content-type {kind[:100]!r} is not {JSON}: send the header `content-type: {JSON}`"
        raise RefusedError(415, "media type", what, param="content-type")
    length = exchange.header(b"content-length")
    check_size(int(length) if length.isdecimal() else 0, limits.body_bytes, "bytes", "body")
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                body += part
                check_size(len(body), limits.body_bytes, "bytes", "body")
    except TimeoutError:
        raise _late(limits) from None
    return json_value(body)


def json_value(data: bytes | bytearray) -> object:
    """The value of a JSON text. Raises RefusedError (400)."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as e:
        has_mark = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        hint = "; it begins with a byte order mark: send UTF-8 without one" if has_mark else ""
        raise RefusedError(400, "malformed", f"the body is not valid JSON in UTF-8: {e}{hint}") from None


async def read_lines(request: Request, limits: RequestLimits) -> AsyncIterator[tuple[int, bytes]]:
    """The lines of a body as they arrive, with their numbers from 1, without blank ones.

    Raises RefusedError for a line that is too long or arrives too late, and ClientDisconnect if the client has
    disconnected.
    """
    exchange, parts = Exchange.of(request.scope), request.stream()
    number, rest, is_whole = 0, b"", False
    while not is_whole:
        try:
            part = await asyncio.wait_for(anext(parts), limits.body_timeout_s)
        except TimeoutError:
            raise _late(limits) from None
        is_whole = not part
        *lines, rest = (rest + part).split(b"\n")
        check_size(len(rest), limits.body_bytes, "bytes", "body")
        for line in (*lines, rest) if is_whole else lines:
            number += 1
            check_size(len(line), limits.body_bytes, "bytes", "body")
            if exchange.is_read and await request.is_disconnected():
                raise ClientDisconnect
            if line.strip():
                yield number, line


async def unless_gone(work: Coroutine[Any, Any, T], request: Request) -> T:
    """The result of `work`, for a request whose body has been read.

    Cancels the work and raises ClientDisconnect if the client leaves before that.
    """
    task, loop, watching = asyncio.current_task(), asyncio.get_running_loop(), set[asyncio.Task[None]]()
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_left = task is not None and task.cancel()

    timer = loop.call_later(_UNWATCHED_S, lambda: watching.add(loop.create_task(watch())))
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task and not task.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        for each in watching:
            each.cancel()


def _late(limits: RequestLimits) -> RefusedError:
    what = f"the body did not arrive within {limits.body_timeout_s:g} s"
    return RefusedError(408, "slow body", what, param="body")
