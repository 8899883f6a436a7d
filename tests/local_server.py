"""An HTTP server in a thread of this process, as long as it is entered."""

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Handler(BaseHTTPRequestHandler):
    """Answers quietly, with a body where it was not HEAD that asked."""

    def log_message(self, *_: object) -> None: ...

    def send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        try:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # whoever asked has given up


class LocalServer:
    """Serves with its handlers, in which it is `self.server.owner`."""

    handler: type[BaseHTTPRequestHandler]

    def __enter__(self) -> Self:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self._http.daemon_threads = False  # so that closing waits for them, and for their connections
        self._http.owner = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return self._http.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
