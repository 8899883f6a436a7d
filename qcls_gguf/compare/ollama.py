"""Ollama over HTTP: a raw request for each prompt, with the log-probabilities of the 20 likeliest tokens."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from typing import ClassVar

from . import Peers
from .http_peer import Connection, HttpPeer
from .method import AbsentError, PeerError, Workload

_FIRST_VERSION = "0.12.11"
"""of Ollama, the first that answers with log-probabilities"""
_BLOB = re.compile(r"^FROM\s.*\bsha256-([0-9a-f]{64})\s*$", re.MULTILINE)


class Ollama(HttpPeer):
    """`/api/generate`, raw, one token, with log-probabilities."""

    n_top: ClassVar[int] = 20
    remedy_outside: ClassVar[str] = "Ollama returns no more than 20"

    def __init__(self, workload: Workload, peers: Peers) -> None:
        if peers.ollama is None or peers.ollama_model is None:
            raise AbsentError(
                "no server: give its URL as `ollama`, such as http://127.0.0.1:11434, and a name as `ollama_model`, "
                "made from the same GGUF file (a Modelfile of the line `FROM ./model.gguf`, then `ollama create`)"
            )
        self._model, self._allows_others = peers.ollama_model, peers.other_weights
        self._weights = "whether its weights are ours is not known"
        model = workload.ours.engine.model
        first = {path[0] for prompt in workload.prompts for path in prompt.reader.paths}
        self._pieces = {token: model.piece(token)[0] for token in first}
        self._lock = threading.Lock()
        self._n_answers = 0
        self._n_without: Counter[str] = Counter()
        super().__init__(workload, peers.ollama)

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
        shown = connection.request("POST", "/api/show", {"model": self._model})
        self._check_weights(str(shown.get("modelfile", "")) if isinstance(shown, dict) else "")

    def _check_weights(self, modelfile: str) -> None:
        """Compare the digest that the server's Modelfile names with our file's."""
        digests, ours = set(_BLOB.findall(modelfile)), self.workload.model_sha256
        if ours in digests:
            self._weights = "its weights are the same file, by sha256"
        elif digests:
            self._weights = f"its weights are another file, sha256 {min(digests)[:12]}… where ours is {ours[:12]}…"
            self.comparable = False
            if not self._allows_others:
                raise AbsentError(
                    f"`ollama_model` {self._model}: {self._weights}. Make one from ours (a Modelfile of the line `FROM "
                    f"{self.workload.model_path}`, then `ollama create`), or allow it with `other_weights`"
                )

    def top(self, connection: Connection, index: int, text: str) -> dict[int, float]:
        options = {
            **{"num_predict": 1, "temperature": 0, "num_ctx": max(256, self.workload.n_longest + 8)},
            **{"num_thread": self.workload.n_threads, "num_gpu": self.workload.n_gpu_layers},
        }
        body = {
            **{"model": self._model, "prompt": text, "raw": True, "stream": False, "keep_alive": "30m"},
            **{"logprobs": True, "top_logprobs": self.n_top, "options": options},
        }
        answer = connection.request("POST", "/api/generate", body)
        # none come with one token that ends the text, or whose bytes are no whole character
        is_without = isinstance(answer, dict) and "response" in answer and not answer.get("logprobs")
        with self._lock:  # one thread a prompt
            self._n_answers += 1
            if is_without:
                self._n_without[f"done_reason {answer.get('done_reason', 'unknown')}"] += 1
        if is_without:
            return {}
        try:
            # tokens come as text and bytes, not as ids
            log_probs = {_bytes(entry): float(entry["logprob"]) for entry in answer["logprobs"][0]["top_logprobs"]}
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise PeerError(f"Ollama's answer has no logprobs with top_logprobs: {e!r}") from e
        known = {token: log_probs.get(piece, math.nan) for token, piece in self._pieces.items()}
        return {token: p for token, p in known.items() if math.isfinite(p)}

    def check_answers(self) -> None:
        # 0.0.0 is a build from the sources
        numbers = [int(number) for number in re.findall(r"\d+", self._version)[:3]]
        is_new_enough = numbers >= [int(number) for number in _FIRST_VERSION.split(".")]
        if 0 < self._n_answers == self._n_without.total() and not is_new_enough:
            raise PeerError(
                f"none of Ollama's {self._n_answers} answers has logprobs (version {self._version}): they need "
                f"{_FIRST_VERSION} or newer"
            )

    def remarks(self) -> list[str]:
        remarks = [*super().remarks(), f"the model is {self._model} at {self.url}; {self._weights}"]
        if self._n_without:
            reasons = ", ".join(f"{n} with {reason}" for reason, n in sorted(self._n_without.items()))
            remarks.append(
                f"{self._n_without.total()} of {self._n_answers} answers came without log-probabilities ({reasons}): "
                "their likeliest token ends the text or is no whole character"
            )
        return remarks


def _bytes(entry: dict[str, object]) -> bytes:
    content = entry.get("bytes")
    return bytes(content) if isinstance(content, list) else str(entry["token"]).encode()
