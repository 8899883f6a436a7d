"""Methods that ask a server over HTTP: a request for each prompt at once, each on its own connection and thread."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..errors import ConfigError
from .method import AbsentError, Answer, Method, PeerError, Workload, WorkloadPrompt

if TYPE_CHECKING:
    from .connection import Connection  # imported where it is used: http.client takes long to load

TIMEOUT_S = 120.0
_CONNECT_S = 5.0


def check_url(url: str, name: str) -> None:
    """Raise ConfigError for what is no http address of a server; name: what the address was given as."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, or a bracket that is not closed
        is_usable = False
    if not is_usable:
        raise ConfigError(f"{name}: {url!r} is not a server's address: give one such as http://127.0.0.1:8080")


class HttpMethod(Method):
    """Scores the labels' first tokens by the log-probabilities that a server gives the token behind each prompt."""

    n_top: int
    """how many tokens' log-probabilities come back"""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self._connections: list[Connection] = []
        self._pool: ThreadPoolExecutor | None = None
        self._outside: dict[tuple[str, str], set[str]] = {}

    def open(self, url: str) -> None:
        """Connect, and check the server. Raises AbsentError."""
        from .connection import Connection

        probe = Connection(url, _CONNECT_S)
        try:
            self.check_server(probe)
        except PeerError as e:
            raise AbsentError(f"no usable server: {e}") from e
        finally:
            probe.close()
        n = len(self.workload.prompts)
        self._connections = [Connection(url, TIMEOUT_S) for _ in range(n)]
        self._pool = ThreadPoolExecutor(n)

    @abstractmethod
    def check_server(self, connection: Connection) -> None:
        """Raise PeerError or AbsentError where the server cannot serve the workload."""

    @abstractmethod
    def top(self, connection: Connection, index: int, prompt: WorkloadPrompt, text: str) -> dict[int, float]:
        """Log-probabilities of the likeliest tokens behind a rendered prompt, by token id."""

    def _answer(self, index: int, query: str) -> Answer:
        prompt = self.workload.prompts[index]
        log_probs = self.top(self._connections[index], index, prompt, prompt.template.replace("{query}", query))
        label, tree, joint = prompt.reader.first_tokens(log_probs)
        missing = {
            label
            for label, path in zip(prompt.reader.labels, prompt.reader.paths, strict=True)
            if path[0] not in log_probs
        }
        if missing:
            self._outside[prompt.compiled.name, query] = missing
        return Answer(label=label, tree=tree, joint=joint)

    def classify(self, query: str) -> list[Answer]:
        assert self._pool is not None, "start comes first"
        return list(
            self._pool.map(self._answer, range(len(self.workload.prompts)), [query] * len(self.workload.prompts))
        )

    def remarks(self) -> list[str]:
        remarks = []
        if self._outside:
            names = sorted(set.union(*self._outside.values()))
            of = len(self.workload.prompts) * len(self.workload.queries)
            remarks.append(
                f"outside the {self.n_top} tokens that come back, in {len(self._outside)} of {of} answers: "
                f"{_first_names(names)}; {self.remedy_outside}"
            )
        several = [p for p in self.workload.prompts if len(p.reader.trie.read) > 1 or not p.reader.distinct]
        if several:
            n_more = sum(len(prompt.reader.trie.read) - (0 in prompt.reader.trie.read) for prompt in several)
            names = [prompt.compiled.name for prompt in several]
            remarks.append(
                f"labels that share first tokens ({_first_names(names)}) cannot be told apart: that would need "
                f"{n_more} more requests, each with the prompt and a label's beginning"
            )
        return remarks

    remedy_outside: str
    """what would show every label, as a sentence's end"""

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()


def _first_names(names: Sequence[str], n: int = 6) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")
