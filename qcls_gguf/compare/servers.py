"""Methods that ask a server over HTTP: the requests for all prompts at once, on threads and connections of their own.

They score the labels' first tokens by the log-probabilities that a server gives the token after a prompt. Servers
answer with `"LIST": [{"top_logprobs": [{"bytes": […], "token": "…", "logprob": -0.1}, …]}]`, the likeliest first.
"""

import http.client
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from ..config.words import JsonObject, listed
from ..model.placement import flash_attention
from .method import Method, PeerError, Workload

TIMEOUT_S = 120.0
_CONNECT_S = 5.0
_LOWEST = -1e30
"""llama-server sends the lowest float for a probability of 0."""


@contextmanager
def _asked(
    workload: Workload,
    url: str,
    *,
    path: str,
    list_key: str,
    end_key: str,
    n_top: int,
    body: Callable[[int, str], JsonObject],
    notes: Sequence[str],
) -> Iterator[Method]:
    """The method of a server.

    path: where prompts are sent; list_key: of the list in an answer; end_key: of the reason why an answer ended: one
    without the list is no error, then the likeliest token has no text; n_top: how many tokens' log-probabilities come
    back; body: the request for a rendered prompt by its number; notes: remarks on the server.
    """
    prompts, queries = workload.prompts, workload.settings.queries
    piece = workload.stock_model.piece
    pieces = {tokens[0]: piece(tokens[0])[0] for prompt in prompts for tokens in prompt.paths}
    outside: dict[tuple[int, str], set[str]] = {}
    """by prompt and query, labels whose first token does not come back"""

    def answered(index: int, query: str) -> str | None:
        prompt = prompts[index]
        text = prompt.template.replace("{query}", query)
        answer = connections[index].request("POST", path, body(index, text))
        is_ended = isinstance(answer, dict) and end_key in answer and not answer.get(list_key)
        log_probs = {} if is_ended else _log_probs(answer, list_key, pieces)
        labels = zip(prompt.labels, prompt.paths, strict=True)
        if missing := {label for label, tokens in labels if tokens[0] not in log_probs}:
            outside[index, query] = missing
        return prompt.label_of_first_tokens(log_probs)

    def remarks() -> list[str]:
        lines = []
        if outside:
            where = f"outside the {n_top} tokens that come back, or none came because the likeliest one ends the text"
            of = f"in {len(outside)} of {len(prompts) * len(queries)} answers"
            lines.append(f"{where}, {of}: {listed(sorted(set.union(*outside.values())), most=6)}")
        if several := [prompt.compiled.name for prompt in prompts if not prompt.distinct]:
            lines.append(f"labels that share first tokens ({', '.join(several)}) cannot be told apart by one request")
        return [*lines, *notes]

    with ExitStack() as stack:
        connections = [stack.enter_context(closing(Connection(url, TIMEOUT_S))) for _ in prompts]
        pool = stack.enter_context(ThreadPoolExecutor(len(prompts)))
        yield Method(lambda query: list(pool.map(answered, range(len(prompts)), [query] * len(prompts))), remarks)


def _log_probs(answer: Any, list_key: str, pieces: dict[int, bytes]) -> dict[int, float]:
    """The log-probabilities of those tokens that an answer names; pieces: their bytes. Raises PeerError."""
    by_piece = {}
    try:
        for entry in reversed(answer[list_key][0]["top_logprobs"]):
            content = entry.get("bytes")
            piece = bytes(content) if isinstance(content, list) else str(entry["token"]).encode()
            by_piece[piece] = float(entry["logprob"])
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as e:
        raise PeerError(f"the answer has no {list_key} with top_logprobs: {e!r}") from e
    log_probs = {token: by_piece.get(piece, -math.inf) for token, piece in pieces.items()}
    return {token: p for token, p in log_probs.items() if _LOWEST < p < math.inf}


