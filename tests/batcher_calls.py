"""Work for a batcher, and calls that come while it works."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from waiting import until

from qcls_gguf.engine.batcher import Batcher
from qcls_gguf.errors import PlanError


class Interrupt(BaseException):
    """As KeyboardInterrupt, for a thread that is not the main one."""


class Work:
    """Answers a query by its capitals; holds its first turn until told to go on."""

    def __init__(self) -> None:
        self.turns: list[list[str]] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def __call__(self, queries: Sequence[str]) -> list[str]:
        self.turns.append(list(queries))
        if len(self.turns) == 1:
            self.began.set()
            assert self.go_on.wait(10)
        if "stop" in queries:
            raise Interrupt
        for query in queries:
            if query.startswith("bad"):
                raise PlanError(f"{query} is bad")
        return [query.upper() for query in queries]


def gather(
    calls: Sequence[Sequence[str]], *, max_batch: int = 4, max_waiting: int = 64
) -> tuple[Work, list[Future[Sequence[str]]]]:
    """The first call begins; the others come one after the other while it works; then it goes on."""
    work = Work()
    batcher = Batcher(work, max_batch=max_batch, max_waiting=max_waiting)
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(batcher.submit, calls[0])]
        assert work.began.wait(10)
        for call in calls[1:]:
            n = len(batcher._waiting)
            futures.append(pool.submit(batcher.submit, call))
            until(lambda n=n, last=futures[-1]: len(batcher._waiting) > n or last.done())  # type: ignore[misc]
        work.go_on.set()
    return work, futures
