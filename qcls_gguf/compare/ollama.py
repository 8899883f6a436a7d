"""Ollama over HTTP: a raw request for each prompt, with the log-probabilities of the 20 likeliest tokens."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from .http_peer import HttpMethod
from .method import AbsentError, PeerError, Workload, WorkloadPrompt

if TYPE_CHECKING:
    from .connection import Connection


_FIRST_VERSION = "0.12.11"
"""of Ollama, the first that answers with log-probabilities"""
_BLOB = re.compile(r"^FROM\s.*\bsha256-(?P<digest>[0-9a-f]{64})\s*$", re.MULTILINE)


class Ollama(HttpMethod):
    """`/api/generate`, raw, one token, with log-probabilities."""

    name: ClassVar[str] = "ollama"
    about: ClassVar[str] = "HTTP, a raw request a prompt at once, one token with the 20 likeliest log-probabilities"
    n_top = 20
    remedy_outside = "Ollama returns no more than 20"

    def __init__(
        self, workload: Workload, url: str | None = None, model: str | None = None, *, other_weights: bool = False
    ) -> None:
        """other_weights: also compare with a model that is not made from our file."""
        super().__init__(workload)
        self._url = url
        self._model = model
        self._other_weights = other_weights
        self._piece: dict[int, bytes] = {}
        self._version = "unknown"
        self._weights = "whether its weights are ours is not known"
        self._lock = threading.Lock()
        self._n_answers = 0
        self._n_without: Counter[str] = Counter()

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
        answer = connection.request("GET", "/api/version")
        self._version = str(answer.get("version", "unknown")) if isinstance(answer, dict) else "unknown"
        self._check_weights(connection.request("POST", "/api/show", {"model": self._model}))

    def _check_weights(self, shown: object) -> None:
        """Compare the digest that the server's Modelfile names with our file's."""
        modelfile = str(shown.get("modelfile", "")) if isinstance(shown, dict) else ""
        digests = {found["digest"] for found in _BLOB.finditer(modelfile)}
        ours = self.workload.classifier.model.sha256
        if ours in digests:
            self._weights = "its weights are the same file, by sha256"
            return
        if not digests:
            return
        self._weights = f"its weights are another file, sha256 {min(digests)[:12]}… where ours is {ours[:12]}…"
        if not self._other_weights:
            raise AbsentError(
                f"`ollama_model` {self._model}: {self._weights}. Make one from ours (a Modelfile of the line `FROM "
                f"{self.workload.model_path}`, then `ollama create`), or allow it with `other_weights`"
            )
        self.comparable = False

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
        if isinstance(answer, dict) and "response" in answer and not answer.get("logprobs"):
            # so for one token that ends the text, or whose bytes are no whole character
            self._count(without=f"done_reason {answer.get('done_reason', 'unknown')}")
            return {}
        self._count()
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

    def _count(self, without: str | None = None) -> None:
        with self._lock:  # one thread a prompt
            self._n_answers += 1
            if without is not None:
                self._n_without[without] += 1

    def check_answers(self) -> None:
        if 0 < self._n_answers == self._n_without.total() and not _is_new_enough(self._version):
            raise PeerError(
                f"none of Ollama's {self._n_answers} answers has logprobs (version {self._version}): they need "
                f"{_FIRST_VERSION} or newer"
            )

    def remarks(self) -> list[str]:
        remarks = [*super().remarks(), f"the model is {self._model} at {self._url}; {self._weights}"]
        if self._n_without:
            reasons = ", ".join(f"{n} with {reason}" for reason, n in sorted(self._n_without.items()))
            remarks.append(
                f"{self._n_without.total()} of {self._n_answers} answers came without log-probabilities ({reasons}): "
                "their likeliest token ends the text or is no whole character"
            )
        return remarks


def _is_new_enough(version: str) -> bool:
    """Whether a release answers with log-probabilities; False for what is no release, such as 0.0.0 of the sources."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    return numbers >= [int(number) for number in _FIRST_VERSION.split(".")]


def _bytes(entry: dict[str, object]) -> bytes:
    content = entry.get("bytes")
    return bytes(content) if isinstance(content, list) else str(entry["token"]).encode()
