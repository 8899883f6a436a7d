"""The service's settings, and the classifier that it serves: loaded at the start, drained."""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import time
from typing import Literal

from ..classifier import Classifier
from ..config.schema import Config
from ..errors import ConfigError
from ..questions.asking import QuestionAsker
from ..system.lifetimes import Ledger, OnStep
from .refusal import unavailable

log = logging.getLogger("qcls_gguf.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How the service listens, whom it answers, and the limits of requests."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: a free one"""
    api_keys: tuple[str, ...] = ()
    """a request needs one of them; empty: no keys are needed"""
    grace_s: float = 30.0
    """how long accepted requests may take after the service was told to stop"""
    logs_requests: bool = True
    """whether the log has a line for a request"""
    body_bytes: int = 4 << 20
    """of a body"""
    queries: int = 400
    """queries or questions of one request"""
    timeout_ms: int = 10_000
    """after which a request that has not begun is not computed, where it does not say itself"""
    waiting_requests: int = 64
    """requests that may be in the service at once; more get 503"""

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can reach it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def check_keys(keys: list[str]) -> tuple[str, ...]:
    """The different keys. Raises ConfigError for one that no header can carry."""
    if not all(key and key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise ConfigError("an API key is empty or has a character that no header carries: use printable ASCII")
    return tuple(dict.fromkeys(keys))


@dataclass(eq=False)
class Lifecycle:
    """Holds the classifier that answers, and counts who is in the service. For the thread of the event loop."""

    config: Config
    settings: ServiceSettings
    offline: bool = False
    on_step: OnStep | None = None
    on_load: Callable[[float], None] | None = None
    created: int = field(default_factory=lambda: int(time()), init=False)
    loaded: QuestionAsker | None = field(default=None, init=False)
    """whether it answers or not"""
    state: Literal["loading", "ready", "draining"] = field(default="loading", init=False)
    """whether requests are answered: new ones are not while it drains"""
    n_requests: int = field(default=0, init=False)
    """that were admitted and are not answered yet"""
    n_queries: int = field(default=0, init=False)
    """of these requests, and their questions"""
    _query_ms: float = field(default=0.0, init=False)

    @property
    def backend(self) -> QuestionAsker:
        """What answers now. Raises RefusedError (503) while loading and while draining."""
        if self.loaded is None or self.state != "ready":
            raise unavailable(self.state, f"the service is {self.state}")
        return self.loaded

    @contextmanager
    def admitted(self, n_queries: int) -> Iterator[None]:
        """A context for the time that a request is in the service, of so many queries or questions.

        Raises RefusedError (503) if there are too many requests, with the time until about half of them will be done.
        """
        if self.n_requests >= self.settings.waiting_requests:
            retry_ms = min(max(self.n_queries * self._query_ms / 2, 20.0), 60_000.0)
            what = f"{self.n_requests} requests are in the service, as many as it admits: ask again later"
            raise unavailable("requests", what, retry_ms)
        self.n_requests += 1
        self.n_queries += n_queries
        try:
            yield
        finally:
            self.n_requests -= 1
            self.n_queries -= n_queries

    def note_time(self, ms: float) -> None:
        """Record a query's share of its turn's time, which is smoothed."""
        self._query_ms += (ms - self._query_ms) * (0.1 if self._query_ms else 1.0)

    async def load(self) -> None:
        """Load the model. Raises QclsError."""
        self.loaded = await asyncio.to_thread(self._open)
        if self.state == "loading":
            self.state = "ready"

    def _open(self) -> QuestionAsker:
        # what may wait is limited at the door, before anything of a request is computed
        config = self.config.changed(runtime=self.config.runtime.changed(max_waiting=1 << 20))
        with ExitStack() as undo:
            opening = Classifier.from_config(config, offline=self.offline, on_step=self.on_step, on_load=self.on_load)
            classifier = undo.enter_context(opening)
            ledger = Ledger(self.on_step)
            ledger.step("measure turns", f"a decode costs as much as {classifier.measure_turns():.0f} tokens more")
            asker = QuestionAsker(classifier)
            undo.pop_all()
        for mistake in classifier.warnings:
            log.warning("%s", mistake)
        return asker

    async def close(self) -> None:
        """Close everything, after the last answer."""
        self.state = "draining"
        while self.n_requests:
            await asyncio.sleep(0.01)
        if self.loaded is not None:
            await self.loaded.sets.close()
            await asyncio.to_thread(self.loaded.classifier.close)
            self.loaded = None
