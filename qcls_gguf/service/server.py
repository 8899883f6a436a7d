"""The process: its socket, its connections, its signals, its start and its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import httptools
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ..config.schema import Config
from ..errors import ConfigError
from .app import build_app
from .asking import json_bytes
from .exchange import log, set_up_log
from .lifecycle import Lifecycle, OnStep, StoppedError
from .refusal import RefusedError, openai_words
from .settings import ServiceSettings

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""longer than clients keep idle connections, so that they end them and no request meets a closed one"""
_SWITCH_INTERVAL_S = 0.0005
"""how long the engine's thread may hold the interpreter while a request waits to be read or answered"""


MOST_HEAD_BYTES = 65_536


class Protocol(HttpToolsProtocol):
    """A connection with a limit on heads and trailers, and with answers to requests that offer HTTP/2.

    httptools limits neither, and ends a request that offers another protocol, as Java's HttpClient and
    curl may do, after its head, without its body. Such a request is answered in HTTP/1.1, as RFC 9110, section
    7.8 allows: its head is parsed once more, without the header `Upgrade`, and then what came after it. A head or
    trailers that are too long end the connection with 400, before they are whole.
    """

    _n_head_bytes = 0
    """of the head, or of the trailers, that are not whole yet"""
    _has_head = False
    """of the request that is received"""
    _n_parsed: int | None = None
    """bytes of the data at hand up to the end of a head that offers another protocol"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._requests: deque[RequestResponseCycle] = deque()  # not answered yet; uvicorn's `cycle` is the last one

    def connection_lost(self, exc: Exception | None) -> None:
        """For the event loop."""
        super().connection_lost(exc)
        for request in self._requests:
            request.disconnected = request.disconnected or not request.response_complete
            request.message_event.set()

    def data_received(self, data: bytes) -> None:
        """For the event loop."""
        self._n_head_bytes += len(data)
        super().data_received(data)
        rest = memoryview(data)
        while self._n_parsed is not None:
            rest, self._n_parsed = rest[self._n_parsed :], None
            super().data_received(self._head_without_offer())
            if not self.transport.is_closing():
                super().data_received(rest)  # type: ignore[arg-type]  # any buffer, which is not copied
        if self._n_head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head or the trailers of a request have more than {MOST_HEAD_BYTES} bytes.")

    def send_400_response(self, msg: str) -> None:
        """Refuse, in the service's words, what is no HTTP."""
        log.warning("%s", msg)
        body = json_bytes(openai_words(RefusedError(400, "malformed", msg)))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """For uvicorn: whether it calls `handle_websocket_upgrade` instead of serving the request that was parsed."""
        return bool(self.scope["method"] != "CONNECT")

    def handle_websocket_upgrade(self) -> None:
        """For uvicorn, when the head of a request that offers another protocol has come."""
        error = sys.exception()
        assert isinstance(error, httptools.HttpParserUpgrade)
        self._n_parsed = error.args[0]
        self.parser = httptools.HttpRequestParser(self)  # the old one ignores what follows on a connection that ends
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def _unsupported_upgrade_warning(self) -> None:
        """For uvicorn, after a CONNECT: what follows it is not HTTP and is not read."""
        self.cycle.keep_alive = False

    def _head_without_offer(self) -> bytes:
        """The head that was parsed last, without the protocols that it offers."""
        version = self.scope["http_version"].encode()
        lines = [b"%s %s HTTP/%s" % (self.scope["method"].encode(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))

    def on_message_begin(self) -> None:
        """For the parser."""
        self._has_head = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """For the parser, also for a trailer."""
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """For the parser."""
        self._has_head = True
        self._n_head_bytes = 0
        super().on_headers_complete()
        while self._requests and self._requests[0].response_complete:
            self._requests.popleft()
        if self.cycle is not None and (not self._requests or self._requests[-1] is not self.cycle):
            self._requests.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """For the parser, with some of a body."""
        self._n_head_bytes = 0
        super().on_body(body)


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

    async def load() -> None:
        await lifecycle.load()
        on_ready()

    async def reload() -> None:
        with contextlib.suppress(RefusedError):  # which is logged
            await lifecycle.reload()

    def start_reload() -> None:
        task = asyncio.create_task(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def stop() -> None:
        if stopping.is_set():  # asked twice: now
            server.should_exit = server.force_exit = True
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, start_reload)
    loading = asyncio.create_task(load())
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
