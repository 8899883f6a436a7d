"""A real `qcls-gguf serve` in a process of its own, for tests that speak HTTP with it."""

import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx
from commands import COMMAND, ROOT, change

BIN = Path(sys.executable).parent
JSON = {"content-type": "application/json"}


class Server:
    """A running service. Its standard error is in `lines`."""

    def __init__(self, *options: str, config: Path | str = "configs/mission.yaml", port: int = 0) -> None:
        command = [COMMAND, "serve", "--config", str(config), "--port", str(port), "-t", "1", *options]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, encoding="utf-8")
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._ready.wait(300)
        serving = [line for line in self.lines if line.startswith("serving at ")]
        if not serving:
            self.stop(signal.SIGKILL)
            raise AssertionError("".join(self.lines))
        self.address = serving[0].split()[-1]
        self.http = httpx.Client(base_url=self.address, timeout=60)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("serving at "):
                self._ready.set()
        self._ready.set()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def classify(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/classify", json=body)

    def metric(self, name: str) -> float:
        """The value of a metric, with its labels as they are written."""
        lines = self.http.get("/metrics").text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        if hasattr(self, "http"):
            self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def exchange(server: Server, data: bytes, *, half_close: bool = False) -> bytes:
    """What comes back for raw bytes, until the server ends the connection or an answer is whole."""
    with server.connect() as connection:
        with suppress(OSError):  # the server may have answered and ended the connection before all is sent
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        return received(connection)


def received(connection: socket.socket, n_answers: int = 1) -> bytes:
    """So many answers, or what came before the connection was closed."""
    data = b""
    while n_answers > len(list(answers(data))) and (part := connection.recv(65536)):
        data += part
    return data


def answers(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(status, body) of each whole answer."""
    while b"\r\n\r\n" in data:
        head, _, rest = data.partition(b"\r\n\r\n")
        lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        n = lengths[0] if lengths else 0
        if len(rest) < n:
            return
        yield int(head.split()[1]), rest[:n]
        data = rest[n:]


def raw(body: bytes, *headers: str) -> bytes:
    """A request as bytes."""
    lines = ["POST /v1/classify HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
    if not any(header.startswith("content-type") for header in headers):
        lines.append("content-type: application/json")
    return "\r\n".join([*lines, "", ""]).encode() + body


def mission_with(folder: Path, **keys: Any) -> Path:
    """A copy of configs/mission.yaml with other top-level keys."""
    return change(Path(shutil.copy(ROOT / "configs" / "mission.yaml", folder)), **keys)
