"""Local HTTP servers that replay the documented wire formats of llama-server and Ollama; neither program runs here.

The log-probabilities are real: stock logits of the model file, after the prompt that was sent. llama-server's format
is that of tools/server/README.md in the vendored tree, Ollama's that of its API's documentation.
"""

import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from local_server import Handler, LocalServer
from oracle import Oracle, log_softmax


@dataclass(kw_only=True)
class PeerServer(LocalServer):
    """Serves while it is entered; `requests` are the bodies received."""

    kind: Literal["llama-server", "ollama"]
    path: Path
    n_slots: int = 8
    model_name: str = "tiny:latest"
    requests: list[dict[str, Any]] = field(default_factory=list)
    n_top: int | None = None
    """Return no more than this many, whatever is asked for."""
    status: int | None = None
    """Answer every completion with this status."""
    body: bytes | None = None
    """Answer every completion with this."""
    delay_s: float = 0.0
    hang_up: bool = False
    """Close the connection behind every answer to GET, without saying so."""
    n_connections: int = 0
    digest: str | None = None
    """Ollama: the sha256 of the weights that its Modelfile names; None for that of `path`."""

    def __enter__(self) -> Self:
        self._oracle = Oracle(self.path)
        self._lock = threading.Lock()
        server = self

        class PeerHandler(Handler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                with server._lock:
                    server.n_connections += 1

            def do_GET(self) -> None:  # noqa: N802
                slots = {"total_slots": server.n_slots} if server.kind == "llama-server" else None
                known = {"/health": {"status": "ok"}, "/props": slots}.get(self.path)
                self.send(200 if known else 404, {}, json.dumps(known or {"error": "not found"}).encode())
                self.close_connection |= server.hang_up

            def do_POST(self) -> None:  # noqa: N802
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/api/show":
                    names = server.model_name, server.model_name.removesuffix(":latest")
                    is_there = server.kind == "ollama" and request["model"] in names
                    shown = {"modelfile": server.modelfile()} if is_there else {"error": "model not found"}
                    self.send(200 if is_there else 404, {}, json.dumps(shown).encode())
                    return
                server.requests.append({"path": self.path, **request})
                time.sleep(server.delay_s)
                body = server.body or json.dumps(server.answer(request), ensure_ascii=False).encode()
                self.send(server.status or 200, {}, body)

        self.handler = PeerHandler
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._oracle.close()

    def modelfile(self) -> str:
        """What Ollama shows of a model that `ollama create` made from `path`."""
        digest = self.digest or hashlib.sha256(self.path.read_bytes()).hexdigest()
        folder = "/usr/share/ollama/.ollama/models/blobs"
        return f"# Modelfile\n\nFROM {folder}/sha256-{digest}\nTEMPLATE {{{{ .Prompt }}}}\n"

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """A completion of one token in the server's format."""
        asked = int(request["n_probs"] if self.kind == "llama-server" else request["top_logprobs"])
        top = self._top(request["prompt"], asked if self.n_top is None else min(asked, self.n_top))
        if self.kind == "llama-server":
            return {"content": top[0]["token"], "completion_probabilities": [{**top[0], "top_logprobs": top}]}
        named = [{key: value for key, value in entry.items() if key != "id"} for entry in top]
        first = {**named[0], "top_logprobs": named}
        return {"model": self.model_name, "response": top[0]["token"], "done": True, "logprobs": [first]}

    def _top(self, text: str, n: int) -> list[dict[str, Any]]:
        model = self._oracle.model
        tokens = model.tokenize(text, parse_special=True).tolist()
        with self._lock:
            last = log_softmax(self._oracle.logits(tokens)[-1])
        top = []
        for token in np.argsort(-last)[:n].tolist():
            piece, _ = model.piece(token)
            text = piece.decode(errors="replace")
            top.append({"id": token, "token": text, "bytes": list(piece), "logprob": float(last[token])})
        return top
