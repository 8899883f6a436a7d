"""Methods that ask a server over HTTP: a request for each prompt at once, each on its own connection and thread."""

from __future__ import annotations

import http.client
import json
import math
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ..config.words import JsonObject, listed
from ..model.placement import flash_attention
from .method import Answer, Method, PeerError, Workload

TIMEOUT_S = 120.0
_CONNECT_S = 5.0
_MOST_BYTES = 1 << 26  # of an answer
_LOWEST = -1e30
"""llama-server sends the lowest float for a probability of 0."""


class HttpPeer(Method):
    """Scores the labels' first tokens by the log-probabilities that a server gives the token after each prompt.

    Servers answer with `"LIST": [{"top_logprobs": [{"bytes": […], "token": "…", "logprob": -0.1}, …]}]`, the likeliest
    first. Subclasses say how they are asked, and what the list is called.
    """

    path: ClassVar[str]
    """where prompts are sent"""
    log_probs_key: ClassVar[str]
    """of the list in an answer"""
    end_key: ClassVar[str]
    """of the reason why an answer ended. One without the list is no error: then the likeliest token has no text"""
    n_top: ClassVar[int]
    """how many tokens' log-probabilities come back"""

    def __init__(self, workload: Workload, url: str) -> None:
        """Connect, and check the server. Raises PeerError."""
        self.workload, self.url = workload, url
        piece = workload.stock_model.piece
        self._pieces = {path[0]: piece(path[0])[0] for prompt in workload.prompts for path in prompt.paths}
        probe = Connection(url, _CONNECT_S)
        try:
            self.check_server(probe)
        except PeerError as e:
            raise PeerError(f"no usable server: {e}") from e
        finally:
            probe.close()
        n = len(workload.prompts)
        self._connections = [Connection(url, TIMEOUT_S) for _ in range(n)]
        self._pool = ThreadPoolExecutor(n)
        # by prompt and query: labels whose first token does not come back, and why no token comes back
        self._outside: dict[tuple[int, str], set[str]] = {}
        self._ended: dict[tuple[int, str], str] = {}

    def check_server(self, connection: Connection) -> None:
        """Raise PeerError where the server cannot serve the workload."""
        raise NotImplementedError

    def body(self, index: int, text: str) -> JsonObject:
        """The request for the rendered prompt `index`."""
        raise NotImplementedError

    def _answer(self, index: int, query: str) -> Answer:
        prompt = self.workload.prompts[index]
        text = prompt.template.replace("{query}", query)
        answer = self._connections[index].request("POST", self.path, self.body(index, text))
        log_probs: dict[int, float] = {}
        if isinstance(answer, dict) and self.end_key in answer and not answer.get(self.log_probs_key):
            self._ended[index, query] = f"{self.end_key} {answer[self.end_key]}"
        else:
            log_probs = self._log_probs(answer)
            labels = zip(prompt.labels, prompt.paths, strict=True)
            if missing := {label for label, path in labels if path[0] not in log_probs}:
                self._outside[index, query] = missing
        return prompt.answer_of_first_tokens(log_probs)

    def _log_probs(self, answer: Any) -> dict[int, float]:
        """The log-probabilities of those first tokens of labels that an answer names. Raises PeerError."""
        try:
            entries = answer[self.log_probs_key][0]["top_logprobs"]
            by_piece = {_piece(entry): float(entry["logprob"]) for entry in reversed(entries)}
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as e:
            raise PeerError(f"the answer has no {self.log_probs_key} with top_logprobs: {e!r}") from e
        found = {token: by_piece.get(piece, -math.inf) for token, piece in self._pieces.items()}
        return {token: p for token, p in found.items() if _LOWEST < p < math.inf}

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        n = len(self.workload.prompts)
        return list(self._pool.map(self._answer, range(n), [query] * n))

    def remarks(self) -> list[str]:
        remarks = []
        of = f"of {len(self.workload.prompts) * len(self.workload.queries)} answers"
        if self._outside:
            labels = sorted(set.union(*self._outside.values()))
            where = f"outside the {self.n_top} tokens that come back, in {len(self._outside)} {of}"
            remarks.append(f"{where}: {listed(labels, most=6)}")
        if self._ended:
            remarks.append(
                f"{len(self._ended)} {of} came without log-probabilities ({', '.join(sorted({*self._ended.values()}))}"
                "): their likeliest token ends the text or is no whole character"
            )
        several = [prompt.compiled.name for prompt in self.workload.prompts if not prompt.distinct]
        if several:
            remarks.append(f"labels that share first tokens ({', '.join(several)}) cannot be told apart by one request")
        return remarks

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()


def _piece(entry: JsonObject) -> bytes:
    """The bytes of the token of an entry of top_logprobs."""
    content = entry.get("bytes")
    return bytes(content) if isinstance(content, list) else str(entry["token"]).encode()


def is_url(url: str) -> bool:
    """Whether it is the http address of a server."""
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, or a bracket that is not closed
        return False


class Connection:
    """A kept-alive connection to a server that speaks JSON, opened anew where the server closed it between requests.

    By http.client and no larger library, for its time counts as the server's: 8 requests at once took 1.8 ms of CPU
    time with it and 4.3 ms with httpx, on two busy cores, with an answer of 100 log-probabilities each.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._url = url.rstrip("/")
        self._path = parts.path.rstrip("/")
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)

    def request(self, method: str, path: str, body: JsonObject | None = None) -> Any:
        """The answer's JSON. Raises PeerError for a failed request and for an answer that is no success or no JSON."""
        asked = f"{method} {self._url}{path}"
        try:
            try:
                answer = self._send(method, path, body)
            except ConnectionError:  # http.client.RemoteDisconnected is one
                self._http.close()
                answer = self._send(method, path, body)
        except (OSError, http.client.HTTPException) as e:
            self._http.close()
            is_late = isinstance(e, TimeoutError)
            reason = f"no answer within {self._http.timeout:g} s" if is_late else str(e) or type(e).__name__
            raise PeerError(f"{asked}: {reason}") from e
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as e:
            raise PeerError(f"{asked}: the answer is not JSON: {answer[:100]!r}") from e

    def _send(self, method: str, path: str, body: JsonObject | None) -> bytes:
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        self._http.request(method, self._path + path, content, headers)
        response = self._http.getresponse()
        answer = response.read(_MOST_BYTES + 1)
        if len(answer) > _MOST_BYTES:
            raise http.client.HTTPException(f"the answer has more than {_MOST_BYTES} bytes")
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"HTTP {response.status}: {answer.decode(errors='replace')[:300]}")
        return answer

    def close(self) -> None:
        self._http.close()


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
        f"--ctx-size {n * workload.n_ctx} --threads {workload.n_threads} "
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
        self._n_ctx = workload.n_ctx
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
