"""llama-server and Ollama: how they are asked, and whether they serve the same model."""

from __future__ import annotations

import re
import shlex
from typing import Any, ClassVar

from ..config.words import JsonObject
from ..model.placement import flash_attention
from .http_peer import Connection, HttpPeer
from .method import PeerError, Workload

_FIRST_OLLAMA = (0, 12, 11)
"""the first version of Ollama that answers with log-probabilities"""
_BLOB = re.compile(r"^FROM\s.*\bsha256-([0-9a-f]{64})\s*$", re.MULTILINE)


class LlamaServer(HttpPeer):
    """`/completion` of llama-server, a prompt in a slot of its own that keeps the prompt's prefix, one token."""

    path: ClassVar = "/completion"
    log_probs_key: ClassVar = "completion_probabilities"
    end_key: ClassVar = "stop_type"
    n_top: ClassVar = 100

    def __init__(self, workload: Workload) -> None:
        if workload.peers.llama_server is None:
            command = _server_command(workload)
            raise PeerError(f"no server: give the URL of one as `llama_server`, started with {command}")
        super().__init__(workload, workload.peers.llama_server)

    def check_server(self, connection: Connection) -> None:
        properties = connection.request("GET", "/props")
        n_slots = properties.get("total_slots") if isinstance(properties, dict) else None
        if not isinstance(n_slots, int) or n_slots < 1:
            raise PeerError("/props names no total_slots: it is no llama-server, or one without slots")
        self._n_slots = n_slots

    def body(self, index: int, text: str) -> JsonObject:
        return {
            **{"prompt": text, "n_predict": 1, "n_probs": self.n_top, "temperature": 0},
            **{"id_slot": index % self._n_slots, "cache_prompt": True},
        }

    def remarks(self) -> list[str]:
        remarks, n = super().remarks(), len(self.workload.prompts)
        if self._n_slots < n:
            remarks.append(f"{self._n_slots} slots for {n} prompts, which evict each other's prefixes: --parallel {n}")
        remarks.append(f"model, settings and kernels are those of {self.url}; whether they are ours is not checked")
        return remarks


def _server_command(workload: Workload) -> str:
    """The command that starts a llama-server with our model and settings.

    One cache for all slots lets prompts of unequal length share a decode; with it, idle slots are emptied unless the
    cache in main memory is off (tools/server/server-context.cpp).
    """
    model, runtime, n = workload.ours.model, workload.ours.config.runtime, len(workload.prompts)
    flash_attn = {None: "auto", True: "on", False: "off"}[flash_attention(runtime, model.n_gpu_layers)]
    return (
        f"llama-server --model {shlex.quote(model.path)} --parallel {n} --kv-unified --cache-ram 0 "
        f"--ctx-size {n * max(256, workload.n_longest + 8)} --threads {workload.n_threads} "
        f"--n-gpu-layers {model.n_gpu_layers} --cache-type-k {runtime.kv_type} --cache-type-v {runtime.kv_type} "
        f"--flash-attn {flash_attn}"
    )


class Ollama(HttpPeer):
    """`/api/generate` of Ollama, raw, one token, with log-probabilities."""

    path: ClassVar = "/api/generate"
    log_probs_key: ClassVar = "logprobs"
    end_key: ClassVar = "done_reason"
    n_top: ClassVar = 20

    def __init__(self, workload: Workload) -> None:
        peers = workload.peers
        if peers.ollama is None or peers.ollama_model is None:
            raise PeerError(
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
            raise PeerError(f"`ollama_model` {self._model}: the server has {', '.join(sorted(names)) or 'no models'}")
        version = _text(connection.request("GET", "/api/version"), "version")
        numbers = tuple(map(int, re.findall(r"\d{1,9}", version)[:3]))
        if any(numbers) and numbers < _FIRST_OLLAMA:  # one that was built from its sources says 0.0.0
            wanted = ".".join(map(str, _FIRST_OLLAMA))
            raise PeerError(f"Ollama {version} has no log-probabilities: they need {wanted} or newer")
        self._check_weights(_text(connection.request("POST", "/api/show", {"model": self._model}), "modelfile"))

    def _check_weights(self, modelfile: str) -> None:
        """Compare the digest that the server's Modelfile names with our file's."""
        ours = self.workload.ours.model
        digests = set(_BLOB.findall(modelfile))
        if ours.sha256 in digests:
            self._weights = "its weights are the same file, by sha256"
        elif digests:
            raise PeerError(
                f"`ollama_model` {self._model}: its weights are another file, sha256 {min(digests)[:12]}… where ours "
                f"is {ours.sha256[:12]}…: make one from ours (a Modelfile of the line `FROM {ours.path}`, then "
                "`ollama create`)"
            )

    def body(self, index: int, text: str) -> JsonObject:
        options = {
            **{"num_predict": 1, "temperature": 0, "num_ctx": self._n_ctx},
            **{"num_thread": self.workload.n_threads, "num_gpu": self.workload.ours.model.n_gpu_layers},
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
