"""A request a prompt to a server, all at once: one kept-alive connection and one thread for each prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..errors import ConfigError
from .way import AbsentError, Answer, PeerError, Task, TaskPrompt, Way

if TYPE_CHECKING:
    from .connection import Connection  # imported where it is used: http.client takes long to load

TIMEOUT_S = 120.0
_CONNECT_S = 5.0


def check_url(url: str, name: str) -> None:
    """Refuse what is no http address of a server. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        good = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, or a bracket that is not closed
        good = False
    if not good:
        raise ConfigError(f"{name}: {url!r} is not a server's address: give one such as http://127.0.0.1:8080")


class HttpWay(Way):
    """Scores first tokens by what a server says of the one token that it would generate behind each prompt."""

    n_top: int
    """how many tokens' log-probabilities come back"""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._connections: list[Connection] = []
        self._pool: ThreadPoolExecutor | None = None
        self._outside: dict[tuple[str, str], set[str]] = {}

    def open(self, url: str) -> None:
        """Connect, and check that somebody answers. Raises AbsentError."""
        from .connection import Connection

        probe = Connection(url, _CONNECT_S)
        try:
            self.check_server(probe)
        except PeerError as e:
            raise AbsentError(f"no usable server: {e}") from e
        finally:
            probe.close()
        n = len(self.task.prompts)
        self._connections = [Connection(url, TIMEOUT_S) for _ in range(n)]
        self._pool = ThreadPoolExecutor(n)

    @abstractmethod
    def check_server(self, connection: Connection) -> None:
        """Raise PeerError or AbsentError where the server cannot serve the task."""

    @abstractmethod
    def top(self, connection: Connection, index: int, prompt: TaskPrompt, text: str) -> dict[int, float]:
        """Log-probabilities of the likeliest tokens behind a rendered prompt, by token id."""

    def _answer(self, index: int, query: str) -> Answer:
        prompt = self.task.prompts[index]
        found = self.top(self._connections[index], index, prompt, prompt.template.replace("{query}", query))
        label, tree, joint = prompt.reader.first_tokens(found)
        missing = {
            label for label, path in zip(prompt.reader.labels, prompt.reader.paths, strict=True) if path[0] not in found
        }
        if missing:
            self._outside[prompt.compiled.name, query] = missing
        return Answer(label=label, tree=tree, joint=joint)

    def classify(self, query: str) -> list[Answer]:
        assert self._pool is not None, "start comes first"
        return list(self._pool.map(self._answer, range(len(self.task.prompts)), [query] * len(self.task.prompts)))

    def remarks(self) -> list[str]:
        found = []
        if self._outside:
            names = sorted(set.union(*self._outside.values()))
            of = len(self.task.prompts) * len(self.task.queries)
            found.append(
                f"outside the {self.n_top} tokens that come back, in {len(self._outside)} of {of} answers: "
                f"{_some(names)}; {self.remedy_outside}"
            )
        several = [p for p in self.task.prompts if len(p.reader.trie.read) > 1 or not p.reader.distinct]
        if several:
            n_more = sum(len(prompt.reader.trie.read) - (0 in prompt.reader.trie.read) for prompt in several)
            names = [prompt.compiled.name for prompt in several]
            found.append(
                f"labels that share first tokens ({_some(names)}) cannot be told apart: that would need {n_more} more "
                "requests, each with the prompt and a label's beginning"
            )
        return found

    remedy_outside: str
    """what it would need to see every label"""

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()


def _some(names: Sequence[str], n: int = 6) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")
