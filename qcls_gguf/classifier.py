"""The public API, in one file: a classifier is a model, an engine, and the prompt sets that it holds ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from .active_set import ActiveSet
from .config.calibration_file import read_calibration
from .config.load import load_config
from .config.prompt import PromptConfig
from .config.resources import DEFAULT_CONFIG
from .config.schema import Config, check_config
from .engine.capacity import check_capacity
from .engine.engine import Engine
from .engine.pieces import begin_prefixes
from .engine.prefix_cache import Prefix
from .engine.turns import TurnCost
from .errors import PlanError
from .loaded_prompts import Answering, LoadedPrompts
from .model import Model, OpenModels
from .prompts.chat import is_chat, render_prompts
from .prompts.prompt_set import PromptSet, compile_prompts
from .requests import Requests
from .score.result import Counts, ModelInfo, Result
from .startup import Started, start


class Classifier(Answering):
    """Labels queries by all prompts of a configuration.

    Everything is loaded, cached and warmed when it is made. Usable from several threads: while one request is computed
    others wait, and then share the next decode, up to `runtime.max_batch` queries, where that pays.

        with Classifier.from_config("fashion-8") as classifier:
            print(classifier.classify("red dress for girls").labels)
    """

    def __init__(self, started: Started, *, owns_model: bool) -> None:
        """Use `from_config`."""
        requests = Requests(started.pipeline, started.config.runtime, started.model.n_gpu_layers)
        super().__init__(requests, started.active, started.sources, started.config, started.model)
        self._started = started
        self._owns_model = owns_model
        self._sets = started.sets
        self._configured = LoadedPrompts(
            requests, started.active, started.sources, started.config, started.model, sets=None
        )

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
        self._requests.check_process()
        self._requests.check_open()
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
        batcher = self._requests.batcher
        begun = begin_prefixes(self.engine, batcher, compiled.prefixes, self._requests.check_open)
        with batcher.alone:
            self._requests.check_open()
            active = self._add(compiled, begun)
            try:
                self._sets.calibrate(active, calibration)
            except BaseException:
                self._sets.remove(active)
                raise
        return LoadedPrompts(
            self._requests, active, active.prompts.settings, self.config, self.engine.model, sets=self._sets
        )

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

    def measure_turns(self) -> TurnCost:
        """Measure what a decode costs beside its tokens; from then on callers share one only as far as that pays.

        Takes about a second at most, during which nobody is answered. Raises DecodeError and ScoreError.
        """
        return self._requests.measure_turns(self.active)

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
    def configured(self) -> LoadedPrompts:
        """The prompt set of the configuration."""
        return self._configured

    @property
    def startup_ms(self) -> dict[str, float]:
        """Milliseconds of each step of the start-up."""
        return dict(self._started.ledger.steps_ms)

    def plan_counts(self, query: str) -> Counts:
        """What `classify` would feed and read for a query; computes nothing. Raises PlanError as `classify` does."""
        return self._requests.counts(self.active, query)

    def classify_pairs(
        self, pairs: Sequence[tuple[LoadedPrompts, str]], *, deadline_s: float | None = None
    ) -> list[Result]:
        """Ask each of these prompt sets a query, in one decode like the prompts of one set; see `classify_batch`."""
        return self._requests.ask([(prompts.active, query) for prompts, query in pairs], deadline_s)

    async def aclassify_pairs(
        self, pairs: Sequence[tuple[LoadedPrompts, str]], *, deadline_s: float | None = None
    ) -> list[Result]:
        """`classify_pairs` without blocking the event loop; see `aclassify`."""
        return await self._requests.ask_async([(prompts.active, query) for prompts, query in pairs], deadline_s)

    def close(self) -> None:
        """Answer who waits, refuse who comes, then free the context, and the model if it was opened for it.

        May be called again. In a process that was forked it does nothing: all that is the parent's.
        """
        if not self._requests.is_of_this_process:
            return
        batcher = self._requests.batcher
        batcher.close()
        with batcher.alone:
            self.engine.close()
            if self._owns_model:
                self.engine.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
