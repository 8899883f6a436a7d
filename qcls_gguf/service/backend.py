"""A classifier while it serves: who uses it, what a query costs, its answers to keep, its other prompt sets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from time import monotonic, time
from typing import TypeVar

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.scoring import Scoring
from ..core.handle import LoadedPrompts
from ..errors import PlanError
from ..model import Model
from ..model.identity import Stamp
from ..prompts.prompt_set import PromptSet
from ..questions.forms import Forms, FormSettings
from ..questions.question import Question, compile_question
from ..score.result import Counts, Result
from .dialect import Context, n_tokens_of, unknown_prompt
from .refusal import RefusedError

T = TypeVar("T")
MOST_SETS = 256
_RETRY_MS = 1000.0
Make = Callable[[Classifier], LoadedPrompts]
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

        def make(classifier: Classifier) -> LoadedPrompts:
            prompts = tuple(self.prompts[name] for name in asked)
            if scoring is not None:
                prompts = tuple(dataclasses.replace(prompt, scoring=scoring) for prompt in prompts)
            return classifier.prompt_set(dataclasses.replace(classifier.config, prompts=prompts), audit=audit)

        return self.sets.using(("configured", asked, scoring, audit), make)

    def question(self, question: Question, waits_s: float) -> AbstractAsyncContextManager[LoadedPrompts]:
        """The prompt set of a question. waits_s: see SetCache.using. Entering it raises ConfigError, RefusedError."""
        compiled: list[PromptSet] = []

        def make(classifier: Classifier) -> LoadedPrompts:
            if not compiled:  # asked again where room has been made, it does not compile again
                compiled.append(compile_question(question, self._forms, classifier))
            return classifier.prompt_set(compiled[0])

        return self.sets.using(question, make, waits_s)

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
        self.sets.close()
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
        counts = Counts(n_queries=1, n_decodes=0, n_tokens_new=0, n_tokens_cached=n_tokens_of(result), n_positions=0)
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
