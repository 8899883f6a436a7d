"""Child processes: programs whose output is kept, and methods whose native libraries may crash.

A method in a process of its own is asked over a pair of sockets, in pickled tuples (function, arguments …); the first
one opens it. An answer is what the function returned, or an error to raise. The child ends when its side of the pair is
closed, which happens as well where this process dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

from ..errors import QclsError
from . import Peers
from .method import Answer, DiedError, Method, PeerError, Workload

_END_S = 10.0
"""What a process is given to end, before it is killed."""


class Program:
    """A running program, which an interrupt from the keyboard does not reach."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the program runs
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    def state(self) -> str:
        """How it ended, or that it runs, and the last three lines that it wrote."""
        code = self.process.poll()
        if code is None:
            state = "its process goes on"
        elif code < 0:
            names = {each.value: each.name for each in signal.Signals}
            state = f"its process died of {names.get(-code, f'signal {-code}')}"
        else:
            state = f"its process ended with exit code {code}"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 2000))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").split("\n")]
        return f"{state}: {' / '.join([line for line in lines if line][-3:]) or 'it wrote nothing'}"

    def wait(self) -> None:
        """Wait for a program that should be ending."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)

    def close(self) -> None:
        """End it; kill it where that takes long. May be called again."""
        self.process.terminate()
        self.wait()
        self.process.kill()
        self.process.wait()
        self._log.close()


class InChild(Method):
    """Another method in a child process. Its times are those of the request in the child, without the sockets."""

    def __init__(self, open_method: Callable[[Workload, Peers], Method], workload: Workload, peers: Peers) -> None:
        """open_method: something that a new process can import."""
        self._connection, theirs = Pipe()
        with theirs:  # closed here, so that the child's death is the end of what can be read
            code = f"from {__name__} import serve; serve({theirs.fileno()})"
            self._program = Program([sys.executable, "-c", code], [theirs.fileno()])
        try:
            self._ask(open_method, replace(workload, classifier=None, stock_model=None), peers)
        except BaseException:
            self.close()
            raise

    def _ask(self, *message: object) -> Any:
        """What one of its functions returns. Raises AbsentError and PeerError as it does, DiedError where it died."""
        try:
            self._connection.send(message)
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._program.wait()
            raise DiedError(self._program.state()) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        return cast("list[Answer]", self._ask("ask", query, exact))

    def timed(self, query: str) -> float:
        return float(self._ask("timed", query))

    def remarks(self) -> list[str]:
        where = "timed in a process of its own"
        with suppress(PeerError):
            return [*self._ask("remarks"), where]
        return [where]

    def close(self) -> None:
        self._connection.close()
        self._program.close()


def serve(fd: int) -> None:
    """The child's side: does what the other process asks, until that closes its side."""
    connection: Connection[Any, Any] = Connection(fd)
    method: Method | None = None
    with suppress(EOFError):
        while True:
            called, *arguments = connection.recv()
            answer: object
            try:
                if method is None:
                    method, answer = called(*arguments), None
                else:
                    answer = getattr(method, called)(*arguments)
            except QclsError as e:
                answer = e
            except Exception as e:  # a peer is others' code, which may raise anything
                answer = PeerError(f"{type(e).__name__}: {e}")
            connection.send(answer)
