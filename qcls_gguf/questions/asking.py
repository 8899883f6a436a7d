"""Asking a classifier questions that arrive at run time, and its configured prompts otherwise than as configured."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from time import monotonic
from typing import TypeAlias

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..core.core import Item, LongText
from ..core.handle import PromptHandle, estimated_tokens
from ..errors import BusyError, CapacityError, ConfigError, PlanError, ScoreError
from ..prompts.prompt_set import PromptSet
from ..score.result import Result
from .decision import read_decision
from .forms import PLACE, compile_question, form_of
from .question import Distribution, PlaceError, TextQuestion, UnknownPromptError

log = logging.getLogger("qcls_gguf.questions")
Ask: TypeAlias = Callable[[Sequence[Item]], Awaitable[list[Result]]]
"""answers pairs of a prompt set's handle and a text, all in one turn"""
_AT_ONCE = 8
"""the most questions of one request in one turn, so that other requests do not wait longer"""


_MOST_SETS = 256


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
            while len(self._entries) >= _MOST_SETS and await self._evict_oldest():
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


@dataclass(slots=True)
class Usage:
    """Tokens of a request's texts or questions; a turn's tokens belong to its queries in equal parts."""

    new: float = 0.0
    """fed after the prefixes"""
    cached: float = 0.0
    """of prefixes"""
    stored: int = 0
    """how many of these the request itself stored"""

    @property
    def whole(self) -> int:
        """Tokens of the questions with their texts."""
        return round(self.new) + round(self.cached)

    @property
    def found(self) -> int:
        """Tokens of prefixes that were stored before."""
        return max(round(self.cached) - self.stored, 0)


class QuestionAsker:
    """Makes the prompt sets of requests, and asks questions by them. For the thread of the event loop."""

    def __init__(self, classifier: Classifier) -> None:
        """Raises ModelError for a decision model that cannot be asked."""
        model = classifier.engine.model
        self.prompts: Mapping[str, PromptConfig] = {prompt.name: prompt for prompt in classifier.config.prompts}
        self.sets = SetCache()
        self.classifier = classifier
        self._decision = read_decision(model)
        self._form = cache(partial(form_of, model=model, config=classifier.config.model))

    def configured(self, names: tuple[str, ...] | None) -> AbstractAsyncContextManager[PromptHandle]:
        """The configured prompts, or a set of some of them.

        names: None for all. Raises UnknownPromptError for a name that is not configured.
        """
        for index, name in enumerate(names or ()):
            if name not in self.prompts:
                raise UnknownPromptError(name, self.prompts, f"prompts[{index}]")
        classifier = self.classifier
        asked = tuple(name for name in self.prompts if names is None or name in names)
        if len(asked) == len(self.prompts):
            return nullcontext(classifier)
        return self.sets.using(asked, lambda: classifier.subset(asked))

    async def answers(
        self, questions: Sequence[TextQuestion], ask: Ask, seconds_left: Callable[[], float], usage: Usage
    ) -> list[Distribution | None]:
        """The answers to questions, which are asked in groups; None for one whose scores cannot be computed.

        usage gets the tokens that are stored. Raises PlaceError for a question that cannot be asked, SpaceError if it
        does not fit within seconds_left(), and what `ask` raises.
        """
        questions = self._decision.prepared(questions) if self._decision else questions
        answers: list[Distribution | None] = []
        while len(answers) < len(questions):
            first = len(answers)
            answers += await self._group(questions[first : first + _AT_ONCE], ask, seconds_left, usage)
        return answers

    async def _group(
        self, questions: Sequence[TextQuestion], ask: Ask, seconds_left: Callable[[], float], usage: Usage
    ) -> list[Distribution | None]:
        """The answers to the first questions, as many as fit, at least one."""
        answers: list[Distribution | None] = []
        pairs: dict[int, Item] = {}  # by the place of the answer
        async with AsyncExitStack() as stack:
            for place, asked in enumerate(questions):
                if asked.question.prompt_name is None and len(asked.question.options) == 1:
                    answers.append(Distribution([1.0]))
                    continue
                is_new = asked.question.prompt_name is None and asked.question not in self.sets
                handle = self._handle(asked, 0.0 if pairs else seconds_left())
                try:
                    text = asked.text if asked.long is None else LongText(asked.text, asked.long)
                    pairs[place] = await stack.enter_async_context(handle), text
                except SpaceError as e:
                    if pairs:
                        break
                    log.warning("a question does not fit: %s", e)
                    raise
                except CapacityError as e:
                    n, why = len(asked.question.options), str(e).replace(f"{PLACE}: ", "")
                    what = f"{n} options and their question do not fit: give fewer or shorter ones, or a service that"
                    raise PlaceError(
                        f"{asked.param}: {what} is started with larger limits ({why})", asked.param
                    ) from None
                except ConfigError as e:
                    raise PlaceError(str(e).replace(PLACE, asked.param), asked.param) from None
                answers.append(None)
                usage.stored += estimated_tokens(asked.question.n_bytes) if is_new else 0
            results = await _finite(list(pairs.values()), ask)
        for place, result in zip(pairs, results, strict=True):
            question = questions[place].question
            if result is None:
                continue
            if self._decision is not None and question.prompt_name is None:
                probabilities = self._decision.probabilities(question, result.results)
            else:
                by_label = {score.label: score.probability for score in result.results[0].scores}
                probabilities = [by_label[option.label] for option in question.options]
            answers[place] = Distribution(probabilities)
        return answers

    def _handle(self, asked: TextQuestion, waits_s: float) -> AbstractAsyncContextManager[PromptHandle]:
        """The handle of a question's prompt set. waits_s: see SetCache.using. Raises PlaceError.

        Entering it raises ConfigError and SpaceError.
        """
        question = asked.question
        if (name := question.prompt_name) is None:

            @cache  # for another try where it did not fit
            def compiled() -> PromptSet:
                if self._decision is not None:
                    return self._decision.compile(question, self.classifier)
                return compile_question(question, self._form(question.kind), self.classifier)

            return self.sets.using(question, lambda: self.classifier.prompt_set(compiled()), waits_s)
        if name not in self.prompts:
            raise UnknownPromptError(name, self.prompts, asked.param)
        labels = self.prompts[name].labels
        if {option.label for option in question.options} != set(labels):
            what = f"the options are not the labels of the configured prompt {name!r}: give {', '.join(labels)[:500]}"
            raise PlaceError(what, asked.param)
        return self.configured((name,))


async def _finite(pairs: Sequence[Item], ask: Ask) -> Sequence[Result | None]:
    """The answers to all pairs; None for one whose scores cannot be computed."""
    try:
        return await ask(pairs) if pairs else []
    except ScoreError:
        if len(pairs) == 1:
            return [None]
        # one by one, which shows whose scores cannot be used
        return [result for pair in pairs for result in await _finite([pair], ask)]
    except PlanError as e:
        raise PlaceError(str(e), "input") from None
