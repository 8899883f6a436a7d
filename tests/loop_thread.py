"""An event loop in a thread of its own, for tests that ask a batcher as tasks do and wait as threads do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from qcls_gguf.engine.batcher import Batcher

R = TypeVar("R")
T = TypeVar("T")


class LoopThread:
    """Runs as long as the block that it is used in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def submit(
        self, batcher: Batcher[Any, R], items: Sequence[Any], deadline_s: float | None = None
    ) -> asyncio.Future[Sequence[R]]:
        """Ask; the items are listed when this returns. Raises what the batcher raises at once."""
        return self.run(lambda: batcher.submit_future(self._loop, items, deadline_s))

    def result(self, future: asyncio.Future[T]) -> T:
        """What it comes to. Raises what it raises."""

        async def awaited() -> T:
            return await future

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(20)

    def run(self, what: Callable[[], T]) -> T:
        """What something returns in the loop's thread."""

        async def done() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(20)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
