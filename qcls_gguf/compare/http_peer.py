"""Methods that ask a server over HTTP: a request for each prompt at once, each on its own connection and thread."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ..config.words import JsonObject
from .method import AbsentError, Answer, Method, PeerError, Workload

TIMEOUT_S = 120.0
_CONNECT_S = 5.0
_MOST_BYTES = 1 << 26  # of an answer


class HttpPeer(Method):
    """Scores the labels' first tokens by the log-probabilities that a server gives the token after each prompt."""

    n_top: ClassVar[int]
    """how many tokens' log-probabilities come back"""
    remedy_outside: ClassVar[str]
    """what would show every label, as a sentence's end"""

    def __init__(self, workload: Workload, url: str) -> None:
        """Connect, and check the server. Raises AbsentError."""
        self.workload, self.url = workload, url
        probe = Connection(url, _CONNECT_S)
        try:
            self.check_server(probe)
        except PeerError as e:
            raise AbsentError(f"no usable server: {e}") from e
        finally:
            probe.close()
        n = len(workload.prompts)
        self._connections = [Connection(url, TIMEOUT_S) for _ in range(n)]
        self._pool = ThreadPoolExecutor(n)
        self._outside: dict[tuple[str, str], set[str]] = {}

    def check_server(self, connection: Connection) -> None:
        """Raise PeerError or AbsentError where the server cannot serve the workload."""
        raise NotImplementedError

    def top(self, connection: Connection, index: int, text: str) -> dict[int, float]:
        """Log-probabilities of the likeliest tokens after the rendered prompt `index`, by token id."""
        raise NotImplementedError

    def _answer(self, index: int, query: str) -> Answer:
        prompt = self.workload.prompts[index]
        log_probs = self.top(self._connections[index], index, prompt.template.replace("{query}", query))
        labels, paths = prompt.reader.labels, prompt.reader.paths
        missing = {label for label, path in zip(labels, paths, strict=True) if path[0] not in log_probs}
        if missing:
            self._outside[prompt.compiled.name, query] = missing
        return prompt.reader.answer_of_first_tokens(log_probs)

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        n = len(self.workload.prompts)
        return list(self._pool.map(self._answer, range(n), [query] * n))

    def remarks(self) -> list[str]:
        remarks, prompts = [], self.workload.prompts
        if self._outside:
            names = sorted(set.union(*self._outside.values()))
            of = len(prompts) * len(self.workload.queries)
            remarks.append(
                f"outside the {self.n_top} tokens that come back, in {len(self._outside)} of {of} answers: "
                f"{_first_names(names)}; {self.remedy_outside}"
            )
        several = [prompt for prompt in prompts if len(prompt.reader.trie.read) > 1 or not prompt.reader.distinct]
        if several:
            n_more = sum(len(prompt.reader.trie.read) - (0 in prompt.reader.trie.read) for prompt in several)
            remarks.append(
                f"labels that share first tokens ({_first_names([prompt.compiled.name for prompt in several])}) cannot "
                f"be told apart: that would need {n_more} more requests, each with the prompt and a label's beginning"
            )
        return remarks

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()


def _first_names(names: Sequence[str], n: int = 6) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")


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
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        is_kept = self._http.sock is not None
        try:
            try:
                status, answer = self._send(method, path, content)
            except (http.client.RemoteDisconnected, ConnectionError):
                self._http.close()
                if not is_kept:
                    raise
                status, answer = self._send(method, path, content)
            if len(answer) > _MOST_BYTES:
                raise http.client.HTTPException(f"the answer has more than {_MOST_BYTES} bytes")
            if status != http.client.OK:
                raise http.client.HTTPException(f"HTTP {status}: {answer.decode(errors='replace')[:300]}")
        except (OSError, http.client.HTTPException) as e:
            self._http.close()
            is_late = isinstance(e, TimeoutError)
            reason = f"no answer within {self._http.timeout:g} s" if is_late else str(e) or type(e).__name__
            raise PeerError(f"{method} {self._url}{path}: {reason}") from e
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as e:
            raise PeerError(f"{method} {self._url}{path}: the answer is not JSON: {answer[:100]!r}") from e

    def _send(self, method: str, path: str, content: bytes | None) -> tuple[int, bytes]:
        headers = {} if content is None else {"Content-Type": "application/json"}
        self._http.request(method, self._path + path, content, headers)
        response = self._http.getresponse()
        return response.status, response.read(_MOST_BYTES + 1)

    def close(self) -> None:
        self._http.close()
