"""The start-up: all work that is done once, before the first request, so that requests need not do it.

`prepare` makes a value of a configuration and a model: rendered, compiled, placed. `start` opens it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, Unpack

from ..config.fitted import check_model, read_fitted
from ..config.prompt import PromptConfig
from ..config.schema import Config, Variant, check_config, variant_of
from ..config.words import counted
from ..engine.capacity import N_UNTIL_CAPTURED, shapes
from ..engine.engine import Engine
from ..engine.open import Compiled, compile_config, open_engine, open_model
from ..engine.prefix_cache import Prefix
from ..engine.prefix_file import hold_prefixes
from ..engine.resources import LEAST_FREE_BYTES
from ..errors import ConfigError, DecodeError, ModelError, PlanError, ScoreError
from ..model import Model, OpenModels
from ..model.placement import device_name, used_gpus
from ..native import build_info
from ..native.device import warn_of_unused_gpu
from ..score.adjustment import content_free_queries
from ..score.result import ModelInfo
from ..system.lifetimes import Ledger, OnStep, check_gil
from ..version import __version__
from .core import Core
from .handle import PromptHandle

H = TypeVar("H", bound=PromptHandle)

# Query lengths that are decoded at start-up, so that a GPU loads their kernels; longer queries use the same kernels.
_WARM_TOKENS = 64
_WARM_STEP = 4
_MOST_PLANNED = 32768
"""Most tokens of all plans that are made at start-up, which takes 0.1 s: enough for every length of query up to
_WARM_TOKENS with eight prompts, and for the shortest queries with many."""
_LEAST_SHAPES = 2
"""Graphs that are kept however little memory there is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A configuration on a model: rendered, compiled, placed, ready to be opened. It holds the open model."""

    compiled: Compiled
    sources: Sequence[PromptConfig]
    """the prompts as written"""
    model: Model
    owns_model: bool
    """whether the model was opened for it, and is closed with what is opened"""
    ledger: Ledger

    def close(self) -> None:
        """Close the model, if it was opened for this."""
        if self.owns_model:
            self.model.close()


def prepare(
    config: Config,
    model: Model | OpenModels | None = None,
    *,
    offline: bool = False,
    on_step: OnStep | None = None,
    on_load: Callable[[float], None] | None = None,
    audit: bool = False,
    **variant: Unpack[Variant],
) -> Prepared:
    """Open the model, unless an open one is given; render and compile the prompts.

    audit: add exact scores to every answer; variant: what of the configuration is not as written. Raises ConfigError or
    ModelError, after closing what it opened.
    """
    check_gil()
    config = variant_of(check_config(config), **variant)
    ledger = Ledger(on_step)
    if config.runtime.n_gpu_layers != 0:
        warn_of_unused_gpu()
    # If the prompts' texts are known, mistakes in their calibration are reported before the model is loaded.
    fitted = None if any(prompt.is_chat for prompt in config.prompts) else read_fitted(config)
    models = model if isinstance(model, OpenModels) else OpenModels(offline=offline, on_load=on_load)
    opened = model if isinstance(model, Model) else open_model(config, models, audit=audit, ledger=ledger)
    if opened.opened_with != config.runtime.of_model:
        wanted, given = (", ".join(words) for words in (config.runtime.of_model, opened.opened_with))
        what = f"runtime.query_tokens and cpu_activations: {wanted}, and the open model has {given}"
        raise ConfigError(f"{what}: open it with the same")
    try:
        compiled = compile_config(config, opened, audit=audit, fitted=fitted, ledger=ledger)
    except BaseException as e:
        if model is None:
            opened.close()
        if isinstance(e, PlanError):
            raise ModelError(f"{opened.path}: {e}") from e
        raise
    return Prepared(compiled=compiled, sources=config.prompts, model=opened, owns_model=model is None, ledger=ledger)


def start(prepared: Prepared, make: Callable[[Core, Sequence[Prefix]], H]) -> H:
    """Open the context, cache the prompts, warm up and calibrate.

    make: the handle of the configured prompts, given their cached prefixes. Raises ConfigError or ModelError, after
    closing what it opened, and the model if it was opened for this.
    """
    config, prompts, calibration, heads = prepared.compiled
    model, ledger = prepared.model, prepared.ledger
    engine = None
    try:
        engine = open_engine(model, config.runtime, prompts, ledger)
        held = hold_prefixes(engine, prompts.prefixes, config.runtime, ledger)
        engine.context.keep_shapes(shapes(config.runtime.max_query_tokens, model.n_gpu_layers)[0])
        sha256 = model.sha256()
        check_model(config, sha256, calibration, heads)
        ledger.step("hash model", f"sha256 {sha256[:16]}…, in the background")
        core = Core(engine, _model_info(model), config)
        handle = make(core, held)
        core.add(handle)
        _warm_up(handle)
        kept = engine.context.counters()
        ledger.step("warm-up", f"{counted(kept.n_shapes, 'graph')}, {kept.shapes_bytes / (1 << 20):.0f} MiB")
        handle.calibrate(calibration)
        if queries := content_free_queries(prompts.settings):
            ledger.step("priors", counted(len(queries), "content-free query", "content-free queries"))
        core.start()
        return handle
    except BaseException as e:
        if engine is not None:
            engine.close()
        prepared.close()
        if isinstance(e, PlanError | DecodeError | ScoreError):  # no query was asked yet, so the model is the cause
            raise ModelError(f"{model.path}: {e}") from e
        raise


def _model_info(model: Model) -> ModelInfo:
    build, kind = build_info(), model.header.decision_kind
    return ModelInfo(
        path=str(model.path),
        sha256=model.sha256(),
        quantization=model.header.quantization,
        description=model.facts.description + (f", a decision model ({kind})" if kind else ""),
        size_bytes=model.file.size_bytes,
        n_gpu_layers=model.n_gpu_layers,
        device=device_name(model.placement),
        llama_cpp_commit=build.llama_cpp_commit,
        source_digest=build.source_digest,
        backend=build.backend,
        package_version=__version__,
        n_lane_ordered=model.facts.n_lane_ordered,
        stock_types=model.stock_types,
    )


def _warm_up(handle: PromptHandle) -> None:
    """Run decodes like those of requests, because kernels load and graphs are built and captured at first uses."""
    core, templates = handle.core, handle.templates
    engine, runtime = core.engine, core.config.runtime
    on_gpu = engine.model.n_gpu_layers > 0
    _, n_warm = shapes(runtime.max_query_tokens, engine.model.n_gpu_layers)

    def request(*queries: str) -> None:
        with suppress(PlanError):  # in some vocabularies a query of few letters has too many tokens
            core.answer([(handle, query) for query in queries])
        _leave_memory(engine)

    if on_gpu:
        for n in range(n_warm, min(_WARM_TOKENS, runtime.max_query_tokens) + 1, _WARM_STEP):
            request(" a" * n)
        for n in range(2, runtime.max_batch + 1):
            request(*(f" a{' b' * i}" for i in range(n)))

    def build(n: int) -> int | None:
        if template := templates.of_query(n):
            for _ in range(N_UNTIL_CAPTURED if on_gpu else 1):
                engine.decode(template.decode)
        return _leave_memory(engine)

    lengths = range(n_warm, -2, -1) if n_warm else range(0)  # the last ones are kept longest
    most = None
    for n in lengths:
        most = build(n) or most
    for n in lengths[-most:] if most else ():  # graphs that are to be kept, some of which were freed
        build(n)
    n_planned = 0
    for n in range(_WARM_TOKENS):
        template = templates.of_query(n)
        n_planned += template.decode.n_tokens if template else 0
        if n_planned > _MOST_PLANNED or (n and template is None):  # this query takes several decodes, as longer ones do
            break
    request("a")


def _leave_memory(engine: Engine) -> int | None:
    """If a GPU that the context uses has little memory left, free all its graphs, and let it keep one fewer.

    Returns how many it keeps from now on; None if nothing was done.
    """
    if all(gpu.free_bytes >= LEAST_FREE_BYTES for gpu in used_gpus(engine.model.placement)):
        return None
    n_kept: int = engine.context.counters().n_shapes
    if n_kept <= _LEAST_SHAPES:
        return None
    engine.context.keep_shapes(n_kept - 1)
    return n_kept - 1
