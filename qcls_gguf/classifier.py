"""The public API, in one file: a classifier is a model, an engine, and the prompt sets that it holds ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from .config.calibration_file import Calibration
from .config.heads_file import read_fitted
from .config.load import load_config
from .config.prompt import PromptConfig
from .config.resources import DEFAULT_CONFIG
from .config.schema import Config, check_config
from .config.words import shown
from .core.core import Core
from .core.handle import Labeller, LoadedPrompts
from .core.loading import load_prompts, some_of
from .core.sharing import TurnCost
from .core.startup import ClassifierParts, start
from .engine.capacity import check_capacity
from .engine.engine import Engine
from .errors import ConfigError
from .model import Model, OpenModels
from .prompts.chat import render_prompts
from .prompts.prompt_set import PromptSet, compile_prompts, read_depths
from .score.result import Counts, ModelInfo, Result


class Classifier(Labeller):
    """Labels queries by all prompts of a configuration.

    Creating it loads the model, caches the prompts and warms up. Usable from several threads: while one request is
    computed others wait; they then share the next decode, up to `runtime.max_batch` queries, if that pays.

        with Classifier.from_config("fashion-8") as classifier:
            print(classifier.classify("red dress for girls").labels)
    """

    def __init__(self, started: ClassifierParts, *, owns_model: bool = False) -> None:
        """Use `from_config`."""
        if not isinstance(started, ClassifierParts):
            raise ConfigError(f"a Classifier is made by Classifier.from_config, not by Classifier({shown(started)})")
        self._started = started
        self._owns_model = owns_model
        self.core: Core = started.core
        """How requests reach the engine."""
        self.configured = started.prompts
        """The prompt set of the configuration."""

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
        `fashion-8-joint`, `qwen3-8b-t4`), or a Config. model: an open Model to use instead of the one that config
        names, or OpenModels, which opens and shares it; it must stay open as long as the classifier. offline: take a
        model of the hub from the local cache only. on_step(step, description, ms) is called after each step of the
        start-up, and once in a long one; on_load(fraction) while the model loads, with 0 to 1. audit: add exact scores
        to every answer; this computes the LM head and all tokens of the labels.
        Raises ConfigError or ModelError.
        """
        config = load_config(config) if isinstance(config, str | Path) else check_config(config)
        started = start(config, model, offline=offline, on_step=on_step, on_load=on_load, audit=audit)
        return cls(started, owns_model=model is None)

    def classify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query; see `classify_batch`."""
        return self.core.ask([(self.configured, query)], deadline_s)[0]

    @property
    def handle(self) -> LoadedPrompts:
        """The prompt set of the configuration."""
        return self.configured

    def _ask(self, queries: Sequence[str], deadline_s: float | None) -> list[Result]:
        return self.classify_pairs([(self.configured, query) for query in queries], deadline_s=deadline_s)

    async def aclassify(self, query: str, *, deadline_s: float | None = None) -> Result:
        """Label one query without blocking the event loop.

        A task that is cancelled before its turn is not computed. Raises as `classify_batch` does.
        """
        return (await self.aclassify_pairs([(self.configured, query)], deadline_s=deadline_s))[0]

    def prompt_set(
        self, prompts: str | Path | Config | Sequence[PromptConfig] | PromptSet, *, audit: bool = False
    ) -> LoadedPrompts:
        """Add a prompt set on the same model and engine, and keep it ready until it is closed.

            with classifier.prompt_set("other.yaml") as other:
                print(other.classify("red dress").labels)

        prompts: a YAML file, a name as in `from_config`, or a Config, whose `model` and `runtime` are ignored; or
        prompts. The chat template of this classifier's model and configuration renders prompts of system and user
        texts. Prefixes that are still in the cache are not decoded again. Raises ConfigError for prompts that do not
        fit this engine (see runtime.n_batch, runtime.n_seq_max), PlanError if too many are held at once (see
        runtime.question_cells, runtime.question_prefixes).
        """
        self.core.executor.check()
        compiled, calibration = (prompts, None) if isinstance(prompts, PromptSet) else self._compiled(prompts, audit)
        check_capacity(
            compiled, self.engine.capacity, self.config.runtime.max_query_tokens, self.engine.model.facts.n_ctx_train
        )
        self.engine.model.check_loaded(read_depths([compiled], self.engine.model.facts.n_layer)[1])
        self.engine.model.output_rows.of(compiled.label_tokens.tolist())  # read before anybody has to wait for it
        return load_prompts(self.core, compiled, calibration)

    def _compiled(
        self, prompts: str | Path | Config | Sequence[PromptConfig], audit: bool
    ) -> tuple[PromptSet, Calibration | None]:
        """Prompts on this model, with the calibration that their configuration names."""
        if isinstance(prompts, str | Path):
            config = load_config(prompts)
        else:
            config = check_config(prompts if isinstance(prompts, Config) else Config(prompts=tuple(prompts)))
        rendered = render_prompts(config.prompts, self.engine.model, self.config.model).prompts
        config, calibration, heads = read_fitted(config.changed(prompts=rendered))
        for fitted in (calibration, heads):
            if fitted is not None:
                fitted.check_model(self.model.sha256)
        return compile_prompts(config.prompts, self.engine.model, audit=audit, heads=heads), calibration

    def some(self, names: Sequence[str]) -> LoadedPrompts:
        """Some of the configured prompts as a set of their own, with the same calibration."""
        return some_of(self.configured, names)

    def measure_turns(self) -> TurnCost:
        """Measure the fixed cost of a decode; from then on callers share a decode only if that saves time.

        Takes a second at most, during which no request is answered. Raises DecodeError and ScoreError.
        """
        return self.core.measure_turns(self.configured)

    @property
    def config(self) -> Config:
        """The configuration, with the whole text of every prompt."""
        return self.core.config

    @property
    def model(self) -> ModelInfo:
        """Which model answers."""
        return self.core.info

    @property
    def engine(self) -> Engine:
        """The engine; its `model` is the open Model. For tools, which may use it only while no request is computed."""
        return self.core.engine

    @property
    def startup_ms(self) -> dict[str, float]:
        """Milliseconds of each step of the start-up."""
        return dict(self._started.ledger.steps_ms)

    def plan_counts(self, query: str) -> Counts:
        """The counts of `classify` for a query all of which is fed; computes nothing. Raises PlanError as it does."""
        return self.core.counts(self.configured, query)

    def classify_pairs(
        self, pairs: Sequence[tuple[LoadedPrompts, str]], *, deadline_s: float | None = None
    ) -> list[Result]:
        """Answer each pair of a prompt set and a query, all in one decode if they fit; see `classify_batch`."""
        return self.core.ask(pairs, deadline_s)

    async def aclassify_pairs(
        self, pairs: Sequence[tuple[LoadedPrompts, str]], *, deadline_s: float | None = None
    ) -> list[Result]:
        """`classify_pairs` without blocking the event loop; see `aclassify`."""
        return await self.core.ask_async(pairs, deadline_s)

    def close(self) -> None:
        """Answer waiting requests, refuse new ones, then free the context, and the model if it was opened for this.

        May be called again. In a forked process it does nothing, because everything belongs to the parent. If a
        finaliser calls it in the thread that computes, later requests are refused and the memory is freed with the
        object, or by the next call.
        """
        self.core.executor.close(self._free)

    def _free(self) -> None:
        self.engine.close()
        if self._owns_model:
            self.engine.model.close()
