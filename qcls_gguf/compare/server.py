"""The method that asks a llama-server: the requests for all prompts at once, on threads and connections of their own.

It scores the labels' first tokens by the log-probabilities that the server gives the token after a prompt, as
`"completion_probabilities": [{"top_logprobs": [{"bytes": […], "token": "…", "logprob": -0.1}, …]}]`, likeliest first.
"""

import http.client
import json
import math
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from ..config.words import JsonObject, listed
from ..model.placement import flash_attention
from .method import Method, PeerError, Workload

TIMEOUT_S = 120.0
_CONNECT_S = 5.0
_N_TOP = 100
"""tokens whose log-probabilities come back"""
_PROBABILITIES = "completion_probabilities"
_LOWEST = -1e30
"""llama-server sends the lowest float for a probability of 0."""


@contextmanager
def llama_server(workload: Workload) -> Iterator[Method]:
    """`/completion` of llama-server, a prompt in a slot of its own that keeps the prompt's prefix, one token.

    An answer that ended without log-probabilities is no error: the likeliest token then has no text.
    """
    url, n = workload.settings.llama_server, len(workload.prompts)
    if url is None:
        raise PeerError(f"no server: give the URL of one as `llama_server`, started with {_server_command(workload)}")
    n_slots = _slots(url)
    prompts, queries = workload.prompts, workload.settings.queries
    piece = workload.stock_model.piece
    pieces = {tokens[0]: piece(tokens[0])[0] for prompt in prompts for tokens in prompt.paths}
    outside: dict[tuple[int, str], set[str]] = {}
    """by prompt and query, labels whose first token does not come back"""

    def answered(index: int, query: str) -> str | None:
        prompt = prompts[index]
        text = prompt.template.replace("{query}", query)
        slot = {"id_slot": index % n_slots, "cache_prompt": True}
        asked = {"prompt": text, "n_predict": 1, "n_probs": _N_TOP, "temperature": 0, **slot}
        answer = connections[index].request("POST", "/completion", asked)
        is_ended = isinstance(answer, dict) and "stop_type" in answer and not answer.get(_PROBABILITIES)
        log_probs = {} if is_ended else _log_probs(answer, pieces)
        labels = zip(prompt.labels, prompt.paths, strict=True)
        if missing := {label for label, tokens in labels if tokens[0] not in log_probs}:
            outside[index, query] = missing
        return prompt.label_of_first_tokens(log_probs)

    def remarks() -> list[str]:
        lines = []
        if outside:
            where = f"outside the {_N_TOP} tokens that come back, or none came because the likeliest one ends the text"
            of = f"in {len(outside)} of {len(prompts) * len(queries)} answers"
            lines.append(f"{where}, {of}: {listed(sorted(set.union(*outside.values())), most=6)}")
        if several := [prompt.compiled.name for prompt in prompts if not prompt.distinct]:
            lines.append(f"labels that share first tokens ({', '.join(several)}) cannot be told apart by one request")
        if n_slots < n:
            lines.append(f"{n_slots} slots for {n} prompts, which evict one another's prefixes: --parallel {n}")
        return [*lines, f"model, settings and kernels are those of {url}; whether they are ours is not checked"]

    with ExitStack() as stack:
        connections = [stack.enter_context(closing(Connection(url, TIMEOUT_S))) for _ in prompts]
        pool = stack.enter_context(ThreadPoolExecutor(len(prompts)))
        yield Method(lambda query: list(pool.map(answered, range(len(prompts)), [query] * len(prompts))), remarks)


def _slots(url: str) -> int:
    """How many slots a llama-server has. Raises PeerError for a server that cannot be used."""
    with closing(Connection(url, _CONNECT_S)) as connection:
        try:
            properties = connection.request("GET", "/props")
        except PeerError as e:
            raise PeerError(f"no usable server: {e}") from e
    n_slots = properties.get("total_slots") if isinstance(properties, dict) else None
    if not isinstance(n_slots, int) or n_slots < 1:
        raise PeerError("no usable server: /props names no total_slots: it is no llama-server, or one without slots")
    return n_slots


def _log_probs(answer: Any, pieces: dict[int, bytes]) -> dict[int, float]:
    """The log-probabilities of those tokens that an answer names; pieces: their bytes. Raises PeerError."""
    by_piece = {}
    try:
        for entry in reversed(answer[_PROBABILITIES][0]["top_logprobs"]):
            content = entry.get("bytes")
            piece = bytes(content) if isinstance(content, list) else str(entry["token"]).encode()
            by_piece[piece] = float(entry["logprob"])
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as e:
        raise PeerError(f"the answer has no {_PROBABILITIES} with top_logprobs: {e!r}") from e
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
