"""uvicorn's HTTP connection, with a limit on the size of a request's head, which httptools does not have.

A request may offer another protocol, as Java's HttpClient and curl, when asked, offer HTTP/2 with their first request.
It is answered in HTTP/1.1, as RFC 9110, section 7.8 allows. httptools ends such a request behind its head, without its
body; so its head is parsed once more, without the header `Upgrade`, and then what came behind it.

A request finds its connection in its scope. So it knows whether its body has come as a whole, and hears of a client
that leaves, without a timer and a task of its own.

An application may have a `quick` (`Quick`), which is asked first about each request that came as a whole: what it does
not answer is served as usual, in a task of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

MOST_HEAD_BYTES = 65_536
Quick = Callable[["Protocol", RequestResponseCycle], bool]
"""quick(connection, request): whether it answers the request, at once or later, by `Protocol.answer`"""
_KEY = "qcls_gguf.connection"


class Protocol(HttpToolsProtocol):
    """A connection. A head or trailers that are too long end it with 400, before they are whole."""

    _n_head_bytes = 0
    """of the head, or of the trailers, that are not whole yet"""
    _is_head_only = True
    """whether what has come at once was nothing but part of these"""
    _has_head = False
    """of the request that is received"""
    on_lost: Callable[[], None] | None = None
    """called once when the connection ends; whoever sets it takes it away again"""
    _is_receiving = False
    _unstarted: tuple[RequestResponseCycle, Any] | None = None
    """the request whose head has just come, and its application, until all is read that came with it"""
    _n_parsed: int | None = None
    """bytes of the data at hand up to the end of a head that offers another protocol"""
    _served: RequestResponseCycle | None = None
    """the request that was started last; uvicorn's `cycle` is the one that came last, which may wait behind it"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._quick: Quick | None = getattr(self.app, "quick", None)

    @staticmethod
    def of(scope: MutableMapping[str, Any]) -> Protocol | None:
        """The connection of a request; None where another server runs the application."""
        return scope.get(_KEY)

    @property
    def has_whole_body(self) -> bool:
        """Whether the body of the request that is served now has come; where others came behind it, theirs too."""
        return not self.cycle.more_body

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended, or is being ended."""
        return bool(self.transport.is_closing())

    def connection_lost(self, exc: Exception | None) -> None:
        """For the event loop."""
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True  # an answer to it would be an error
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        """For the event loop."""
        self._is_head_only = True
        self._is_receiving = True
        super().data_received(data)
        rest = memoryview(data)
        while self._n_parsed is not None:
            rest, self._n_parsed = rest[self._n_parsed :], None
            super().data_received(self._head_without_offer())
            if not self.transport.is_closing():
                super().data_received(rest)  # type: ignore[arg-type]  # any buffer, which is not copied
        self._is_receiving = False
        if self._unstarted is not None:
            (request, app), self._unstarted = self._unstarted, None
            if request.more_body or self._quick is None or not self._quick(self, request):
                self._start(request, app)
        if self._is_head_only:
            self._n_head_bytes += len(data)
            if self._n_head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The head or the trailers of a request have more than {MOST_HEAD_BYTES} bytes.")

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
        """For uvicorn, behind a CONNECT: what follows it is not HTTP and is not read."""
        self.cycle.keep_alive = False

    def _head_without_offer(self) -> bytes:
        """The head that was parsed last, without the protocols that it offers."""
        version = self.scope["http_version"].encode()
        lines = [b"%s %s HTTP/%s" % (self.scope["method"].encode(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """For uvicorn, when a request's head has come, or when the request before it is answered."""
        if self._is_receiving:
            self._unstarted = cycle, app
        else:
            self._start(cycle, app)

    def _start(self, request: RequestResponseCycle, app: Any) -> None:
        """Serve a request as usual, in a task of its own."""
        self._served = request
        request.scope[_KEY] = self  # type: ignore[literal-required]
        super()._start_asgi_task(request, app)

    def answer(self, request: RequestResponseCycle, status: int, lines: bytes, body: bytes) -> None:
        """Send a whole answer at once, to a request with a body whose client reads. lines: its headers as they are
        sent, without the body's length.
        """
        parts = [STATUS_LINE[status]]
        for name, value in self.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (lines, b"content-length: %d\r\n" % len(body))
        if not request.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (b"\r\n", body)
        self.transport.write(b"".join(parts))
        request.response_started = request.response_complete = True
        request.message_event.set()
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

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
        self._is_head_only = False
        self._n_head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """For the parser, with some of a body."""
        self._is_head_only = False
        self._n_head_bytes = 0
        super().on_body(body)
