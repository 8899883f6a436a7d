"""A classifier while it serves: who uses it, what a query costs, its answers to keep, its other prompt sets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from time import monotonic, time
from typing import Any

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.scoring import Scoring
from ..core.handle import LoadedPrompts
from ..errors import PlanError
from ..model import Model
from ..model.identity import Stamp
from ..questions.forms import Forms, FormSettings
from ..questions.question import Question, compile_question
from ..score.result import Counts, Result
from .dialect import Context, n_prompt_tokens, unknown_prompt
from .refusal import RefusedError

MOST_SETS = 256
_RETRY_MS = 1000.0
Pair = tuple[LoadedPrompts, str]


class Backend:
    """A classifier, its open model, and what depends on them.

    A request uses it in a `with` block: it is not closed meanwhile.
    """

    def __init__(self, classifier: Classifier, model: Model, stamp: Stamp, forms: FormSettings, n_results: int) -> None:
        """stamp: of the model file when it was opened; n_results: answers to keep."""
        self.classifier = classifier
        self.model = model
        self.stamp = stamp
        self.sets = SetCache(classifier)
        self.prompts: Mapping[str, PromptConfig] = {prompt.name: prompt for prompt in classifier.config.prompts}
        self.created = int(time())
        self.results = ResultCache(n_results)
        self.window = classifier.config.runtime.max_batch
        """queries of one request that may wait at once"""
        self._forms = Forms(forms, model, classifier.config.model)
        self._n_users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    def n_tokens(self, query: str) -> int:
        """About how many tokens the configured prompts feed for a query."""
        return self.classifier.configured.n_fed(query)

    def context(self, request_id: str, parameters: Mapping[str, str]) -> Context:
        """What dialects may know."""
        return Context(self.prompts, self.created, request_id, parameters)

    def __enter__(self) -> None:
        self._n_users += 1
        self._unused.clear()

    def __exit__(self, *_: object) -> None:
        self._n_users -= 1
        if self._n_users == 0:
            self._unused.set()

    def configured(
        self, names: tuple[str, ...] | None, scoring: Scoring | None, *, audit: bool
    ) -> AbstractAsyncContextManager[LoadedPrompts]:
        """The configured prompts, or a set of some of them, perhaps with another scoring or with exact scores.

        names: None for all. Raises RefusedError (404) for a name that is not configured.
        """
        for index, name in enumerate(names or ()):
            if name not in self.prompts:
                raise unknown_prompt(name, self.prompts, f"prompts[{index}]")
        asked = tuple(self.prompts) if names is None else tuple(name for name in self.prompts if name in names)
        if asked == tuple(self.prompts) and scoring is None and not audit:
            return nullcontext(self.classifier.configured)

        def make() -> LoadedPrompts:
            prompts = tuple(self.prompts[name] for name in asked)
            if scoring is not None:
                prompts = tuple(dataclasses.replace(prompt, scoring=scoring) for prompt in prompts)
            config = dataclasses.replace(self.classifier.config, prompts=prompts)
            return self.classifier.prompt_set(config, audit=audit)

        return self.sets.using(("configured", asked, scoring, audit), make)

    def question(self, question: Question, waits_s: float) -> AbstractAsyncContextManager[LoadedPrompts]:
        """The prompt set of a question. waits_s: see SetCache.using. Entering it raises ConfigError, RefusedError."""
        compiled = cache(lambda: compile_question(question, self._forms, self.classifier))
        return self.sets.using(question, lambda: self.classifier.prompt_set(compiled()), waits_s)

    async def ask(self, pairs: Sequence[Pair], deadline_s: float) -> list[Result]:
        """The answers of prompt sets to queries, all from one turn but those that are kept. Raises QclsError."""
        if not self.results.most:
            return await self.classifier.aclassify_pairs(pairs, deadline_s=deadline_s)
        kept = [self.results.get(*pair) for pair in pairs]
        missing = [pair for pair, result in zip(pairs, kept, strict=True) if result is None]
        computed = iter(await self.classifier.aclassify_pairs(missing, deadline_s=deadline_s))
        return [
            self.results.put(*pair, next(computed)) if result is None else result
            for pair, result in zip(pairs, kept, strict=True)
        ]

    async def close(self) -> None:
        """Wait until no request uses it, then close the classifier, but not the model."""
        await self._unused.wait()
        await self.sets.close()
        await asyncio.to_thread(self.classifier.close)


class ResultCache:
    """Answers kept for queries that come again: bounded, least recently used first, those of one classifier."""

    def __init__(self, most: int) -> None:
        """most: answers to keep; 0: none."""
        self.most = most
        self._kept: OrderedDict[Hashable, Result] = OrderedDict()
        self.n_hits = self.n_misses = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, loaded: LoadedPrompts, query: str) -> Result | None:
        """The kept answer of a prompt set to a query, as one that took no time and fed no tokens; None for none."""
        key = _key(loaded, query)
        result = self._kept.get(key)
        if result is None:
            self.n_misses += 1
            return None
        self.n_hits += 1
        self._kept.move_to_end(key)
        counts = Counts(
            n_queries=1, n_decodes=0, n_tokens_new=0, n_tokens_cached=n_prompt_tokens(result), n_positions=0
        )
        stage_ms = dict.fromkeys(result.stage_ms, 0.0)
        return dataclasses.replace(result, total_ms=0.0, stage_ms=stage_ms, counts=counts, wait_ms=0.0)

    def put(self, loaded: LoadedPrompts, query: str, result: Result) -> Result:
        """Keep an answer, and return it."""
        self._kept[_key(loaded, query)] = result
        if len(self._kept) > self.most:
            self._kept.popitem(last=False)
        return result


def _key(loaded: LoadedPrompts, query: str) -> Hashable:
    """Equal where the answer is: sets of equal digests may be calibrated differently."""
    calibrations = tuple(
        (each.temperature, *(None if part is None else part.tobytes() for part in (each.prior, each.bias)))
        for each in loaded.adjustments
    )
    return loaded.compiled.digest, calibrations, query


@dataclass(slots=True, eq=False)
class _Entry:
    loaded: LoadedPrompts
    n_users: int = 0


class SetCache:
    """The prompt sets of one classifier that requests made. For the thread of the event loop.

    Sets that nobody uses are evicted, least recently used first, when there are too many or when the engine has no
    room. One that makes the engine compute more for everybody, as exact scorings do, is evicted after its last use.
    """

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._changing = asyncio.Lock()
        """held while a set is made or closed, which other threads do"""
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        """set, and replaced by another, when a set is used no more or closed"""
        self.n_made = self.n_evicted = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def using(
        self, key: Hashable, make: Callable[[], LoadedPrompts], waits_s: float = 0.0
    ) -> AsyncIterator[LoadedPrompts]:
        """The set under a key, which stays as long as it is used; make() makes it in another thread.

        waits_s: how long to wait for room that the sets in use take; whoever uses another set must not wait, as all
        could wait for each other. Entering it raises what make raises, and RefusedError (503, `room`) where there is no
        room.
        """
        until = monotonic() + waits_s
        while (entry := self._entries.get(key)) is None:  # a new set may be evicted before it is used
            freed = self._freed
            try:
                await asyncio.shield(self._start(self._make(key, make)))  # which others may wait for, too
            except RefusedError:
                left_s = until - monotonic()
                is_room_to_come = freed.is_set() or any(each.n_users for each in self._entries.values())
                if left_s <= 0 or not is_room_to_come:
                    raise
                with suppress(TimeoutError):
                    await asyncio.wait_for(freed.wait(), left_s)
        self._entries.move_to_end(key)
        entry.n_users += 1
        try:
            yield entry.loaded
        finally:
            entry.n_users -= 1
            self._free()
            if entry.n_users == 0 and is_exact(entry.loaded) and not is_exact(self._classifier.configured):
                del self._entries[key]
                self._start(self._close_exact(entry))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _free(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()

    async def _make(self, key: Hashable, make: Callable[[], LoadedPrompts]) -> None:
        """Make the set of a key unless it is there. Raises as `using` does."""
        async with self._changing:
            if key in self._entries:
                return
            while len(self._entries) >= MOST_SETS and await self._evict_oldest():
                pass
            while True:
                try:
                    loaded = await asyncio.to_thread(make)
                    break
                except PlanError as e:  # no room
                    if not await self._evict_oldest():
                        raise RefusedError(503, "room", f"{e}", retry_ms=_RETRY_MS) from None
            self.n_made += 1
            self._entries[key] = _Entry(loaded)

    async def _evict_oldest(self) -> bool:
        """Evict the set that has not been used for longest. Returns whether there was one that nobody uses."""
        for key, entry in self._entries.items():
            if entry.n_users == 0:
                del self._entries[key]
                await self._close(entry)
                return True
        return False

    async def _close_exact(self, entry: _Entry) -> None:
        async with self._changing:
            await self._close(entry)

    async def _close(self, entry: _Entry) -> None:
        self.n_evicted += 1
        await asyncio.to_thread(entry.loaded.close)
        self._free()

    async def close(self) -> None:
        """Wait until no set is being made or closed; the sets end with their classifier."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def is_exact(loaded: LoadedPrompts) -> bool:
    """Whether a prompt set makes every decode compute the model's head."""
    return loaded.compiled.exact
