"""Bodies of requests: read with a limit on size and time, decompressed with a limit on what comes out."""

from __future__ import annotations

import asyncio
import codecs
import io
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from .mistakes import refusal_of_mistakes
from .protocol import Protocol
from .refusal import ClientGoneError, RefusedError
from .settings import RequestLimits

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:  # no package, or a Python that was built without libzstd
    zstd = None  # type: ignore[assignment,unused-ignore]

M = TypeVar("M", bound=BaseModel)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

JSON = "application/json"
LINES = ("application/x-ndjson", "application/jsonl", "application/jsonlines")
_HEADERS = "qcls_gguf.headers"
_GZIP = 31  # zlib's window bits: the largest window, in a gzip header
_ZSTD_WINDOW_LOG = 23  # 8 MiB, which RFC 8878 wants every decoder to take


class Strict(BaseModel):
    """A part of a body that has the fields that it names and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


def header(scope: Scope, name: bytes) -> str:
    """The value of a header, empty where there is none; of several the last, as proxies append theirs."""
    value = headers_of(scope).get(name)
    return value.decode("latin-1").strip() if value else ""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """All headers, of several of a name the last."""
    headers: dict[bytes, bytes] | None = scope.get(_HEADERS)
    if headers is None:
        headers = scope[_HEADERS] = dict(scope["headers"])
    return headers


def content_type(scope: Scope) -> str:
    """The media type of the body, in small letters, without parameters; empty where the request does not say."""
    return header(scope, b"content-type").partition(";")[0].strip().lower()


async def read_model(model: type[M], scope: Scope, receive: Receive, limits: RequestLimits) -> M:
    """The body as JSON of a model. Raises RefusedError: 400, 408, 413, 415 or 422."""
    _check_json(scope)
    return parse(model, await read_body(scope, receive, limits))


async def read_json(scope: Scope, receive: Receive, limits: RequestLimits) -> Any:
    """The body as any JSON, for `parse_value`. Raises RefusedError: 400, 408, 413 or 415."""
    _check_json(scope)
    return _json(await read_body(scope, receive, limits))


def _check_json(scope: Scope) -> None:
    kind = content_type(scope)
    if kind not in ("", JSON) and not kind.endswith("+json"):
        what = f"content-type {kind[:100]!r} is not {JSON}: send the header `content-type: {JSON}`"
        raise RefusedError(415, "media type", what, param="content-type")


def parse_value(model: type[M], value: Any) -> M:
    """A value of JSON as a model. Raises RefusedError."""
    try:
        return model.model_validate(value)
    except ValidationError as e:
        raise refusal_of_mistakes(e, model, value) from None


def parse(model: type[M], data: bytes) -> M:
    """JSON text as a model. Raises RefusedError."""
    try:
        return model.model_validate_json(data)
    except ValidationError as e:
        raise refusal_of_mistakes(e, model, _json(data)) from None


def _json(data: bytes) -> Any:
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as e:
        has_mark = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        hint = "; it begins with a byte order mark: send UTF-8 without one" if has_mark else ""
        raise RefusedError(400, "malformed", f"the body is not valid JSON in UTF-8: {e}{hint}") from None


async def read_body(scope: Scope, receive: Receive, limits: RequestLimits) -> bytes:
    """The whole body, decompressed. Raises RefusedError."""
    length = header(scope, b"content-length")
    if length.isdecimal() and int(length) > limits.body_bytes:
        raise too_large(limits.body_bytes)
    connection = Protocol.of(scope)
    if connection is not None and connection.has_whole_body:
        body = await _rest(receive, limits)
    else:
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                body = await _rest(receive, limits)
        except TimeoutError:
            raise _too_slow(limits.body_timeout_s) from None
    encoding = header(scope, b"content-encoding").lower()
    return decompressed(body, encoding, limits.body_bytes) if encoding not in ("", "identity") else body


async def _rest(receive: Receive, limits: RequestLimits) -> bytes:
    """The body from here to its end. Raises RefusedError (413)."""
    parts: list[bytes] = []
    n_bytes = 0
    is_whole = False
    while not is_whole:
        part, is_whole = await _part(receive)
        n_bytes += len(part)
        if n_bytes > limits.body_bytes:
            raise too_large(limits.body_bytes)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_lines(scope: Scope, receive: Receive, limits: RequestLimits) -> AsyncIterator[tuple[int, bytes]]:
    """The lines of a body as they arrive, with their numbers from 1, without blank ones. A compressed body is read as
    a whole first.

    Raises RefusedError for a line that is too long or takes too long to come.
    """
    number = 0
    if header(scope, b"content-encoding").lower() not in ("", "identity"):
        for number, line in enumerate((await read_body(scope, receive, limits)).split(b"\n"), 1):
            if line.strip():
                yield number, line
        return
    rest = b""
    is_whole = False
    while not is_whole:
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                part, is_whole = await _part(receive)
        except TimeoutError:
            raise _too_slow(limits.body_timeout_s) from None
        *lines, rest = (rest + part).split(b"\n")
        if is_whole:
            lines, rest = [*lines, rest], b""
        for line in lines:
            number += 1
            if len(line) > limits.body_bytes:
                raise too_large(limits.body_bytes)
            if line.strip():
                yield number, line
        if len(rest) > limits.body_bytes:
            raise too_large(limits.body_bytes)


def decompressed(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """What a body was before it was compressed. Raises RefusedError: 415 for other encodings, 400, 413."""
    try:
        if encoding == "gzip":
            text = _gunzip(body, most_bytes)
        elif encoding == "zstd":
            text = _unzstd(body, most_bytes)
        else:
            what = f"content-encoding {encoding[:40]!r} is not gzip, zstd or identity"
            raise RefusedError(415, "media type", what, param="content-encoding")
    except (zlib.error, EOFError) as e:
        raise RefusedError(
            400, "malformed", f"the body is not valid {encoding}: {e}", param="content-encoding"
        ) from None
    if len(text) > most_bytes:
        raise too_large(most_bytes)
    return text


def _unzstd(body: bytes, most_bytes: int) -> bytes:
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


def _gunzip(body: bytes, most_bytes: int) -> bytes:
    """What a gzip file of one member holds, no more than a byte beyond the limit."""
    member = zlib.decompressobj(_GZIP)
    text = member.decompress(body, most_bytes + 1)
    if len(text) <= most_bytes and (not member.eof or member.unused_data):
        raise EOFError("it ends too early, or has something behind its end")
    return text


async def _part(receive: Receive) -> tuple[bytes, bool]:
    """What has come of a body, and whether it is the last of it. Raises ClientGoneError."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), not message.get("more_body", False)


def too_large(most_bytes: int) -> RefusedError:
    """The refusal of a body beyond the limit."""
    return RefusedError(
        413, "too large", f"the body has more than {most_bytes:,} bytes: send less at once", param="body"
    )


def _too_slow(seconds: float) -> RefusedError:
    return RefusedError(408, "slow body", f"the body did not arrive within {seconds:g} s", param="body")
