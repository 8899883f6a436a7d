"""uvicorn's HTTP connection, with a limit on the size of a request's head, which httptools does not have."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 65_536


class Protocol(HttpToolsProtocol):
    """A connection. A head that is too long ends it with 400, before it is whole."""

    _n_head_bytes = 0
    """of the head that is not whole yet"""
    _is_head_only = True
    """whether what has come at once was nothing but part of a head"""
    _is_in_head = True

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
