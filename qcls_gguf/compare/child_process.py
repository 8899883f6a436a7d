"""A method in a process of its own: a crash of its native libraries ends that process, and nothing else.

The two processes talk over a pair of sockets, in pickled tuples. This one sends the method, not started yet, and then
(function, argument …); it gets back ("done", what that returned), or the word for an error and its message. The
child ends when its side of the pair is closed, which happens as well where this process dies.
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import perf_counter_ns
from typing import Any, cast

from ..classifier import Classifier
from ..prompts.compiled import Prompt
from .method import AbsentError, Answer, DiedError, Method, PeerError, Workload

_END_S = 5.0
"""What a child is given to free its model, before it is killed."""
_ERRORS: dict[str, type[Exception]] = {"absent": AbsentError, "failed": PeerError}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildWorkload(Workload):
    """A workload without our classifier, which stays where it is."""

    new_tokens: dict[tuple[str, str], tuple[int, list[int]]]
    """by prompt and query, for a method that has no tokenizer of its own"""

    def tokens(self, prompt: Prompt, query: str) -> tuple[int, list[int]]:
        """As our tokenizer gave them in the other process."""
        return self.new_tokens[prompt.name, query]


class InChild(Method):
    """Another method, not started yet, in a child process.

    Its times are those of the request in the child, without the sockets. Where its tokens are ours, the time that they
    take here is added.
    """

    def __init__(self, method: Method) -> None:
        super().__init__(method.workload)
        self.name, self.about = method.name, method.about  # type: ignore[misc]  # one class stands for several methods
        self.comparable = method.comparable
        self._method = method
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._connection, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the child runs
        code = f"from {__name__} import serve; serve({theirs.fileno()})"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt from the keyboard is for this process
            )
        finally:
            theirs.close()  # so that the child's death is the end of what can be read here
        sent = copy.copy(self._method)
        sent.workload = self._child_workload()
        self._exchange(sent)
        self._ask("start")

    def _child_workload(self) -> ChildWorkload:
        workload = self.workload
        tokens = {
            (prompt.compiled.name, query): workload.tokens(prompt.compiled, query)
            for prompt in workload.prompts
            for query in workload.queries
            if not self._method.own_tokenizer
        }
        return ChildWorkload(
            classifier=cast(Classifier, None),  # of no method that runs in a child
            prompts=workload.prompts,
            queries=workload.queries,
            model_path=workload.model_path,
            runtime=workload.runtime,
            n_threads=workload.n_threads,
            n_gpu_layers=workload.n_gpu_layers,
            n_longest=workload.n_longest,
            new_tokens=tokens,
        )

    def _ask(self, called: str, *arguments: Any) -> Any:
        """What one of its functions returns. Raises AbsentError and PeerError as it does, DiedError where it died."""
        return self._exchange((called, *arguments))

    def _exchange(self, message: object) -> Any:
        try:
            self._connection.send(message)
            word, found = self._connection.recv()
        except (EOFError, OSError):
            raise DiedError(self._how_it_ended()) from None
        if word != "done":
            raise _ERRORS[word](found)
        return found

    def _how_it_ended(self) -> str:
        assert self._process is not None, "it was started"
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "its process closed its socket, and goes on"
        died = f"its process died of {_signal_name(-code)}" if code < 0 else f"its process ended with exit code {code}"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        words = self._log.read().decode(errors="replace").split("\n")
        last = " / ".join([line.strip() for line in words if line.strip()][-3:])
        return f"{died}: {last}" if last else died

    def classify(self, query: str) -> list[Answer]:
        return cast("list[Answer]", self._ask("classify", query))

    def audit(self, query: str) -> list[Answer]:
        return cast("list[Answer]", self._ask("audit", query))

    def timed(self, query: str) -> float:
        before = perf_counter_ns()
        if not self._method.own_tokenizer:
            for prompt in self.workload.prompts:
                self.workload.tokens(prompt.compiled, query)
        here_ms = (perf_counter_ns() - before) / 1e6
        return here_ms + float(self._ask("timed", query))

    def remarks(self) -> list[str]:
        where = "timed in a process of its own"
        if not self._method.own_tokenizer:
            where += ", with our tokenizer's time added"
        with suppress(PeerError):
            return [*self._ask("remarks"), where]
        return [where]

    def close(self) -> None:
        if self._process is None:
            return
        self._connection.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._log.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def serve(fd: int) -> None:
    """The child's side: does what the other process asks, until that closes its side."""
    connection: Connection[Any, Any] = Connection(fd)
    method: Method | None = None
    with suppress(EOFError):
        while True:
            message = connection.recv()
            try:
                if method is None:
                    method, found = message, None
                else:
                    called, *arguments = message
                    found = getattr(method, called)(*arguments)
            except AbsentError as e:
                connection.send(("absent", str(e)))
            except Exception as e:  # a peer is others' code, which may raise anything
                connection.send(("failed", str(e) if isinstance(e, PeerError) else f"{type(e).__name__}: {e}"))
            else:
                connection.send(("done", found))
    if method is not None:
        method.close()
