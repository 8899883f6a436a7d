"""The process: its socket, its signals, its start and its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import uvicorn
import uvloop

from ..config.schema import Config
from ..errors import ConfigError
from .app import build_app
from .exchange import log, set_up_log
from .lifecycle import Lifecycle, OnStep, StoppedError
from .protocol import Protocol
from .refusal import RefusedError
from .settings import ServiceSettings

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""longer than clients keep idle connections, so that they end them and no request meets a closed one"""
_SWITCH_INTERVAL_S = 0.0005
"""how long the engine's thread may hold the interpreter while a request waits to be read or answered"""


class _Server(uvicorn.Server):
    """uvicorn's, which leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    settings: ServiceSettings,
    configure: Callable[[], Config],
    *,
    offline: bool = False,
    on_step: OnStep | None = None,
    on_load: Callable[[float], None] | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, and read the configuration anew on SIGHUP.

    configure() gives the configuration; on_ready(address) is called when requests are answered. While the model loads
    `/ready` says so. Raises ConfigError for an address that cannot be used, and QclsError where the start fails.
    """
    set_up_log(settings.log_format)
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        with _listening(settings) as (listener, address), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            lifecycle = Lifecycle(configure, settings, offline=offline, on_step=on_step, on_load=on_load)
            runner.run(_serve(settings, lifecycle, listener, lambda: on_ready(address) if on_ready else None))
    finally:
        sys.setswitchinterval(before)


async def _serve(
    settings: ServiceSettings, lifecycle: Lifecycle, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    server = _Server(
        uvicorn.Config(
            build_app(lifecycle, settings),
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            proxy_headers=False,
        )
    )
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.create_task(_reload(lifecycle))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def stop() -> None:
        if stopping.is_set():  # asked twice: now
            server.should_exit = server.force_exit = True
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    loading = asyncio.create_task(_load(lifecycle, on_ready))
    loading.add_done_callback(lambda task: stopping.set() if task.exception() else None)
    draining = asyncio.create_task(_drain(settings, lifecycle, server, stopping))
    try:
        await server.serve(sockets=[listener])
    finally:
        draining.cancel()
        lifecycle.drain()
        for request in list(server.server_state.tasks):  # after a second signal
            request.cancel()
        with contextlib.suppress(StoppedError):
            await loading
        await lifecycle.close()


async def _load(lifecycle: Lifecycle, on_ready: Callable[[], None]) -> None:
    await lifecycle.load()
    on_ready()


async def _reload(lifecycle: Lifecycle) -> None:
    with contextlib.suppress(RefusedError):  # which is logged
        await lifecycle.reload()


async def _drain(settings: ServiceSettings, lifecycle: Lifecycle, server: _Server, stopping: asyncio.Event) -> None:
    """When told to stop: refuse new requests, answer those accepted before, and end, after the grace at the latest."""
    await stopping.wait()
    lifecycle.drain()
    log.info("told to end; requests to answer: %d", lifecycle.admission.n_requests)
    end = monotonic() + settings.grace_s
    while lifecycle.admission.n_requests and monotonic() < end:
        await asyncio.sleep(0.01)
    if n := lifecycle.admission.n_requests:
        log.warning("%d requests were not answered within the grace of %g s", n, settings.grace_s)
    server.should_exit = True


@contextlib.contextmanager
def _listening(settings: ServiceSettings) -> Iterator[tuple[socket.socket, str]]:
    """A bound socket, and its address as a client writes it. Raises ConfigError."""
    if settings.uds is not None:
        yield from _listening_uds(settings.uds)
        return
    try:
        listener = _bound(settings.host, settings.port)
    except OSError as e:
        place = f"`port` {settings.port} of `host` {settings.host}"
        remedy = (
            ": another process listens there; name another `port`, 0 for a free one"
            if e.errno == errno.EADDRINUSE
            else ""
        )
        raise ConfigError(f"{place}: cannot listen there: {e.strerror or e}{remedy}") from None
    with listener:
        host, port = listener.getsockname()[:2]
        yield listener, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address. Raises OSError."""
    (family, *_, address) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def _listening_uds(path: Path) -> Iterator[tuple[socket.socket, str]]:
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        try:
            _remove_stale(path)
            listener.bind(str(path))
            os.chmod(path, 0o660)
        except OSError as e:
            raise ConfigError(f"`uds` {path}: cannot listen there: {e.strerror or e}") from None
        try:
            yield listener, f"unix:{path}"
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens at any more, as a process that was killed leaves it."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"`uds` {path}: is there and no socket: name another file, or remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
