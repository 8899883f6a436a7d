"""Prompt sets that requests ask for beside the configured one: made when first wanted, kept, and let go."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from ..classifier import Classifier
from ..errors import PlanError
from ..loaded_prompts import LoadedPrompts
from .refusal import RefusedError

MOST_SETS = 256
_RETRY_MS = 1000.0


@dataclass(slots=True, eq=False)
class Entry:
    """A set that requests made."""

    loaded: LoadedPrompts
    n_users: int = 0


class SetUse:
    """A set in use, as an asynchronous context manager: a class, which takes half the time of a generator."""

    __slots__ = ("_entry", "_key", "_make", "_sets", "_waits_s")

    def __init__(
        self, sets: SetCache, key: Hashable, make: Callable[[Classifier], LoadedPrompts], waits_s: float
    ) -> None:
        self._sets = sets
        self._key = key
        self._make = make
        self._waits_s = waits_s

    async def __aenter__(self) -> LoadedPrompts:
        self._entry = await self._sets.begin(self._key, self._make, self._waits_s)
        return self._entry.loaded

    async def __aexit__(self, *_: object) -> None:
        await self._sets.end(self._key, self._entry)


class SetCache:
    """The prompt sets of one classifier that requests made. For the thread of the event loop.

    Sets that nobody uses go least recently used first, when there are too many or when the engine has no room. One
    that makes the engine compute more for everybody, as exact scorings do, goes when its last user is done.
    """

    def __init__(self, classifier: Classifier, most: int = MOST_SETS) -> None:
        self._classifier = classifier
        self._most = most
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._building: dict[Hashable, asyncio.Task[None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qcls-gguf sets")
        self._configured_exact = classifier.configured.active.prompts.exact
        self._n_used = self._n_closing = 0
        self._freed = asyncio.Event()
        self.n_found = self.n_made = self.n_let_go = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def using(self, key: Hashable, make: Callable[[Classifier], LoadedPrompts], waits_s: float = 0.0) -> SetUse:
        """The set under a key, which stays as long as it is used; make(classifier) makes it in another thread.

        waits_s: how long it may wait where the sets in use leave it no room; who uses another set must not wait, as all
        could wait for each other. Entering it raises what make raises, and RefusedError (503, `room`) where there is no
        room.
        """
        return SetUse(self, key, make, waits_s)

    async def begin(self, key: Hashable, make: Callable[[Classifier], LoadedPrompts], waits_s: float) -> Entry:
        """For SetUse: the entry of a key, in use from now on."""
        entry = self._entries.get(key)
        if entry is not None:
            self.n_found += 1
            self._entries.move_to_end(key)
        else:
            entry = await self._entry(key, make, waits_s)
        self._n_used += 1
        entry.n_users += 1
        return entry

    async def _entry(self, key: Hashable, make: Callable[[Classifier], LoadedPrompts], waits_s: float) -> Entry:
        """The entry of a key that has none yet, made as soon as there is room."""
        until = monotonic() + waits_s
        while (entry := self._entries.get(key)) is None:  # it may go again before it is used
            try:
                await self._made(key, make)
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

    async def end(self, key: Hashable, entry: Entry) -> None:
        """For SetUse: the entry is used once less."""
        entry.n_users -= 1
        self._n_used -= 1
        self._freed.set()
        if entry.n_users == 0 and entry.loaded.active.prompts.exact and not self._configured_exact:
            await self._let_go(key)

    async def _made(self, key: Hashable, make: Callable[[Classifier], LoadedPrompts]) -> None:
        """Make an entry; who asks for it meanwhile waits for the same one, and is not cancelled with the first."""
        task = self._building.get(key)
        if task is None:
            task = self._building[key] = asyncio.create_task(self._make(key, make))
            task.add_done_callback(lambda done: self._built(key, done))
        await asyncio.shield(task)

    def _built(self, key: Hashable, task: asyncio.Task[None]) -> None:
        del self._building[key]
        # who asked may have left, and then nobody else looks at the exception
        has_failed = task.cancelled() or task.exception() is not None
        if not (has_failed and (self._n_used or self._n_closing)):  # else who waits would only fail as well
            self._freed.set()

    async def _make(self, key: Hashable, make: Callable[[Classifier], LoadedPrompts]) -> None:
        while len(self._entries) >= self._most and await self._let_go_oldest():
            pass
        loop = asyncio.get_running_loop()
        while True:
            try:
                loaded = await loop.run_in_executor(self._thread, make, self._classifier)
                break
            except PlanError as e:  # no room
                if not await self._let_go_oldest():
                    raise RefusedError(503, "room", f"{e}", retry_ms=_RETRY_MS) from None
        self.n_made += 1
        self._entries[key] = Entry(loaded)

    async def _let_go_oldest(self) -> bool:
        for key, entry in self._entries.items():
            if entry.n_users == 0:
                await self._let_go(key)
                return True
        return False

    async def _let_go(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.n_let_go += 1
            self._n_closing += 1
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, entry.loaded.close)
            finally:
                self._n_closing -= 1
                self._freed.set()

    def close(self) -> None:
        """End the thread; the sets go with their classifier."""
        self._thread.shutdown()
