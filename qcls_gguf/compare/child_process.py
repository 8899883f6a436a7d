"""A method in a process of its own: a crash of its native libraries ends that process, and nothing else.

The two processes talk over a pair of sockets, in pickled tuples. This one sends (what opens the method, workload,
peers), and then (function, argument …); it gets back ("done", what that returned), or the word for an error and its
message. The child ends when its side of the pair is closed, which happens as well where this process dies. Only opening
is another request than the rest: until then the child has no method.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import perf_counter_ns
from typing import Any, cast

from . import Peers
from .method import AbsentError, Answer, DiedError, Method, PeerError, Workload

_END_S = 5.0
"""What a child is given to free its model, before it is killed."""
_ERRORS: dict[str, type[Exception]] = {"absent": AbsentError, "failed": PeerError}


class InChild(Method):
    """Another method in a child process.

    Its times are those of the request in the child, without the sockets. Where its tokens are ours, the time that they
    take here is added.
    """

    def __init__(
        self,
        open_method: Callable[[Workload, Peers], Method],
        workload: Workload,
        peers: Peers,
        *,
        needs_tokens: bool = False,
    ) -> None:
        """open_method: what a new process can import; needs_tokens: whether it takes our tokens of a query."""
        self._workload, self._needs_tokens = workload, needs_tokens
        self._connection, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the child runs
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt from the keyboard is for this process
            )
        finally:
            theirs.close()  # so that the child's death is the end of what can be read here
        tokens = {
            (prompt.compiled.name, query): workload.tokens(prompt.compiled, query)
            for prompt in workload.prompts
            for query in workload.queries
            if needs_tokens
        }
        try:
            self.comparable = self._ask(open_method, replace(workload, classifier=None, known_tokens=tokens), peers)
        except BaseException:
            self.close()
            raise

    def _ask(self, *message: object) -> Any:
        """What one of its functions returns. Raises AbsentError and PeerError as it does, DiedError where it died."""
        try:
            self._connection.send(message)
            word, found = self._connection.recv()
        except (EOFError, OSError):
            raise DiedError(self._how_it_ended()) from None
        if word != "done":
            raise _ERRORS[word](found)
        return found

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "its process closed its socket, and goes on"
        died = f"its process ended with exit code {code}"
        if code < 0:
            names = {each.value: each.name for each in signal.Signals}
            died = f"its process died of {names.get(-code, f'signal {-code}')}"
        last = last_words(self._log)
        return f"{died}: {last}" if last else died

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        return cast("list[Answer]", self._ask("ask", query, exact))

    def timed(self, query: str) -> float:
        before = perf_counter_ns()
        if self._needs_tokens:
            for prompt in self._workload.prompts:
                self._workload.tokens(prompt.compiled, query)
        here_ms = (perf_counter_ns() - before) / 1e6
        return here_ms + float(self._ask("timed", query))

    def remarks(self) -> list[str]:
        where = "timed in a process of its own" + ", with our tokenizer's time added" * self._needs_tokens
        with suppress(PeerError):
            return [*self._ask("remarks"), where]
        return [where]

    def close(self) -> None:
        self._connection.close()
        end(self._process, _END_S)
        self._log.close()


def end(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """Wait for a process that was told to end; kill it where it takes longer."""
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_words(log: Any) -> str:
    """The last three lines of a process's output, in one; empty where it wrote nothing."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
    lines = [line.strip() for line in log.read().decode(errors="replace").split("\n")]
    return " / ".join([line for line in lines if line][-3:])


def serve(fd: int) -> None:
    """The child's side: does what the other process asks, until that closes its side."""
    connection: Connection[Any, Any] = Connection(fd)
    method: Method | None = None
    with suppress(EOFError):
        while True:
            called, *arguments = connection.recv()
            try:
                if method is None:
                    method = called(*arguments)
                    found: object = method.comparable
                else:
                    found = getattr(method, called)(*arguments)
            except AbsentError as e:
                connection.send(("absent", str(e)))
            except Exception as e:  # a peer is others' code, which may raise anything
                connection.send(("failed", str(e) if isinstance(e, PeerError) else f"{type(e).__name__}: {e}"))
            else:
                connection.send(("done", found))
    if method is not None:
        method.close()
