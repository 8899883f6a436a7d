"""Prompt sets that are made at run time and kept for repeated questions."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic

from ..core.handle import PromptHandle
from ..errors import BusyError, PlanError

MOST_SETS = 256


class SpaceError(BusyError):
    """Another prompt set does not fit beside those in use."""


@dataclass(slots=True, eq=False)
class _Entry:
    handle: PromptHandle
    n_users: int = 0


class SetCache:
    """The prompt sets that requests to one classifier made. For the thread of the event loop.

    Sets that nobody uses are evicted, least recently used first, when there are too many or when another does not fit.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._changing = asyncio.Lock()
        """held while sets are made and closed, which other threads do"""
        self._tasks = set[asyncio.Task[None]]()
        """that make sets"""
        self._freed = asyncio.Event()
        """set, and replaced by another, when a set is used no more or closed"""
        self.n_made = self.n_evicted = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def using(
        self, key: Hashable, make: Callable[[], PromptHandle], waits_s: float = 0.0
    ) -> AsyncIterator[PromptHandle]:
        """A context with the set of a key, which stays open inside; make() makes it in another thread.

        waits_s: how long to wait until sets in use make space; 0 for callers that use another set, because callers
        could wait for each other forever. Raises on entry what make raises, such as PlanError for more than fits if no
        other set is in use, and SpaceError if it does not fit beside those in use.
        """
        until = monotonic() + waits_s
        while (entry := self._entries.get(key)) is None:  # a new set may be evicted before it is used
            freed = self._freed
            try:
                task = asyncio.create_task(self._make(key, make))  # which others may wait for, too
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                await asyncio.shield(task)
            except PlanError as e:  # it does not fit
                if not (freed.is_set() or any(other.n_users for other in self._entries.values())):
                    raise
                if (left_s := until - monotonic()) <= 0:
                    raise SpaceError(str(e)) from None
                with suppress(TimeoutError):
                    await asyncio.wait_for(freed.wait(), left_s)
        self._entries.move_to_end(key)
        entry.n_users += 1
        try:
            yield entry.handle
        finally:
            entry.n_users -= 1
            self._free()

    def _free(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()

    async def _make(self, key: Hashable, make: Callable[[], PromptHandle]) -> None:
        """Make the set of a key unless it is there. Raises what make raises."""
        async with self._changing:
            if key in self._entries:
                return
            while len(self._entries) >= MOST_SETS and await self._evict_oldest():
                pass
            while key not in self._entries:
                try:
                    self._entries[key] = _Entry(await asyncio.to_thread(make))
                except PlanError:  # it does not fit
                    if not await self._evict_oldest():
                        raise
            self.n_made += 1

    async def _evict_oldest(self) -> bool:
        """Evict the least recently used set that is not in use. Returns whether there was one."""
        for key, entry in self._entries.items():
            if entry.n_users == 0:
                del self._entries[key]
                self.n_evicted += 1
                await asyncio.to_thread(entry.handle.close)
                self._free()
                return True
        return False

    async def close(self) -> None:
        """Wait until no set is being made; the sets end with their classifier."""
        while self._tasks:
            await asyncio.wait(self._tasks)
