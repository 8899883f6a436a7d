"""Ollama over HTTP: a raw request for each prompt, with the log-probabilities of the 20 likeliest tokens."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from ..config.words import JsonObject
from . import Peers
from .http_peer import Connection, HttpPeer
from .method import AbsentError, PeerError, Workload

_FIRST_VERSION = (0, 12, 11)
"""of Ollama, the first that answers with log-probabilities"""
_BUILT = (0, 0, 0)
"""the version of an Ollama that was built from its sources"""
_BLOB = re.compile(r"^FROM\s.*\bsha256-([0-9a-f]{64})\s*$", re.MULTILINE)


class Ollama(HttpPeer):
    """`/api/generate`, raw, one token, with log-probabilities."""

    path: ClassVar = "/api/generate"
    log_probs_key: ClassVar = "logprobs"
    end_key: ClassVar = "done_reason"
    n_top: ClassVar = 20

    def __init__(self, workload: Workload, peers: Peers) -> None:
        if peers.ollama is None or peers.ollama_model is None:
            raise AbsentError(
                "no server: give its URL as `ollama`, such as http://127.0.0.1:11434, and a name as `ollama_model`, "
                "made from the same GGUF file (a Modelfile of the line `FROM ./model.gguf`, then `ollama create`)"
            )
        self._model = peers.ollama_model
        self._weights = "whether its weights are ours is not known"
        self._n_ctx = max(256, workload.n_longest + 8)
        super().__init__(workload, peers.ollama)

    def check_server(self, connection: Connection) -> None:
        tags = connection.request("GET", "/api/tags")
        try:
            names = {str(model["name"]) for model in tags["models"]}
        except (KeyError, TypeError) as e:
            raise PeerError("/api/tags names no models: it is no Ollama server") from e
        if not {self._model, f"{self._model}:latest"} & names:
            raise AbsentError(f"`ollama_model` {self._model}: the server has {', '.join(sorted(names)) or 'no models'}")
        version = _text(connection.request("GET", "/api/version"), "version")
        numbers = tuple(map(int, re.findall(r"\d{1,9}", version)[:3]))
        if numbers and _BUILT != numbers < _FIRST_VERSION:
            wanted = ".".join(map(str, _FIRST_VERSION))
            raise AbsentError(f"Ollama {version} has no log-probabilities: they need {wanted} or newer")
        self._check_weights(_text(connection.request("POST", "/api/show", {"model": self._model}), "modelfile"))

    def _check_weights(self, modelfile: str) -> None:
        """Compare the digest that the server's Modelfile names with our file's."""
        digests, ours = set(_BLOB.findall(modelfile)), self.workload.model.sha256
        if ours in digests:
            self._weights = "its weights are the same file, by sha256"
        elif digests:
            raise AbsentError(
                f"`ollama_model` {self._model}: its weights are another file, sha256 {min(digests)[:12]}… where ours "
                f"is {ours[:12]}…: make one from ours (a Modelfile of the line `FROM {self.workload.model.path}`, then "
                "`ollama create`)"
            )

    def body(self, index: int, text: str) -> JsonObject:
        options = {
            **{"num_predict": 1, "temperature": 0, "num_ctx": self._n_ctx},
            **{"num_thread": self.workload.n_threads, "num_gpu": self.workload.model.n_gpu_layers},
        }
        return {
            **{"model": self._model, "prompt": text, "raw": True, "stream": False, "keep_alive": "30m"},
            **{"logprobs": True, "top_logprobs": self.n_top, "options": options},
        }

    def remarks(self) -> list[str]:
        return [*super().remarks(), f"the model is {self._model} at {self.url}; {self._weights}"]


def _text(answer: Any, key: str) -> str:
    """A text of a server's answer, empty where there is none."""
    return str(answer.get(key, "")) if isinstance(answer, dict) else ""
