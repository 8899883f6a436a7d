"""Prompt sets that requests ask for beside the configured one: made when first wanted, kept, and evicted."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from ..classifier import Classifier
from ..core.handle import LoadedPrompts
from ..errors import PlanError
from .refusal import RefusedError

T = TypeVar("T")
MOST_SETS = 256
_RETRY_MS = 1000.0
Make = Callable[[Classifier], LoadedPrompts]


@dataclass(slots=True, eq=False)
class _Entry:
    loaded: LoadedPrompts
    n_users: int = 0


class SetCache:
    """The prompt sets of one classifier that requests made. For the thread of the event loop.

    Sets that nobody uses go least recently used first, when there are too many or when the engine has no room. One
    that makes the engine compute more for everybody, as exact scorings do, goes when its last user is done.
    """

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._building: dict[Hashable, asyncio.Task[None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qcls-gguf sets")
        self._n_used = self._n_closing = 0
        self._freed = asyncio.Event()
        self.n_found = self.n_made = self.n_evicted = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def using(self, key: Hashable, make: Make, waits_s: float = 0.0) -> AsyncIterator[LoadedPrompts]:
        """The set under a key, which stays as long as it is used; make(classifier) makes it in another thread.

        waits_s: how long it may wait where the sets in use leave it no room; who uses another set must not wait, as all
        could wait for each other. Entering it raises what make raises, and RefusedError (503, `room`) where there is no
        room.
        """
        entry = self._entries.get(key)
        if entry is not None:
            self.n_found += 1
            self._entries.move_to_end(key)
        else:
            entry = await self._made(key, make, monotonic() + waits_s)
        self._n_used += 1
        entry.n_users += 1
        try:
            yield entry.loaded
        finally:
            entry.n_users -= 1
            self._n_used -= 1
            self._freed.set()
            if entry.n_users == 0 and is_exact(entry.loaded) and not is_exact(self._classifier.configured):
                await self._evict(key)

    async def _made(self, key: Hashable, make: Make, until: float) -> _Entry:
        """The entry of a key that has none yet, made as soon as there is room.

        Who asks for it meanwhile waits for the same one, and is not cancelled with the first.
        """
        while (entry := self._entries.get(key)) is None:  # it may go again before it is used
            if key not in self._building:
                self._building[key] = asyncio.create_task(self._make(key, make))
                self._building[key].add_done_callback(lambda done: self._built(key, done))
            try:
                await asyncio.shield(self._building[key])
            except RefusedError as refusal:
                left_s = until - monotonic()
                # who uses, makes or closes a set will leave room
                is_room_to_come = self._n_used or self._building or self._n_closing
                if refusal.reason != "room" or left_s <= 0 or not is_room_to_come:
                    raise
                self._freed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), left_s)
        return entry

    def _built(self, key: Hashable, task: asyncio.Task[None]) -> None:
        del self._building[key]
        # who asked may have left, and then nobody else looks at the exception
        has_failed = task.cancelled() or task.exception() is not None
        if not (has_failed and (self._n_used or self._n_closing)):  # else who waits would only fail as well
            self._freed.set()

    async def _make(self, key: Hashable, make: Make) -> None:
        while len(self._entries) >= MOST_SETS and await self._evict_oldest():
            pass
        while True:
            try:
                loaded = await self._in_thread(lambda: make(self._classifier))
                break
            except PlanError as e:  # no room
                if not await self._evict_oldest():
                    raise RefusedError(503, "room", f"{e}", retry_ms=_RETRY_MS) from None
        self.n_made += 1
        self._entries[key] = _Entry(loaded)

    async def _evict_oldest(self) -> bool:
        for key, entry in self._entries.items():
            if entry.n_users == 0:
                await self._evict(key)
                return True
        return False

    async def _evict(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.n_evicted += 1
            self._n_closing += 1
            try:
                await self._in_thread(entry.loaded.close)
            finally:
                self._n_closing -= 1
                self._freed.set()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """End the thread; the sets go with their classifier."""
        self._thread.shutdown()


def is_exact(loaded: LoadedPrompts) -> bool:
    """Whether a prompt set makes every decode compute the model's head."""
    return loaded.compiled.exact
