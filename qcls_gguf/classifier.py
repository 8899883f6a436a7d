"""The public API, in one file: a classifier is the handle of a configuration's prompts, with its engine and model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Self

from .config.fitted import check_model
from .config.load import load_config
from .config.prompt import PromptConfig
from .config.resources import DEFAULT_CONFIG
from .config.schema import Config, check_config
from .config.words import instead_of, shown
from .core.core import Core, Item
from .core.handle import PromptHandle, load_prompts
from .core.startup import Prepared, prepare, start
from .engine.capacity import check_capacity
from .engine.engine import Engine
from .engine.open import compile_config
from .engine.prefix_cache import Prefix
from .errors import ConfigError
from .model import Model, OpenModels
from .prompts.prompt_set import PromptSet, read_depths
from .score.result import ModelInfo, Result
from .system.lifetimes import OnStep


class Classifier(PromptHandle):
    """Labels queries by all prompts of a configuration.

    Creating it loads the model, caches the prompts and warms up. Usable from several threads: while one request is
    computed others wait; they then share the next decode, up to `runtime.max_batch` queries, if that pays.

        with Classifier.from_config("fashion-8") as classifier:
            print(classifier.classify("red dress for girls").labels)
    """

    def __init__(self, prepared: Prepared, core: Core | None = None, held: Sequence[Prefix] = ()) -> None:
        """Use `from_config`."""
        if core is None:
            raise ConfigError(f"a Classifier is made by Classifier.from_config, not by Classifier({shown(prepared)})")
        super().__init__(core, prepared.compiled.prompts, held, prepared.sources)
        self._prepared = prepared

    def __getattr__(self, name: str) -> NoReturn:
        if instead := instead_of("Classifier", name):
            raise AttributeError(f"a Classifier has no {name} any more: {instead}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def from_config(
        cls,
        config: str | Path | Config = DEFAULT_CONFIG,
        *,
        model: Model | OpenModels | None = None,
        offline: bool = False,
        on_step: OnStep | None = None,
        on_load: Callable[[float], None] | None = None,
        audit: bool = False,
    ) -> Self:
        """Load the model, cache the prompts and warm up.

        config: a YAML file, the name of a configuration that comes with the package (`mission`, `fashion-8`,
        `fashion-8-joint`, `qwen3-8b-t4`), or a Config. model: an open Model to use instead of the one that config
        names, or OpenModels, which opens and shares it; it must stay open as long as the classifier. offline: take a
        model of the hub from the local cache only. on_step(step, description, ms) is called after every step of the
        start-up, and once in a long one; on_load(fraction) while the model loads, with 0 to 1. audit: add exact scores
        to every answer; this computes the LM head and all tokens of the labels.
        Raises ConfigError or ModelError.
        """
        config = load_config(config) if isinstance(config, str | Path) else config
        return cls.open(prepare(config, model, offline=offline, on_step=on_step, on_load=on_load, audit=audit))

    @classmethod
    def open(cls, prepared: Prepared) -> Self:
        """Open what was prepared, once. Raises ConfigError or ModelError."""
        return start(prepared, lambda core, held: cls(prepared, core, held))

    def prompt_set(
        self, prompts: str | Path | Config | Sequence[PromptConfig] | PromptSet, *, audit: bool = False
    ) -> PromptHandle:
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
        engine, calibration = self.engine, None
        if not isinstance(prompts, PromptSet):
            if isinstance(prompts, str | Path):
                config = load_config(prompts)
            else:
                config = check_config(prompts if isinstance(prompts, Config) else Config(prompts=tuple(prompts)))
            compiled = compile_config(config.changed(model=self.config.model), engine.model, audit=audit)
            check_model(config, self.model.sha256, compiled.calibration, compiled.heads)
            prompts, calibration = compiled.prompts, compiled.calibration
        facts = engine.model.facts
        check_capacity(prompts, engine.capacity, self.config.runtime.max_query_tokens, facts.n_ctx_train)
        engine.model.check_loaded(read_depths([prompts], facts.n_layer)[1])
        engine.model.output_rows.of(prompts.label_tokens.tolist())  # read before anybody has to wait for it
        return load_prompts(self.core, prompts, calibration)

    def classify_pairs(self, pairs: Sequence[Item], *, deadline_s: float | None = None) -> list[Result]:
        """Answer pairs of a prompt set's handle and a query, all in one decode if they fit; see `classify_batch`."""
        return self.core.ask(pairs, deadline_s)

    def measure_turns(self) -> float:
        """Measure the fixed cost of a decode; from then on callers share a decode only if that saves time.

        Returns the number of tokens that take as long. Takes a second at most, during which no request is answered.
        Raises DecodeError and ScoreError.
        """
        return self.core.measure_turns(self)

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
        """Milliseconds of the steps of the start-up."""
        return dict(self._prepared.ledger.steps_ms)

    def close(self) -> None:
        """Answer waiting requests, refuse new ones, then free the context, and the model if it was opened for this.

        May be called again. In a forked process it does nothing, because everything belongs to the parent. If a
        finaliser calls it in the thread that computes, later requests are refused and the memory is freed with the
        object, or by the next call.
        """
        self.core.executor.close(self._free)

    def _free(self) -> None:
        self.engine.close()
        self._prepared.close()