class Connection:
    """A kept-alive connection to a server that speaks JSON, opened anew where the server closed it between requests.

    By http.client and no larger library, for its time counts as the server's: 8 requests at once took 1.8 ms of CPU
    time with it and 4.3 ms with httpx, on two busy cores, with an answer of 100 log-probabilities each.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        """Raises PeerError for what is not the http address of a server."""
        try:
            parts = urlsplit(url)
            if parts.scheme != "http" or not parts.hostname or parts.port == 0:
                raise ValueError("it is no http address of a host")
        except ValueError as e:  # also a port that is none, or a bracket that is not closed
            raise PeerError(f"{url!r} is not a server's address: {e}: give one such as http://127.0.0.1:8080") from None
        self._url = url.rstrip("/")
        self._path = parts.path.rstrip("/")
        self._http = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)

    def request(self, method: str, path: str, body: JsonObject | None = None) -> Any:
        """The answer's JSON. Raises PeerError for a failed request and for an answer that is no success or no JSON."""
        asked = f"{method} {self._url}{path}"
        try:
            try:
                answer = self._send(method, path, body)
            except ConnectionError:  # http.client.RemoteDisconnected is one
                self._http.close()
                answer = self._send(method, path, body)
            return json.loads(answer)
        except (OSError, http.client.HTTPException) as e:
            self._http.close()
            is_late = isinstance(e, TimeoutError)
            reason = f"no answer within {self._http.timeout:g} s" if is_late else str(e) or type(e).__name__
            raise PeerError(f"{asked}: {reason}") from e
        except (ValueError, RecursionError) as e:
            raise PeerError(f"{asked}: the answer is not JSON: {answer[:100]!r}") from e

    def _send(self, method: str, path: str, body: JsonObject | None) -> bytes:
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        self._http.request(method, self._path + path, content, {"Content-Type": "application/json"})
        response = self._http.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"HTTP {response.status}: {answer.decode(errors='replace')[:300]}")
        return answer

    def close(self) -> None:
        self._http.close()


@contextmanager
def llama_server(workload: Workload) -> Iterator[Method]:
    """`/completion` of llama-server, a prompt in a slot of its own that keeps the prompt's prefix, one token."""
    url, n = workload.settings.llama_server, len(workload.prompts)
    if url is None:
        raise PeerError(f"no server: give the URL of one as `llama_server`, started with {_server_command(workload)}")
    with closing(Connection(url, _CONNECT_S)) as connection:
        properties = connection.request("GET", "/props")
        n_slots = properties.get("total_slots") if isinstance(properties, dict) else None
        if not isinstance(n_slots, int) or n_slots < 1:
            raise PeerError("/props names no total_slots: it is no llama-server, or one without slots")
    n_top, notes = 100, [f"model, settings and kernels are those of {url}; whether they are ours is not checked"]
    if n_slots < n:
        notes.insert(0, f"{n_slots} slots for {n} prompts, which evict one another's prefixes: --parallel {n}")

    def body(index: int, text: str) -> JsonObject:
        slot = {"id_slot": index % n_slots, "cache_prompt": True}
        return {"prompt": text, "n_predict": 1, "n_probs": n_top, "temperature": 0, **slot}

    keys = {"list_key": "completion_probabilities", "end_key": "stop_type"}
    with _asked(workload, url, path="/completion", **keys, n_top=n_top, body=body, notes=notes) as method:
        yield method


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


_BLOB = re.compile(r"^FROM\s.*\bsha256-([0-9a-f]{64})\s*$", re.MULTILINE)


@contextmanager
def ollama(workload: Workload) -> Iterator[Method]:
    """`/api/generate` of Ollama, raw, one token, with log-probabilities."""
    url, name = workload.settings.ollama, workload.settings.ollama_model
    if url is None or name is None:
        raise PeerError(
            "no server: give its URL as `ollama`, such as http://127.0.0.1:11434, and a name as `ollama_model`, "
            "made from the same GGUF file (a Modelfile of the line `FROM ./model.gguf`, then `ollama create`)"
        )
    with closing(Connection(url, _CONNECT_S)) as connection:
        weights = _weights_of(workload, connection, name)
    n_top = 20
    options = {
        **{"num_predict": 1, "temperature": 0, "num_ctx": workload.n_ctx},
        **{"num_thread": workload.n_threads, "num_gpu": workload.ours.model.n_gpu_layers},
    }

    def body(_: int, text: str) -> JsonObject:
        asked = {"model": name, "prompt": text, "raw": True, "stream": False, "keep_alive": "30m"}
        return {**asked, "logprobs": True, "top_logprobs": n_top, "options": options}

    keys, notes = {"list_key": "logprobs", "end_key": "done_reason"}, [f"the model is {name} at {url}; {weights}"]
    with _asked(workload, url, path="/api/generate", **keys, n_top=n_top, body=body, notes=notes) as method:
        yield method


def _weights_of(workload: Workload, connection: Connection, name: str) -> str:
    """Whether Ollama's weights are ours, in words. Raises PeerError where it has no such model, or they are others."""
    shown = connection.request("POST", "/api/show", {"model": name})
    digests = set(_BLOB.findall(str(shown.get("modelfile")))) if isinstance(shown, dict) else set()
    ours = workload.ours.model
    if digests and ours.sha256 not in digests:
        raise PeerError(
            f"`ollama_model` {name}: its weights are another file, sha256 {min(digests)[:12]}… where ours is "
            f"{ours.sha256[:12]}…: make one from ours (a Modelfile of the line `FROM {ours.path}`, then "
            "`ollama create`)"
        )
    return "its weights are the same file, by sha256" if digests else "whether its weights are ours is not known"
