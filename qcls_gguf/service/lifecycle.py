"""The service's settings, and the classifier that it serves: loaded at the start, replaced by a reload, drained."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Literal

from ..classifier import Classifier
from ..config.fitted import layers_needed
from ..config.schema import Config
from ..engine.open import open_model
from ..errors import ConfigError, QclsError
from ..model import OpenModels, find_model
from ..model.files import stamps_of
from ..questions.asking import QuestionAsker
from ..questions.sets import Tasks
from ..system.lifetimes import Ledger, OnStep
from .refusal import RefusedError, unavailable

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
    """of a body, or of one line of a stream of lines"""
    queries: int = 400
    """queries or questions of one request; a stream of lines has any number"""
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


class Backend(QuestionAsker):
    """A classifier, its open model, and the prompt sets that requests made."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(classifier)
        self.model = classifier.engine.model
        self.created = int(time())
        self.window = classifier.config.runtime.max_batch
        """how many queries of one request may wait at once"""
        self.n_requests = 0
        """that it answers"""

    async def close(self, *, keep_model: bool = False) -> None:
        """Wait until no request uses it, then close the classifier and the model."""
        while self.n_requests:
            await asyncio.sleep(0.01)
        await self.sets.close()
        await asyncio.to_thread(self.classifier.close)
        if not keep_model:
            await asyncio.to_thread(self.model.close)


@dataclass(eq=False)
class Lifecycle:
    """Holds the classifier that answers, and counts who is in the service. For the thread of the event loop."""

    configure: Callable[[], Config]
    """reads the configuration again, and raises ConfigError"""
    settings: ServiceSettings
    offline: bool = False
    on_step: OnStep | None = None
    on_load: Callable[[float], None] | None = None
    loaded: Backend | None = field(default=None, init=False)
    """what was loaded last, whether it answers or not"""
    state: Literal["loading", "ready", "draining"] = field(default="loading", init=False)
    """whether requests are answered: new ones are not while it drains"""
    n_reloads: int = field(default=0, init=False)
    n_requests: int = field(default=0, init=False)
    """that were admitted and are not answered yet"""
    n_queries: int = field(default=0, init=False)
    """of these requests, and their questions"""
    _query_ms: float = field(default=0.0, init=False)
    _reloading: asyncio.Task[Backend] | None = field(default=None, init=False)
    _tasks: Tasks = field(default_factory=Tasks, init=False)

    @property
    def backend(self) -> Backend:
        """The backend that answers now. Raises RefusedError (503) while loading and while draining.

        A reload closes it when no request uses it: take it after the request has been read, and let the request be
        `admitted` before awaiting anything.
        """
        if self.loaded is None or self.state != "ready":
            raise self._refusal()
        return self.loaded

    def _refusal(self) -> RefusedError:
        return unavailable(self.state, f"the service is {self.state}")

    @contextmanager
    def admitted(self, backend: Backend, n_queries: int) -> Iterator[None]:
        """A context for the time that a backend has a request, of so many queries or questions.

        Raises RefusedError (503) if there are too many requests, with the time until about half of them will be done.
        """
        if self.n_requests >= self.settings.waiting_requests:
            retry_ms = min(max(self.n_queries * self._query_ms / 2, 20.0), 60_000.0)
            what = f"{self.n_requests} requests are in the service, as many as it admits: ask again later"
            raise unavailable("requests", what, retry_ms)
        self.n_requests += 1
        backend.n_requests += 1
        self.n_queries += n_queries
        try:
            yield
        finally:
            self.n_requests -= 1
            backend.n_requests -= 1
            self.n_queries -= n_queries

    def note_time(self, ms: float) -> None:
        """Record a query's share of its turn's time, which is smoothed."""
        self._query_ms += (ms - self._query_ms) * (0.1 if self._query_ms else 1.0)

    async def load(self) -> None:
        """Load the configuration as it is now. Raises QclsError, and RefusedError if told to stop meanwhile."""
        self.loaded = await asyncio.to_thread(self._open, self.configure())
        if self.state == "loading":
            self.state = "ready"

    async def reload(self) -> Backend:
        """Load the configuration as it is now beside the old one, and swap them when it is ready.

        It goes on if the caller is cancelled. Raises RefusedError: 409 while another reload runs, 422 for a
        configuration that is refused, 503 while loading and while draining; the old one then stays.
        """
        old = self.backend
        if self._reloading and not self._reloading.done():
            raise RefusedError(409, "reloading", "a reload is running: wait for its end")
        self._reloading = self._tasks.start(self._replaced(old))
        return await asyncio.shield(self._reloading)

    async def _replaced(self, old: Backend) -> Backend:
        began = monotonic()
        try:
            new = await asyncio.to_thread(self._open, self.configure())
        except QclsError as e:
            log.warning("reload refused, the old configuration stays in use: %s", e)
            raise RefusedError(422, "reload", f"the old configuration stays in use: {e}") from None
        self.loaded = new
        self.n_reloads += 1
        log.info("reloaded in %.1f s: %s", monotonic() - began, ", ".join(new.prompts))
        self._tasks.start(old.close(keep_model=old.model is new.model))
        return new

    def start_reload(self) -> None:
        """Reload, for the handler of a signal; a refusal is logged."""

        async def reload() -> None:
            with suppress(RefusedError):
                await self.reload()

        self._tasks.start(reload())

    def _open(self, config: Config) -> Backend:
        """A classifier on the open model, if it is that of the configuration, or on a newly opened one."""
        # what may wait is limited at the door, before anything of a request is computed
        config = config.changed(runtime=config.runtime.changed(max_waiting=1 << 20))
        old, ledger = self.loaded, Ledger(self._step)
        with ExitStack() as undo:
            if old is not None and self._is_open(old, config):
                model = old.model
            else:
                models = OpenModels(offline=self.offline, on_load=self.on_load)
                model = open_model(config, models, ledger=ledger)
                undo.callback(model.close)
            classifier = undo.enter_context(Classifier.from_config(config, model=model, on_step=self._step))
            ledger = Ledger(self._step)
            cost = classifier.measure_turns()
            ledger.step("measure turns", f"a decode costs as much as {cost.fixed_tokens:.0f} tokens more")
            backend = Backend(classifier)
            undo.pop_all()
        for mistake in classifier.warnings:
            log.warning("%s", mistake)
        return backend

    def _is_open(self, old: Backend, config: Config) -> bool:
        """Whether the open model is that of a configuration: the same file, opened alike, with all layers needed."""
        model, runtime, n_needed = old.model, config.runtime, layers_needed(config)
        with suppress(OSError):  # else opening it tells what is wrong
            return (
                stamps_of([find_model(config.model, offline=self.offline)]) == [model.header.stamp]
                and old.classifier.config.runtime.n_gpu_layers == runtime.n_gpu_layers
                and model.opened_with == runtime.of_model
                and (model.file.n_first == 0 or 0 < n_needed <= model.file.n_first)
            )
        return False

    def _step(self, name: str, what: str, ms: float) -> None:
        if self.on_step and self.state == "loading":
            self.on_step(name, what, ms)
        if self.state == "draining":
            raise self._refusal()

    async def close(self) -> None:
        """Close everything, after the last answer."""
        self.state = "draining"
        await self._tasks.ended()
        if self.loaded is not None:
            await self.loaded.close()
            self.loaded = None
