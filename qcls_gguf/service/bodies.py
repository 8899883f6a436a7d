"""Bodies of requests, read with a limit on size and time, and clients that leave before they are answered."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request

from .exchange import Exchange
from .refusal import ClientGoneError, RefusedError
from .settings import RequestLimits

JSON = "application/json"
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
    _check_size(int(length) if length.isdecimal() else 0, limits)
    body, is_whole = bytearray(), False
    async with _body_timeout(limits):
        while not is_whole:
            part, is_whole = await _part(request)
            body += part
            _check_size(len(body), limits)
    return json_value(bytes(body))


def json_value(data: bytes) -> object:
    """What JSON text says. Raises RefusedError (400)."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as e:
        has_mark = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        hint = "; it begins with a byte order mark: send UTF-8 without one" if has_mark else ""
        raise RefusedError(400, "malformed", f"the body is not valid JSON in UTF-8: {e}{hint}") from None


async def read_lines(request: Request, limits: RequestLimits) -> AsyncIterator[tuple[int, bytes]]:
    """The lines of a body as they arrive, with their numbers from 1, without blank ones.

    Raises RefusedError for a line that is too long or takes too long to come, and ClientGoneError where the client has
    left.
    """
    number, rest, is_whole = 0, b"", False
    while not is_whole:
        async with _body_timeout(limits):
            part, is_whole = await _part(request)
        *lines, rest = (rest + part).split(b"\n")
        _check_size(len(rest), limits)
        for line in (*lines, rest) if is_whole else lines:
            number += 1
            _check_size(len(line), limits)
            if is_whole and await request.is_disconnected():
                raise ClientGoneError
            if line.strip():
                yield number, line


async def unless_gone(work: Coroutine[Any, Any, object], request: Request) -> object:
    """What `work` returns, for a request whose body has been read.

    Cancels the work and raises ClientGoneError if the client leaves before that.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_departure(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _part(request: Request) -> tuple[bytes, bool]:
    """What has come of a body, and whether it is the last of it. Raises ClientGoneError."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), not message.get("more_body", False)


def _check_size(n_bytes: int, limits: RequestLimits) -> None:
    if n_bytes > limits.body_bytes:
        what = f"the body has more than {limits.body_bytes:,} bytes: send less at once"
        raise RefusedError(413, "too large", what, param="body")


@asynccontextmanager
async def _body_timeout(limits: RequestLimits) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            yield
    except TimeoutError:
        what = f"the body did not arrive within {limits.body_timeout_s:g} s"
        raise RefusedError(408, "slow body", what, param="body") from None
