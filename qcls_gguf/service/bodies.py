"""Bodies of requests: read with a limit on size and time, decompressed with a limit on what comes out."""

from __future__ import annotations

import asyncio
import codecs
import io
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable

from pydantic_core import from_json

from .exchange import Exchange, Receive
from .refusal import ClientGoneError, RefusedError
from .settings import RequestLimits

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:  # no package, or a Python that was built without libzstd
    zstd = None  # type: ignore[assignment,unused-ignore]

JSON = "application/json"
LINES = ("application/x-ndjson", "application/jsonl", "application/jsonlines")
_GZIP = 31  # zlib's window bits: the largest window, in a gzip header
_ZSTD_WINDOW_LOG = 23  # 8 MiB, which RFC 8878 wants every decoder to take


async def read_json(exchange: Exchange, receive: Receive, limits: RequestLimits) -> object:
    """The body as any JSON. Raises RefusedError: 400, 408, 413 or 415."""
    kind = exchange.content_type
    if kind not in ("", JSON) and not kind.endswith("+json"):
        what = f"content-type {kind[:100]!r} is not {JSON}: send the header `content-type: {JSON}`"
        raise RefusedError(415, "media type", what, param="content-type")
    return json_value(await _read_body(exchange, receive, limits))


def json_value(data: bytes) -> object:
    """What JSON text says. Raises RefusedError (400)."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as e:
        has_mark = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        hint = "; it begins with a byte order mark: send UTF-8 without one" if has_mark else ""
        raise RefusedError(400, "malformed", f"the body is not valid JSON in UTF-8: {e}{hint}") from None


async def _read_body(exchange: Exchange, receive: Receive, limits: RequestLimits) -> bytes:
    """The whole body, decompressed. Raises RefusedError."""
    length = exchange.header(b"content-length")
    if length.isdecimal() and int(length) > limits.body_bytes:
        raise _too_large(limits.body_bytes)
    body, is_whole = bytearray(), False
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            while not is_whole:
                part, is_whole = await _part(receive)
                body += part
                if len(body) > limits.body_bytes:
                    raise _too_large(limits.body_bytes)
    except TimeoutError:
        raise _too_slow(limits.body_timeout_s) from None
    encoding = exchange.header(b"content-encoding").lower()
    return bytes(body) if encoding in ("", "identity") else _decompressed(body, encoding, limits.body_bytes)


async def read_lines(exchange: Exchange, receive: Receive, limits: RequestLimits) -> AsyncIterator[tuple[int, bytes]]:
    """The lines of a body as they arrive, with their numbers from 1, without blank ones. A compressed body is read as
    a whole first.

    Raises RefusedError for a line that is too long or takes too long to come, and ClientGoneError as soon as the client
    has left.
    """
    number, rest, is_whole = 0, b"", False
    if exchange.header(b"content-encoding").lower() not in ("", "identity"):
        rest, is_whole = await _read_body(exchange, receive, limits), True
    coming = asyncio.create_task(_part(receive))  # while lines are read; at the end it waits for the client to leave
    try:
        while True:
            *lines, rest = rest.split(b"\n")
            if is_whole:
                lines.append(rest)
            for line in lines:
                number += 1
                if len(line) > limits.body_bytes:
                    raise _too_large(limits.body_bytes)
                if coming.done():
                    coming.result()
                if line.strip():
                    yield number, line
            if is_whole:
                return
            if len(rest) > limits.body_bytes:
                raise _too_large(limits.body_bytes)
            try:
                part, is_whole = await asyncio.wait_for(coming, limits.body_timeout_s)
            except TimeoutError:
                raise _too_slow(limits.body_timeout_s) from None
            rest += part
            coming = asyncio.create_task(_part(receive))
    finally:
        coming.cancel()


async def unless_gone(work: Awaitable[object], receive: Receive) -> object:
    """What `work` returns; where the client leaves before that, it is cancelled, and ClientGoneError raised.

    receive: of a request whose body has been read.
    """
    task, is_gone = asyncio.current_task(), False
    assert task is not None

    def leave(_: object) -> None:
        nonlocal is_gone
        if not is_answered:
            is_gone = True
            task.cancel()

    is_answered = False
    leaving = asyncio.create_task(_departure(receive))
    leaving.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        is_answered = True
        leaving.cancel()


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _part(receive: Receive) -> tuple[bytes, bool]:
    """What has come of a body, and whether it is the last of it. Raises ClientGoneError."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), not message.get("more_body", False)


def _decompressed(body: bytearray, encoding: str, most_bytes: int) -> bytes:
    """What a body was before it was compressed. Raises RefusedError: 415 for other encodings, 400, 413."""
    unpack = {"gzip": _gunzip, "zstd": _unzstd}.get(encoding)
    if unpack is None:
        what = f"content-encoding {encoding[:40]!r} is not gzip, zstd or identity"
        raise RefusedError(415, "media type", what, param="content-encoding")
    try:
        text = unpack(body, most_bytes)
    except (zlib.error, EOFError) as e:
        what = f"the body is not valid {encoding}: {e}"
        raise RefusedError(400, "malformed", what, param="content-encoding") from None
    if len(text) > most_bytes:
        raise _too_large(most_bytes)
    return text


def _unzstd(body: bytearray, most_bytes: int) -> bytes:
    """What the frames of a zstd file hold, no more than a byte beyond the limit."""
    if zstd is None:
        what = "content-encoding zstd is not known here, as Python has no zstd: send gzip"
        raise RefusedError(415, "media type", what, param="content-encoding")
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    try:
        with zstd.ZstdFile(io.BytesIO(body), options=options) as file:
            return file.read(most_bytes + 1)
    except zstd.ZstdError as e:
        raise EOFError(str(e)) from None


def _gunzip(body: bytearray, most_bytes: int) -> bytes:
    """What a gzip file of one member holds, no more than a byte beyond the limit."""
    member = zlib.decompressobj(_GZIP)
    text = member.decompress(body, most_bytes + 1)
    if len(text) <= most_bytes and (not member.eof or member.unused_data):
        raise EOFError("it ends too early, or has something after its end")
    return text


def _too_large(most_bytes: int) -> RefusedError:
    what = f"the body has more than {most_bytes:,} bytes: send less at once"
    return RefusedError(413, "too large", what, param="body")


def _too_slow(seconds: float) -> RefusedError:
    return RefusedError(408, "slow body", f"the body did not arrive within {seconds:g} s", param="body")
