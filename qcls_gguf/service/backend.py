"""A classifier while it serves: who uses it, what a query costs, its answers to keep, its other prompt sets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cache
from time import time

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.scoring import Scoring
from ..core.handle import LoadedPrompts
from ..model import Model
from ..model.identity import Stamp
from ..questions.forms import Forms, FormSettings
from ..questions.question import Question, compile_question
from ..questions.sets import SetCache
from ..score.result import Counts, Result
from .dialect import Context, n_prompt_tokens, unknown_prompt

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

        Of a cascade these two are the last stage's. names: None for all. Raises RefusedError (404) for a name that is
        not configured.
        """
        for index, name in enumerate(names or ()):
            if name not in self.prompts:
                raise unknown_prompt(name, self.prompts, f"prompts[{index}]")
        asked = tuple(self.prompts) if names is None else tuple(name for name in self.prompts if name in names)
        if not audit and all(scoring in (None, self.prompts[name].scoring) for name in asked):
            if asked == tuple(self.prompts):
                return nullcontext(self.classifier.configured)
            return self.sets.using(("configured", asked), lambda: self.classifier.some(asked))

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
    """Equal where the answer is: sets of equal digests may be calibrated differently, or be asked one stage alone."""
    calibrations = tuple(
        (each.temperature, *(None if part is None else part.tobytes() for part in (each.prior, each.bias)))
        for each in loaded.adjustments
    )
    return loaded.compiled.digest, loaded.is_staged, calibrations, query
