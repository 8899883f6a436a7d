"""uvicorn's HTTP connection, with a limit on the size of a request's head, which httptools does not have.

A request finds its connection in its scope. So it knows whether its body has come as a whole, and hears of a client
that leaves, without a timer and a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 65_536
_KEY = "qcls_gguf.connection"


class Protocol(HttpToolsProtocol):
    """A connection. A head that is too long ends it with 400, before it is whole."""

    _n_head_bytes = 0
    """of the head that is not whole yet"""
    _is_head_only = True
    """whether what has come at once was nothing but part of a head"""
    _is_in_head = True
    on_lost: Callable[[], None] | None = None
    """called once when the connection ends; whoever sets it takes it away again"""

    @staticmethod
    def of(scope: MutableMapping[str, Any]) -> Protocol | None:
        """The connection of a request; None where another server runs the application."""
        return scope.get(_KEY)

    @property
    def has_whole_body(self) -> bool:
        """Whether the body of the request that is served now has come; where others came behind it, theirs too."""
        return not self.cycle.more_body

    def on_message_begin(self) -> None:
        """For the parser."""
        super().on_message_begin()
        self.scope[_KEY] = self  # type: ignore[literal-required]

    def connection_lost(self, exc: Exception | None) -> None:
        """For the event loop."""
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        """For the event loop."""
        self._is_head_only = self._is_in_head
        super().data_received(data)
        if self._is_head_only:
            self._n_head_bytes += len(data)
            if self._n_head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The head of a request has more than {MOST_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """For the parser."""
        self._is_in_head = self._is_head_only = False
        self._n_head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """For the parser."""
        self._is_in_head = True
        super().on_message_complete()
