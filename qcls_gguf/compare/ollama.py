"""Ollama over HTTP: a raw request for each prompt, with the log-probabilities of the 20 likeliest tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from .http_peer import HttpMethod
from .method import AbsentError, PeerError, Workload, WorkloadPrompt

if TYPE_CHECKING:
    from .connection import Connection


class Ollama(HttpMethod):
    """`/api/generate`, raw, one token; needs Ollama 0.12.11, the first with log-probabilities."""

    name: ClassVar[str] = "ollama"
    about: ClassVar[str] = "HTTP, a raw request a prompt at once, one token with the 20 likeliest log-probabilities"
    n_top = 20
    remedy_outside = "Ollama returns no more than 20"

    def __init__(self, workload: Workload, url: str | None = None, model: str | None = None) -> None:
        super().__init__(workload)
        self._url = url
        self._model = model
        self._piece: dict[int, bytes] = {}

    def start(self) -> None:
        if self._url is None or self._model is None:
            raise AbsentError(
                "no server: give its URL as `ollama`, such as http://127.0.0.1:11434, and a name as `ollama_model`, "
                "made from the same GGUF file (a Modelfile of the line `FROM ./model.gguf`, then `ollama create`)"
            )
        model = self.workload.classifier.engine.model
        first = {path[0] for prompt in self.workload.prompts for path in prompt.reader.paths}
        self._piece = {token: model.piece(token)[0] for token in first}
        self.open(self._url)

    def check_server(self, connection: Connection) -> None:
        tags = connection.request("GET", "/api/tags")
        try:
            names = {str(model["name"]) for model in tags["models"]}
        except (KeyError, TypeError) as e:
            raise PeerError("/api/tags names no models: it is no Ollama server") from e
        if not {self._model, f"{self._model}:latest"} & names:
            raise AbsentError(f"`ollama_model` {self._model}: the server has {', '.join(sorted(names)) or 'no models'}")

    def top(self, connection: Connection, index: int, prompt: WorkloadPrompt, text: str) -> dict[int, float]:
        answer = connection.request(
            "POST",
            "/api/generate",
            {
                "model": self._model,
                "prompt": text,
                "raw": True,
                "stream": False,
                "keep_alive": "30m",
                "logprobs": True,
                "top_logprobs": self.n_top,
                "options": {
                    "num_predict": 1,
                    "temperature": 0,
                    "num_ctx": max(256, self.workload.n_longest + 8),
                    "num_thread": self.workload.n_threads,
                    "num_gpu": self.workload.n_gpu_layers,
                },
            },
        )
        if isinstance(answer, dict) and not answer.get("logprobs"):
            raise PeerError("Ollama's answer has no logprobs: they need version 0.12.11 or newer")
        try:
            # tokens come as text and bytes, not as ids
            log_probs = {_bytes(entry): float(entry["logprob"]) for entry in answer["logprobs"][0]["top_logprobs"]}
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise PeerError(f"Ollama's answer has no logprobs with top_logprobs: {e!r}") from e
        return {
            token: log_probs[piece]
            for token, piece in self._piece.items()
            if piece in log_probs and math.isfinite(log_probs[piece])
        }

    def remarks(self) -> list[str]:
        return [
            *super().remarks(),
            f"the model is {self._model} at {self._url}; whether its weights are ours is not checked",
        ]


def _bytes(entry: dict[str, object]) -> bytes:
    content = entry.get("bytes")
    return bytes(content) if isinstance(content, list) else str(entry["token"]).encode()
