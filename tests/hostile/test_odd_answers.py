"""Other servers that answer with something else: a PeerError in plain words, whatever it is and however long."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from qcls_gguf.compare import http_peer
from qcls_gguf.compare.http_peer import Connection
from qcls_gguf.compare.method import PeerError

ANSWERS = {
    "/deep": (b"[" * 100_000, "the answer is not JSON"),
    "/number": (b"9" * 4301, "the answer is not JSON"),
    "/bytes": (b"\xff\xfe\x00", "the answer is not JSON"),
    "/nothing": (b"", "the answer is not JSON"),
    "/long": (b" " * 5000, "the answer has more than 4500 bytes"),
}


@pytest.fixture
def url() -> Iterator[str]:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ANSWERS[self.path][0])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


@pytest.mark.parametrize("path", ANSWERS)
def test_an_answer_that_cannot_be_read(path: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "/long":
        monkeypatch.setattr(http_peer, "_MOST_BYTES", 4500)
    peer = Connection(url, timeout_s=60)
    with pytest.raises(PeerError, match=ANSWERS[path][1]):
        peer.request("GET", path)
    peer.close()
