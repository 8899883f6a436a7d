"""Connections: HTTP/1.1 by httptools, with limits and errors of the service's own."""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .asking import json_bytes
from .exchange import log
from .refusal import RefusedError, openai_words

MOST_HEAD_BYTES = 65_536
"""of a request's head, or of its trailers, before they are whole"""


class Protocol(HttpToolsProtocol):
    """A connection with a limit on heads, which answers invalid HTTP with the service's own error.

    It answers the valid requests first, and offers of other protocols as if they were not there.
    """

    _n_pending = 0
    """bytes since a part of a request was whole"""
    _error = ""
    _running: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._error:
            return
        self._unset_keepalive_if_required()
        self._n_pending += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:  # before the body: again, as if no other protocol were offered
            own = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
            head = b"%s %s HTTP/1.1\r\n%s\r\n" % (self.parser.get_method(), self.url, b"".join(own))
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(head + data[e.args[0] :])
        except httptools.HttpParserError as e:
            why = e.__context__ if isinstance(e, httptools.HttpParserCallbackError) else e
            self.send_400_response(f"invalid HTTP: {why}")
        if self._n_pending > MOST_HEAD_BYTES:
            self.send_400_response(f"a head, or trailers, of more than {MOST_HEAD_BYTES:,} bytes")

    def on_headers_complete(self) -> None:
        """Begin a request, unless it offers another protocol."""
        self._n_pending = 0
        names = [name for name, _ in self.headers]
        if names.count(b"host") != 1 and self.parser.get_http_version() == "1.1":
            raise ValueError("a request of HTTP/1.1 has one header `host`")
        if self.parser.should_upgrade() and b"upgrade" not in names:
            raise ValueError("this service is no proxy")
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand on a part of a body."""
        self._n_pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._n_pending = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, or with the answer to what is none."""
        super().on_response_complete()
        if self._error:
            self.send_400_response(self._error)

    def send_400_response(self, msg: str) -> None:
        """Answer 400 and close the connection when the valid requests before are answered."""
        self._error = msg
        last = self.cycle  # of those that have begun or wait
        is_over = last is None or last.response_complete
        if self.transport.is_closing() or self.pipeline or not (is_over or last.more_body):
            return
        log.warning("%s", msg)
        if is_over or not last.response_started:
            body = json_bytes(openai_words(RefusedError(400, "malformed", msg)))
            head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            self.transport.write(head % len(body) + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is being answered, also while others wait."""
        super().connection_lost(exc)
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
