"""The public API, in one file: a classifier is a model, an engine, and the prompt sets that it holds ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from .active_set import ActiveSet
from .cascade import CascadeRequests, Stage, check_stamps, stage_config
from .config.calibration_file import Calibration, read_calibration
from .config.cascade import CascadeConfig, CascadeStage
from .config.load import load_config
from .config.prompt import PromptConfig
from .config.resources import DEFAULT_CONFIG
from .config.schema import Config, ModelConfig, check_config
from .config.words import counted, shown
from .engine.capacity import check_capacity
from .engine.engine import Engine
from .engine.pieces import begin_prefixes
from .engine.prefix_cache import Prefix
from .engine.turns import TurnCost
from .errors import ConfigError, PlanError
from .loaded_prompts import Answering, LoadedPrompts
from .model import Model, OpenModels, find_model
from .prompts.chat import is_chat, render_prompts
from .prompts.prompt_set import PromptSet, compile_prompts
from .requests import Requests
from .score.result import Counts, ModelInfo, Result
from .startup import Started, start


class Classifier(Answering):
    """Labels queries by all prompts of a configuration.

    Creating it loads the model, caches the prompts and warms up. Usable from several threads: while one request is
    computed others wait; they then share the next decode, up to `runtime.max_batch` queries, if that pays.

        with Classifier.from_config("fashion-8") as classifier:
            print(classifier.classify("red dress for girls").labels)
    """

    def __init__(self, started: Started, *, owns_model: bool = False) -> None:
        """Use `from_config`."""
        if not isinstance(started, Started):
            raise ConfigError(f"a Classifier is made by Classifier.from_config, not by Classifier({shown(started)})")
        kind = Requests if started.config.cascade is None else CascadeRequests
        requests = kind(started.pipeline, started.config.runtime, started.model.n_gpu_layers)
        super().__init__(requests, started.active, started.sources, started.config, started.model)
        self._started = started
        self._owns_model = owns_model
        self._sets = started.sets
        self._others: list[Classifier] = []  # of a cascade's other models
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
        `fashion-8-joint`, `qwen3-8b-t4`), or a Config. model: an open Model to use instead of the one that config
        names, or OpenModels, which opens and shares it; it must stay open as long as the classifier. offline: take a
        model of the hub from the local cache only. on_step(step, description, ms) is called after each step of the
        start-up, on_load(fraction) while the model loads, with 0 to 1. audit: add exact scores to every answer; this
        computes the LM head and all tokens of the labels.
        Raises ConfigError or ModelError.
        """
        config = load_config(config) if isinstance(config, str | Path) else check_config(config)
        started = start(config, model, offline=offline, on_step=on_step, on_load=on_load, audit=audit)
        classifier = cls(started, owns_model=model is None)
        try:
            if config.cascade is not None:
                classifier._start_stages(config.cascade, model if isinstance(model, OpenModels) else None, offline)
        except BaseException:
            classifier.close()
            raise
        return classifier

    def _start_stages(self, cascade: CascadeConfig, models: OpenModels | None, offline: bool) -> None:
        """Open the stages of the cascade, with the configured prompts as the last one.

        Raises ModelError, and ConfigError also for stages to which the thresholds were not fitted.
        """
        requests = self._requests
        assert isinstance(requests, CascadeRequests)
        check_stamps("cascade", cascade.prompt_hashes, cascade.model_sha256, self.configured, self.model)
        stages = []
        for index, setting in enumerate(cascade.stages):
            config = stage_config(setting, self.config, f"cascade.stages[{index}]")
            host = self._host(config, models, offline)
            loaded = host.prompt_set(config)
            hashes = {name: prompt.prompt_hash for name, prompt in setting.prompts.items()}
            check_stamps(f"cascade.stages[{index}]", hashes, setting.model_sha256, loaded, host.model)
            stages.append(host._stage(setting.config.stem, loaded, setting, with_singles=index > 0))
            if stages[-1].whole is not loaded.active:
                loaded.close()  # the stage's own sets hold what they need of it
            self._started.ledger.step(
                f"stage {stages[-1].name}", f"{counted(len(hashes), 'prompt')}, {host.model.path}"
            )
        last = self._stage(self.config.path.stem if self.config.path else "last", self.configured, None)
        ask, ask_async = requests.last_stage()
        requests.stages = (*stages, replace(last, ask=ask, ask_async=ask_async))
        for query in (" a", " a b", " a b c"):
            for stage in requests.stages:  # both ways in which it is asked
                stage.ask([(stage.whole, query)], None)
                stage.ask([(active, query) for active in stage.single.values()], None)

    def _host(self, config: Config, models: OpenModels | None, offline: bool) -> Classifier:
        """The classifier that answers a stage: this one, or another one if the stage has another model."""
        if config.model == ModelConfig():
            return self
        if find_model(config.model, offline=offline).resolve() == self.engine.model.path.resolve():
            return self
        self._others.append(Classifier.from_config(config, model=models, offline=offline))
        return self._others[-1]

    def _stage(
        self, name: str, loaded: LoadedPrompts, setting: CascadeStage | None, *, with_singles: bool = True
    ) -> Stage:
        """A stage that this classifier answers. setting: the prompts that it is asked; None: all."""
        names = [prompt.name for prompt in loaded.prompts if setting is None or prompt.name in setting.prompts]
        return Stage(
            name=name,
            whole=loaded.active if len(names) == len(loaded.prompts) else self._some(loaded, names),
            single={each: self._some(loaded, [each]) for each in names} if with_singles else {},
            thresholds={} if setting is None else {each: setting.prompts[each].threshold for each in names},
            model=self.model,
            ask=self._requests.ask,
            ask_async=self._requests.ask_async,
        )

    def _some(self, loaded: LoadedPrompts, names: Sequence[str]) -> ActiveSet:
        """Some prompts of a set as a set of their own with the same calibration; it is held until this is closed."""
        adjustments = zip(loaded.prompts, loaded.adjustments, strict=True)
        chosen = [adjustment for prompt, adjustment in adjustments if prompt.name in names]
        active = self._requests.run_alone(self._sets.add, loaded.active.prompts.some(names))
        active.answers.adjust(chosen)
        return active

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
        begun = begin_prefixes(self.engine, self._requests.batcher, compiled.prefixes, self._requests.check_open)
        active = self._requests.run_alone(self._add_calibrated, compiled, begun, calibration)
        return LoadedPrompts(
            self._requests, active, active.prompts.settings, self.config, self.engine.model, sets=self._sets
        )

    def _add_calibrated(
        self, prompts: PromptSet, begun: Sequence[Prefix], calibration: Calibration | None
    ) -> ActiveSet:
        active = self._add(prompts, begun)
        try:
            self._sets.calibrate(active, calibration)
        except BaseException:
            self._sets.remove(active)
            raise
        return active

    def _add(self, prompts: PromptSet, begun: Sequence[Prefix]) -> ActiveSet:
        """Add a set and release the beginnings of its prefixes; release them first if there is no room for both."""
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
        """The prompts as a configuration, rendered to whole texts; None if they are compiled already."""
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
        """Measure the fixed cost of a decode; from then on callers share a decode only if that saves time.

        Takes a second at most, during which no request is answered. Raises DecodeError and ScoreError.
        """
        return self._requests.measure_turns(self.active)

    @property
    def config(self) -> Config:
        """The configuration, with the whole text of every prompt."""
        return self._started.config

    @property
    def model(self) -> ModelInfo:
        """Which model answers."""
        return self._started.info

    @property
    def engine(self) -> Engine:
        """The engine; its `model` is the open Model. For tools, which may use it only while no request is computed."""
        return self._started.engine

    @property
    def turn_ms(self) -> float:
        """Milliseconds since the current turn began; 0 if none is computed. May be read from any thread."""
        return self._requests.batcher.turn_ms

    @property
    def configured(self) -> LoadedPrompts:
        """The prompt set of the configuration."""
        return self._configured

    @property
    def startup_ms(self) -> dict[str, float]:
        """Milliseconds of each step of the start-up."""
        return dict(self._started.ledger.steps_ms)

    def plan_counts(self, query: str) -> Counts:
        """The counts of `classify` for a query all of which is fed; computes nothing. Raises PlanError as it does."""
        return self._requests.counts(self.active, query)

    def classify_pairs(
        self, pairs: Sequence[tuple[LoadedPrompts, str]], *, deadline_s: float | None = None
    ) -> list[Result]:
        """Answer each pair of a prompt set and a query, all in one decode if they fit; see `classify_batch`."""
        return self._requests.ask([(prompts.active, query) for prompts, query in pairs], deadline_s)

    async def aclassify_pairs(
        self, pairs: Sequence[tuple[LoadedPrompts, str]], *, deadline_s: float | None = None
    ) -> list[Result]:
        """`classify_pairs` without blocking the event loop; see `aclassify`."""
        return await self._requests.ask_async([(prompts.active, query) for prompts, query in pairs], deadline_s)

    def close(self) -> None:
        """Answer waiting requests, refuse new ones, then free the context, and the model if it was opened for this.

        May be called again. In a forked process it does nothing, because everything belongs to the parent. If a
        finaliser or a signal handler calls it in the middle of a request of the same thread, later requests are refused
        and the memory is freed with the object, or by the next call.
        """
        if not self._requests.is_of_this_process:
            return
        batcher = self._requests.batcher
        batcher.close()
        if not batcher.is_inside:
            batcher.run_alone(self._free)

    def _free(self) -> None:
        self.engine.close()
        for other in self._others:
            other.close()
        if self._owns_model:
            self.engine.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
