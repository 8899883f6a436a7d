"""Methods that `compare` runs in a child process, which imports this file; some of them do not survive."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from qcls_gguf.compare import Peers
from qcls_gguf.compare.method import AbsentError, Answer, Method, Workload

TIMED_MS = 123.0


class Told(Method):
    """Answers nothing, and says where it ran and with which tokens; its times are made up."""

    def __init__(self, workload: Workload, peers: Peers) -> None:
        self._workload = workload

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        answers = []
        for n_cached, tokens in self._workload.inputs[query]:
            answers.append(Answer(label=str(os.getpid()), joint=tuple(map(float, (n_cached, *tokens)))))
        return answers

    def timed(self, query: str) -> float:
        return TIMED_MS

    def remarks(self) -> list[str]:
        return ["a remark from the child"]


class Failing(Method):
    """Does what ends it, or what it is told to raise, in one of its methods."""

    def __init__(self, where: str, how: str, workload: Workload, peers: Peers) -> None:
        self._workload, self._where, self._how = workload, where, how
        self._fail("open")

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        self._fail("answers" if exact else "rounds")
        return [Answer(label=None) for _ in self._workload.prompts]

    def _fail(self, where: str) -> None:
        if where != self._where:
            return
        match self._how:
            case "a null pointer":
                ctypes.string_at(0)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "a failed assertion":
                print("some.c:12: GGML_ASSERT(n > 0) failed", flush=True)
                os.abort()
            case "exit":
                sys.exit("no such device")
            case "absent":
                raise AbsentError("not to be had")
            case "an error":
                raise KeyError("blk.0")
