"""The public API, in one file: a classifier is a model, an engine, and the prompt sets that it holds ready."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import perf_counter_ns
from typing import Literal, Self, overload

from .active_set import ActiveSet, Item
from .config.calibration_file import read_calibration
from .config.likely_mistake import LikelyMistake
from .config.load import load_config
from .config.prompt import PromptConfig
from .config.resources import DEFAULT_CONFIG
from .config.schema import Config, check_config
from .config.words import shown
from .engine.batcher import Batcher
from .engine.capacity import check_capacity, pays_to_share
from .engine.engine import Engine
from .engine.pieces import begin_prefixes
from .engine.prefix_cache import Prefix
from .engine.turns import TurnCost
from .errors import DecodeError, PlanError, QclsError, ScoreError
from .model import Model, OpenModels
from .pipeline import MAX_QUERIES, check_queries
from .prompts.chat import is_chat, render_prompts
from .prompts.compiled import Prompt
from .prompts.likely_mistakes import likely_mistakes
from .prompts.prompt_set import PromptSet, compile_prompts
from .score.adjustment import Adjustment
from .score.result import Counts, ModelInfo, Result
from .startup import Started, measure_turns, start

OnErrors = Literal["raise", "return"]
"""what a call for several queries does with the error of one"""
_MENTIONED_MS = 0.05  # of waiting
_LONGEST_S = 1e9  # of a deadline


class LoadedPrompts:
    """A prompt set that a classifier holds ready. Usable from several threads."""

    def __init__(
        self, classifier: Classifier, active: ActiveSet, sources: Sequence[PromptConfig] | None = None
    ) -> None:
        """Use Classifier.prompt_set."""
        self._classifier = classifier
        self._sources = sources or active.prompts.settings
        self.active = active

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The compiled prompts."""
        return self.active.prompts.prompts

    @property
    def adjustments(self) -> Sequence[Adjustment]:
        """What calibrates each prompt's scores."""
        return self.active.answers.adjustments

    @property
    def warnings(self) -> tuple[LikelyMistake, ...]:
        """What is likely a mistake in these prompts, but for what the classifier's configuration ignores."""
        config, model = self._classifier.config, self._classifier.engine.model
        return likely_mistakes(
            self._sources,
            self.active.prompts,
            model,
            chat_template=config.model.chat_template,
            ignored=config.ignore_warnings,
        )

    def classify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query; see Classifier.classify_batch."""
        return self._classifier.ask([(self.active, query)], deadline_s)[0]

    @overload
    def classify_batch(
        self, queries: Iterable[str], *, deadline_s: float | None = None, errors: Literal["raise"] = "raise"
    ) -> list[Result]: ...

    @overload
    def classify_batch(
        self, queries: Iterable[str], *, deadline_s: float | None = None, errors: Literal["return"]
    ) -> list[Result | QclsError]: ...

    def classify_batch(
        self, queries: Iterable[str], *, deadline_s: float | None = None, errors: OnErrors = "raise"
    ) -> list[Result] | list[Result | QclsError]:
        """Label several queries; see Classifier.classify_batch."""
        if isinstance(queries, str):
            raise PlanError("classify_batch takes a list of queries: give one query to classify")
        items = [(self.active, query) for query in islice(queries, MAX_QUERIES + 1)]  # one without an end is refused
        if errors == "raise":
            return self._classifier.ask(items, deadline_s)
        if errors != "return":
            raise PlanError(f"errors: {errors!r} is not raise or return")
        return self._ask_each(items, deadline_s)

    def _ask_each(self, items: Sequence[Item], deadline_s: float | None) -> list[Result | QclsError]:
        """The results, with the errors of single queries in their places. All go together, if none is refused."""
        errors: dict[int, QclsError] = {}
        try:
            return list(self._classifier.ask(items, deadline_s))
        except PlanError:  # nothing was computed: find those that are refused, and ask the others together
            for index, (_, query) in enumerate(items):
                try:
                    self.check(query)
                except PlanError as e:
                    errors[index] = e
        except ScoreError:  # it does not say whose scores are wrong
            pass
        good = [index for index in range(len(items)) if index not in errors]
        if errors:
            try:
                results = self._classifier.ask([items[index] for index in good], deadline_s)
                found: dict[int, Result | QclsError] = dict(zip(good, results, strict=True))
                return [errors.get(index) or found[index] for index in range(len(items))]
            except ScoreError:
                pass
        return [errors.get(index) or self._ask_one(item, deadline_s) for index, item in enumerate(items)]

    def _ask_one(self, item: Item, deadline_s: float | None) -> Result | QclsError:
        try:
            return self._classifier.ask([item], deadline_s)[0]
        except (PlanError, ScoreError) as e:
            return e

    async def aclassify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query without blocking the event loop; see Classifier.aclassify."""
        return (await self._classifier.aclassify_pairs([(self, query)], deadline_s=deadline_s))[0]

    def check(self, query: str) -> None:
        """Raise PlanError for a query that `classify` would refuse; nothing is computed."""
        self._classifier.check(query, self)

    def close(self) -> None:
        """Let others have the room that its prefixes take; may be called again. Whoever asks it then gets an error."""
        self._classifier.drop(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Classifier:
    """Labels queries by all prompts of a configuration.

    Everything is loaded, cached and warmed when it is made. Usable from several threads: while one request is computed
    others wait, and then share the next decode, up to `runtime.max_batch` queries, where that pays.

        with Classifier.from_config("fashion-8") as classifier:
            print(classifier.classify("red dress for girls").labels)
    """

    def __init__(self, started: Started, *, owns_model: bool) -> None:
        """Use `from_config`."""
        self._started = started
        self._owns_model = owns_model
        self._pipeline = started.pipeline
        self._sets = started.sets
        self._batcher: Batcher[Item, Result] = Batcher(
            self._pipeline.run,
            max_batch=started.config.runtime.max_batch,
            max_waiting=started.config.runtime.max_waiting,
            joins=self._joins,
        )
        self._turn_cost: TurnCost | None = None
        self._configured = LoadedPrompts(self, started.active, started.sources)
        self._pid = os.getpid()

    @classmethod
    def from_config(
        cls,
        config: str | Path | Config = DEFAULT_CONFIG,
        *,
        model: Model | OpenModels | None = None,
        offline: bool = False,
        on_step: Callable[[str, str, float], None] | None = None,
        on_load: Callable[[float], None] | None = None,
        audit: bool = False,
    ) -> Self:
        """Load the model, cache the prompts and warm up.

        config: a YAML file, the name of a configuration that comes with the package (`mission`, `fashion-8`,
        `fashion-8-joint`, `qwen3-8b-t4`), or a Config. model: an open one to use instead of the one that config names,
        or the open models among which it is or will be; it must stay open as long as the classifier. offline: take a
        model of the hub from the local cache only. on_step(step, what, ms) follows the start-up, on_load(fraction) the
        loading of the model. audit: let every answer carry its exact scores; costs the LM head and the labels' own
        tokens.
        Raises ConfigError or ModelError.
        """
        config = load_config(config) if isinstance(config, str | Path) else check_config(config)
        started = start(config, model, offline=offline, on_step=on_step, on_load=on_load, audit=audit)
        return cls(started, owns_model=model is None)

    def prompt_set(
        self, prompts: str | Path | Config | Sequence[PromptConfig] | PromptSet, *, audit: bool = False
    ) -> LoadedPrompts:
        """Hold another prompt set ready on the same model and engine, until it is closed.

            with classifier.prompt_set("other.yaml") as other:
                print(other.classify("red dress").labels)

        prompts: a YAML file, a name as in `from_config`, or a Config, of which `prompts` and `calibration` count and
        `model` and `runtime` do not; or prompts. Prompts of system and user texts are rendered by the chat template of
        this classifier's model and configuration. What the cache has of their prefixes is not decoded again. Raises
        ConfigError for prompts that do not fit this engine (see runtime.n_batch, runtime.n_seq_max), PlanError where
        too many are held at once (see runtime.question_cells, runtime.question_prefixes).
        """
        self._check_process()
        self._check_open()
        config = self._as_config(prompts)
        calibration = read_calibration(config) if config else None
        if calibration is not None:
            calibration.check_model(self.model.sha256)
        if isinstance(prompts, PromptSet):
            compiled = prompts
        else:
            assert config is not None
            compiled = compile_prompts(config.prompts, self.engine.model, audit=audit)
        check_capacity(
            compiled, self.engine.capacity, self.config.runtime.max_query_tokens, self.engine.model.facts.n_ctx_train
        )
        self.engine.model.rows(compiled.label_tokens.tolist())  # read before anybody has to wait for it
        begun = begin_prefixes(self.engine, self._batcher, compiled.prefixes, self._check_open)
        with self._batcher.alone:
            self._check_open()
            active = self._add(compiled, begun)
            try:
                self._sets.calibrate(active, calibration)
            except BaseException:
                self._sets.remove(active)
                raise
        return LoadedPrompts(self, active)

    def _add(self, prompts: PromptSet, begun: Sequence[Prefix]) -> ActiveSet:
        """Hold a set; the beginnings of its prefixes go, and first of all where there is no room for it beside them."""
        try:
            active = self._sets.add(prompts)
        except PlanError:
            self.engine.forget(begun)
            return self._sets.add(prompts)
        except BaseException:
            self.engine.forget(begun)
            raise
        self.engine.forget(begun)
        return active

    def _as_config(self, prompts: str | Path | Config | Sequence[PromptConfig] | PromptSet) -> Config | None:
        """The prompts with their whole texts; None for those that are compiled already."""
        if isinstance(prompts, PromptSet):
            return None
        if isinstance(prompts, str | Path):
            config = load_config(prompts)
        else:
            config = check_config(prompts if isinstance(prompts, Config) else Config(prompts=tuple(prompts)))
        if not is_chat(config.prompts):
            return config
        return replace(config, prompts=render_prompts(config.prompts, self.engine.model, self.config.model).prompts)

    def drop(self, prompts: LoadedPrompts) -> None:
        """Close a prompt set; the configured one goes with the classifier only."""
        if os.getpid() != self._pid:
            return
        with self._batcher.alone:
            active = prompts.active
            if active.is_open and active is not self._started.active and not self._batcher.is_closed:
                self._sets.remove(active)

    def measure_turns(self) -> TurnCost:
        """Measure what a decode costs beside its tokens; from then on callers share one only as far as that pays.

        Takes about a second at most, during which nobody is answered. Raises DecodeError and ScoreError.
        """
        self._check_process()
        with self._batcher.alone:
            self._check_open()
            self._turn_cost = measure_turns(self._pipeline, self._started.active, self.config.runtime.max_batch)
        return self._turn_cost

    def _joins(self, turn: Sequence[Sequence[Item]], items: Sequence[Item], n_behind: int) -> bool:
        if self._turn_cost is None:
            together = [item for call in (*turn, items) for item in call]
            return all(pays_to_share(self.model.n_gpu_layers, active.n_prefixes) for active, _ in together)
        n_tokens = sum(active.n_fed(query) for active, query in items)
        return self._turn_cost.pays(len(turn), n_tokens, n_behind)

    @property
    def config(self) -> Config:
        """What it was made from, with the whole text of every prompt."""
        return self._started.config

    @property
    def model(self) -> ModelInfo:
        """Which model answers."""
        return self._started.info

    @property
    def engine(self) -> Engine:
        """What decodes; its `model` is the open one. For tools, which use it while nobody asks the classifier."""
        return self._started.engine

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The compiled prompts of the configuration."""
        return self._configured.prompts

    @property
    def configured(self) -> LoadedPrompts:
        """The prompt set of the configuration."""
        return self._configured

    @property
    def adjustments(self) -> Sequence[Adjustment]:
        """What calibrates each configured prompt's scores."""
        return self._configured.adjustments

    @property
    def warnings(self) -> tuple[LikelyMistake, ...]:
        """What is likely a mistake in the configured prompts; the command line prints it."""
        return self._configured.warnings

    @property
    def startup_ms(self) -> dict[str, float]:
        """Milliseconds of each step of the start-up."""
        return dict(self._started.ledger.steps_ms)

    def check(self, query: str, prompts: LoadedPrompts | None = None) -> None:
        """Raise PlanError for a query that `classify` would refuse; nothing is computed."""
        check_queries([query], self.config.runtime)
        self._check_process()
        with self._batcher.alone:
            self._check_open()
            self._pipeline.check((prompts or self._configured).active, query)

    def plan_counts(self, query: str) -> Counts:
        """What `classify` would feed and read for a query; computes nothing. Raises PlanError as `classify` does."""
        check_queries([query], self.config.runtime)
        self._check_process()
        with self._batcher.alone:
            self._check_open()
            return self._pipeline.counts(self._started.active, query)

    def classify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query by the configured prompts; see `classify_batch`."""
        return self.ask([(self._started.active, query)], deadline_s)[0]

    @overload
    def classify_batch(
        self, queries: Iterable[str], *, deadline_s: float | None = None, errors: Literal["raise"] = "raise"
    ) -> list[Result]: ...

    @overload
    def classify_batch(
        self, queries: Iterable[str], *, deadline_s: float | None = None, errors: Literal["return"]
    ) -> list[Result | QclsError]: ...

    def classify_batch(
        self, queries: Iterable[str], *, deadline_s: float | None = None, errors: OnErrors = "raise"
    ) -> list[Result] | list[Result | QclsError]:
        """Label several queries in one decode, or in as few as the limits allow (counts.n_decodes tells).

        deadline_s: where the request has not begun after so many seconds, it is not computed.
        Raises PlanError for a query that is too long or not valid Unicode, and for more than 10,000 of them, before
        anything is computed; DecodeError, ScoreError, DeadlineError, and BusyError where too many callers wait. After
        an error the classifier is as before. errors="return": a query that cannot be labelled has its error in the
        list, and the others their answers; what concerns all of them is raised all the same (BusyError, DeadlineError,
        a closed classifier, too many queries).
        """
        if errors == "return":
            return self._configured.classify_batch(queries, deadline_s=deadline_s, errors="return")
        return self._configured.classify_batch(queries, deadline_s=deadline_s, errors=errors)

    async def aclassify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query without blocking the event loop: a thread of the classifier's own computes.

        A task that is cancelled before its turn is not computed. Raises as `classify_batch` does.
        """
        return await self._configured.aclassify(query, deadline_s=deadline_s)

    def classify_pairs(
        self, pairs: Sequence[tuple[LoadedPrompts, str]], *, deadline_s: float | None = None
    ) -> list[Result]:
        """Ask each of these prompt sets a query, in one decode like the prompts of one set; see `classify_batch`."""
        return self.ask([(prompts.active, query) for prompts, query in pairs], deadline_s)

    def ask(self, items: Sequence[Item], deadline_s: float | None = None) -> list[Result]:
        """What all of the above come to: a result for each item. This is the hot path."""
        began = perf_counter_ns()
        self._check(items, deadline_s)
        return _with_wait(self._batcher.submit(items, deadline_s), began) if items else []

    async def aclassify_pairs(
        self, pairs: Sequence[tuple[LoadedPrompts, str]], *, deadline_s: float | None = None
    ) -> list[Result]:
        """`classify_pairs` without blocking the event loop; see `aclassify`."""
        began = perf_counter_ns()
        items = [(prompts.active, query) for prompts, query in pairs]
        self._check(items, deadline_s)
        if not items:
            return []
        import asyncio  # whoever awaits this has it; others are spared 40 ms

        return _with_wait(await asyncio.wrap_future(self._batcher.submit_future(items, deadline_s)), began)

    def _check(self, items: Sequence[Item], deadline_s: float | None) -> None:
        check_queries([query for _, query in items], self._started.config.runtime)
        if deadline_s is not None and not (isinstance(deadline_s, int | float) and abs(deadline_s) < _LONGEST_S):
            raise PlanError(
                f"deadline_s: {shown(deadline_s)} is not a number of seconds below {_LONGEST_S:g}: leave it out to wait"
            )
        self._check_process()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise DecodeError("this Classifier was made in another process: make one in each process after forking")

    def _check_open(self) -> None:
        if self._batcher.is_closed:
            raise DecodeError("this Classifier is closed")

    def close(self) -> None:
        """Answer who waits, refuse who comes, then free the context, and the model if it was opened for it.

        May be called again. In a process that was forked it does nothing: all that is the parent's.
        """
        if os.getpid() != self._pid:
            return
        self._batcher.close()
        with self._batcher.alone:
            self.engine.close()
            if self._owns_model:
                self.engine.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _with_wait(results: Sequence[Result], began_ns: int) -> list[Result]:
    """The results with what their caller waited beside the stages: for its turn, and to be woken with the answers."""
    wait_ms = (perf_counter_ns() - began_ns) / 1e6 - results[0].total_ms
    return [replace(result, wait_ms=wait_ms) for result in results] if wait_ms > _MENTIONED_MS else list(results)
