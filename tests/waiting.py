"""Waiting for what another thread or process does."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qcls_gguf.core.queue import Executor, Job


def until(true: Callable[[], object], *, most_s: float = 10.0) -> None:
    """Look again and again; AssertionError where it has not come to that after so many seconds."""
    end = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < end, f"waited for {most_s} seconds in vain"
        time.sleep(0.005)


@contextmanager
def occupied(executor: Executor) -> Iterator[None]:
    """The executor is busy with an action of ours as long as the block runs, so that whatever is asked waits."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(60)

    job = Job[None](action=hold)
    executor.put(job)
    assert begun.wait(10)
    try:
        yield
    finally:
        go_on.set()
        job.result()
