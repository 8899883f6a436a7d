"""uvicorn's HTTP connection with a limit on heads and trailers, and with answers to requests that offer HTTP/2.

httptools limits neither, and ends a request that offers another protocol, as Java's HttpClient and curl with HTTP/2 do,
after its head, without its body. Such a request is answered in HTTP/1.1, as RFC 9110, section 7.8 allows: its head is
parsed once more, without the header `Upgrade`, and then what came after it.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .asking import json_bytes
from .exchange import log
from .refusal import RefusedError, openai_words

MOST_HEAD_BYTES = 65_536


class Protocol(HttpToolsProtocol):
    """A connection. A head or trailers that are too long end it with 400, before they are whole."""

    _n_head_bytes = 0
    """of the head, or of the trailers, that are not whole yet"""
    _has_head = False
    """of the request that is received"""
    _n_parsed: int | None = None
    """bytes of the data at hand up to the end of a head that offers another protocol"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._requests: deque[RequestResponseCycle] = deque()  # not answered yet; uvicorn's `cycle` is the last one

    def connection_lost(self, exc: Exception | None) -> None:
        """For the event loop."""
        super().connection_lost(exc)
        for request in self._requests:
            request.disconnected = request.disconnected or not request.response_complete
            request.message_event.set()

    def data_received(self, data: bytes) -> None:
        """For the event loop."""
        self._n_head_bytes += len(data)
        super().data_received(data)
        rest = memoryview(data)
        while self._n_parsed is not None:
            rest, self._n_parsed = rest[self._n_parsed :], None
            super().data_received(self._head_without_offer())
            if not self.transport.is_closing():
                super().data_received(rest)  # type: ignore[arg-type]  # any buffer, which is not copied
        if self._n_head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head or the trailers of a request have more than {MOST_HEAD_BYTES} bytes.")

    def send_400_response(self, msg: str) -> None:
        """Refuse, in the service's words, what is no HTTP."""
        log.warning("%s", msg)
        body = json_bytes(openai_words(RefusedError(400, "malformed", msg)))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """For uvicorn: whether it calls `handle_websocket_upgrade` instead of serving the request that was parsed."""
        return bool(self.scope["method"] != "CONNECT")

    def handle_websocket_upgrade(self) -> None:
        """For uvicorn, when the head of a request that offers another protocol has come."""
        error = sys.exception()
        assert isinstance(error, httptools.HttpParserUpgrade)
        self._n_parsed = error.args[0]
        self.parser = httptools.HttpRequestParser(self)  # the old one ignores what follows on a connection that ends
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def _unsupported_upgrade_warning(self) -> None:
        """For uvicorn, after a CONNECT: what follows it is not HTTP and is not read."""
        self.cycle.keep_alive = False

    def _head_without_offer(self) -> bytes:
        """The head that was parsed last, without the protocols that it offers."""
        version = self.scope["http_version"].encode()
        lines = [b"%s %s HTTP/%s" % (self.scope["method"].encode(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))

    def on_message_begin(self) -> None:
        """For the parser."""
        self._has_head = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """For the parser, also for a trailer."""
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """For the parser."""
        self._has_head = True
        self._n_head_bytes = 0
        super().on_headers_complete()
        while self._requests and self._requests[0].response_complete:
            self._requests.popleft()
        if self.cycle is not None and (not self._requests or self._requests[-1] is not self.cycle):
            self._requests.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """For the parser, with some of a body."""
        self._n_head_bytes = 0
        super().on_body(body)
