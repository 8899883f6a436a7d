"""A classifier while it serves: who uses it, what each query is admitted for, and the other prompt sets made on it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Hashable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from time import time

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..config.scoring import Scoring
from ..errors import ModelError
from ..loaded_prompts import LoadedPrompts
from ..model import Model
from ..questions.forms import Forms, FormSettings
from ..score.result import Result
from .refusal import RefusedError
from .results import ResultCache
from .sets import SetCache
from .writing import model_json

Pair = tuple[LoadedPrompts, str]
FileState = tuple[Path, int, int, int, int]


class Served:
    """A classifier, its open model, and what depends on them.

    A request uses it in a `with` block: it is not closed meanwhile.
    """

    def __init__(
        self, classifier: Classifier, model: Model, file: FileState, forms: FormSettings, n_results: int
    ) -> None:
        """file: the model file as it was when it was opened, see `file_state`; n_results: answers to keep."""
        self.classifier = classifier
        self.model = model
        self.file = file
        self.sets = SetCache(classifier)
        self.forms = Forms(forms, model, classifier.config.model)
        self.created = int(time())
        self.model_json = model_json(classifier.model)
        self.prompts: dict[str, PromptConfig] = {prompt.name: prompt for prompt in classifier.config.prompts}
        self.results = ResultCache(n_results)
        self.window = classifier.config.runtime.max_batch
        """queries of one request that may wait at once"""
        self.asks_the_engine = not n_results and classifier.configured.has_steps
        """whether a query of the configured prompts is always asked of the engine, and once"""
        self._n_users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    def n_tokens(self, query: str) -> int:
        """About how many tokens the configured prompts feed for a query."""
        return self.classifier.configured.active.n_fed(query)

    def __enter__(self) -> None:
        self._n_users += 1
        self._unused.clear()

    def __exit__(self, *_: object) -> None:
        self._n_users -= 1
        if self._n_users == 0:
            self._unused.set()

    def some_prompts(
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
        key: Hashable = ("configured", asked, scoring, audit)
        return self.sets.using(key, lambda classifier: _some(classifier, asked, scoring, audit=audit))

    async def ask(self, pairs: Sequence[Pair], deadline_s: float) -> list[Result]:
        """The answers of prompt sets to queries, all from one turn but those that are kept. Raises QclsError."""
        if not self.results.most:
            return await self.classifier.aclassify_pairs(pairs, deadline_s=deadline_s)
        found = [self.results.get(loaded.active, query) for loaded, query in pairs]
        missing = [pair for pair, result in zip(pairs, found, strict=True) if result is None]
        computed = iter(await self.classifier.aclassify_pairs(missing, deadline_s=deadline_s))
        answers = []
        for (loaded, query), result in zip(pairs, found, strict=True):
            if result is None:
                result = next(computed)
                self.results.put(loaded.active, query, result)
            answers.append(result)
        return answers

    async def close(self) -> None:
        """Wait until no request uses it, then close the classifier, but not the model."""
        await self._unused.wait()
        self.sets.close()
        await asyncio.to_thread(self.classifier.close)


def _some(classifier: Classifier, names: tuple[str, ...], scoring: Scoring | None, *, audit: bool) -> LoadedPrompts:
    config: Config = classifier.config
    prompts = tuple(prompt for prompt in config.prompts if prompt.name in names)
    if scoring is not None:
        prompts = tuple(dataclasses.replace(prompt, scoring=scoring) for prompt in prompts)
    return classifier.prompt_set(dataclasses.replace(config, prompts=prompts), audit=audit)


def unknown_prompt(name: str, known: dict[str, PromptConfig], param: str) -> RefusedError:
    """The refusal of a prompt's name that is not configured."""
    shown = ", ".join(list(known)[:20]) + (" …" if len(known) > 20 else "")
    return RefusedError(
        404, "unknown prompt", f"{name[:100]!r} is not a configured prompt: there are {shown}", param=param
    )


def file_state(path: Path) -> FileState:
    """What tells whether a file is still the one that was opened. Raises ModelError for one that is not there."""
    resolved = path.resolve()
    try:
        stat = resolved.stat()
    except OSError as e:
        raise ModelError(f"{path}: the model file cannot be read: {e.strerror}") from None
    return resolved, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size
