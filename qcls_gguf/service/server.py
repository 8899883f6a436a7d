"""The process: its socket, its connections, its signals, its start and its end."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from time import monotonic

import httptools
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import ConfigError
from ..system.stops import end_with
from .app import App
from .lifecycle import Lifecycle, ServiceSettings, log

_MOST_HEAD_BYTES = 65_536
"""of a request's head, or of its trailers, before they are whole"""


def serve(lifecycle: Lifecycle, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP.

    on_ready(address) is called when requests are answered. While the model loads `/ready` says so. Raises ConfigError
    for an address that cannot be used, and QclsError where the start fails.
    """
    handler = logging.StreamHandler(sys.stderr)
    form = "time=%(asctime)s level=%(levelname)s %(message)s"
    handler.setFormatter(logging.Formatter(form, "%Y-%m-%dT%H:%M:%S%z"))
    for name, level in (("qcls_gguf", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with _listener(lifecycle.settings) as listener, runner:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        # how long the engine's thread may hold the interpreter while a request waits to be read or answered
        sys.setswitchinterval(0.0005)
        runner.run(_serve(lifecycle, listener, lambda: on_ready(address)))


async def _serve(lifecycle: Lifecycle, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    # HTTP/1.1 only; the service itself handles signals and the log. Idle connections are kept longer than clients keep
    # them: so clients end them, and no request meets a closed one.
    config = uvicorn.Config(
        App(lifecycle), http=_Protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, backlog=2048, timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def stop(number: int) -> None:
        if lifecycle.state == "loading":
            end_with(number)
        if stopping.is_set():  # told twice: now
            server.should_exit = server.force_exit = True
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    loading = asyncio.create_task(lifecycle.load())
    loading.add_done_callback(lambda task: stopping.set() if task.cancelled() or task.exception() else on_ready())
    draining = asyncio.create_task(_drain(lifecycle, server, stopping))
    try:
        await server.serve(sockets=[listener])
    finally:
        draining.cancel()
        lifecycle.state = "draining"
        for request in list(server.server_state.tasks):  # after a second signal
            request.cancel()
        await loading
        await lifecycle.close()


async def _drain(lifecycle: Lifecycle, server: uvicorn.Server, stopping: asyncio.Event) -> None:
    """When told to stop: refuse new requests, answer those accepted before, and end, after the grace at the latest."""
    await stopping.wait()
    lifecycle.state = "draining"
    grace_s = lifecycle.settings.grace_s
    log.info("told to end; requests to answer: %d", lifecycle.n_requests)
    end = monotonic() + grace_s
    while lifecycle.n_requests and monotonic() < end:
        await asyncio.sleep(0.01)
    if n := lifecycle.n_requests:
        log.warning("%d requests were not answered within the grace of %g s", n, grace_s)
    server.should_exit = True


def _listener(settings: ServiceSettings) -> socket.socket:
    """A socket that listens. Raises ConfigError."""
    host, port = settings.host, settings.port
    what: object
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as e:
        what = ": something is there already; name another `port`, 0 for a free one"
        what = f"{os.strerror(e.errno)}{what}" if e.errno == errno.EADDRINUSE else e.strerror or e
        raise ConfigError(f"`port` {port} of `host` {host}: cannot listen there: {what}") from None


# --- connections -----------------------------------------------------------------------------------------------------


class _Protocol(HttpToolsProtocol):
    """A connection with a limit on heads; offers of other protocols are answered as if they were not there."""

    _n_pending = 0
    """bytes since a part of a request was whole"""

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._unset_keepalive_if_required()
        self._n_pending += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:  # before the body: again, as if no other protocol were offered
            own = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
            head = b"%s %s HTTP/1.1\r\n%s\r\n" % (self.parser.get_method(), self.url, b"".join(own))
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(head + data[e.args[0] :])
        except httptools.HttpParserError as e:
            why = e.__context__ if isinstance(e, httptools.HttpParserCallbackError) else e
            self.send_400_response(f"invalid HTTP: {why}")
            return
        if self._n_pending > _MOST_HEAD_BYTES:
            self.send_400_response(f"a head, or trailers, of more than {_MOST_HEAD_BYTES:,} bytes")

    def on_headers_complete(self) -> None:
        """Begin a request, unless it offers another protocol."""
        self._n_pending = 0
        names = [name for name, _ in self.headers]
        if names.count(b"host") != 1 and self.parser.get_http_version() == "1.1":
            raise ValueError("a request of HTTP/1.1 has one header `host`")
        if self.parser.should_upgrade() and b"upgrade" not in names:
            raise ValueError("this service is no proxy")
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand on a part of a body."""
        self._n_pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if not self.parser.should_upgrade():
            super().on_message_complete()
