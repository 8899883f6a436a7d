"""The start-up: all work that is done once, before the first request, so that requests need not do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ..config.calibration_file import Calibration
from ..config.heads_file import Heads, read_fitted
from ..config.prompt import PromptConfig
from ..config.schema import Config, RuntimeConfig
from ..config.words import counted, shown
from ..engine.capacity import N_UNTIL_CAPTURED, shapes
from ..engine.cores import OtherPrograms, threads
from ..engine.engine import Engine
from ..engine.memory import LEAST_FREE_BYTES
from ..engine.open import open_engine, open_model
from ..engine.prefix_file import StateCache, hold_prefixes
from ..errors import ConfigError, DecodeError, ModelError, PlanError, ScoreError
from ..model import Model, OpenModels
from ..model.placement import device_name, used_gpus
from ..native import build_info
from ..native.device import driver_step
from ..prompts.chat import is_chat, render_prompts
from ..prompts.prompt_set import compile_prompts
from ..score.adjustment import content_free_queries
from ..score.result import ModelInfo
from ..system.threads import check_gil
from ..system.timing import Ledger
from ..version import __version__
from .core import Core
from .handle import LoadedPrompts
from .loading import add, calibrate

# Query lengths that are decoded at start-up, so that a GPU loads their kernels; longer queries use the same kernels.
_WARM_TOKENS = 64
_WARM_STEP = 4
_MOST_PLANNED = 32768
"""Most tokens of all plans that are made at start-up, which takes 0.1 s: enough for every length of query up to
_WARM_TOKENS with eight prompts, and for the shortest queries with many."""
_LEAST_SHAPES = 2
"""Graphs that are kept however little memory there is."""
_MOST_SHAPES_BYTES = 128 << 20
"""Most memory for the compute buffers of kept graphs on a CPU, where a new graph costs only 2 % of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierParts:
    """The parts of a classifier, warm and calibrated."""

    core: Core
    prompts: LoadedPrompts
    """the configured prompts"""
    ledger: Ledger


def start(
    config: Config,
    model: Model | OpenModels | None = None,
    *,
    offline: bool = False,
    on_step: Callable[[str, str, float], None] | None = None,
    on_load: Callable[[float], None] | None = None,
    audit: bool = False,
) -> ClassifierParts:
    """Open the model, unless an open one is given; compile and cache the prompts; warm up.

    audit: add exact scores to every answer. Raises ConfigError or ModelError, after closing what it opened.
    """
    check_gil()
    ledger, others = Ledger(on_step), OtherPrograms()
    if config.runtime.n_gpu_layers != 0 and (step := driver_step()):
        ledger.step("GPU code", step)
    # If the prompts' texts are known, mistakes in their calibration are reported before the model is loaded.
    calibration = heads = None
    if not is_chat(config.prompts):
        config, calibration, heads = read_fitted(config)
    models = model if isinstance(model, OpenModels) else OpenModels(offline=offline, on_load=on_load)
    opened = model if isinstance(model, Model) else open_model(config, models, audit=audit, ledger=ledger)
    if opened.opened_with != config.runtime.of_model:
        wanted, found = (", ".join(words) for words in (config.runtime.of_model, opened.opened_with))
        raise ConfigError(
            f"runtime.query_tokens and cpu_activations: {wanted}, and the open model was opened with {found}: "
            "open it with the same"
        )
    try:
        sources = config.prompts
        if is_chat(sources):
            config = _rendered(config, opened, ledger)
            config, calibration, heads = read_fitted(config)
        started = _start(config, sources, opened, calibration, heads, ledger, audit=audit)
    except BaseException as e:
        if model is None:
            opened.close()
        if isinstance(e, PlanError | DecodeError | ScoreError):  # no query was asked yet, so the model is the cause
            raise ModelError(f"{opened.path}: {e}") from e
        raise
    if opened.n_gpu_layers == 0 and (crowding := others.crowding(threads(config.runtime).n)):
        ledger.step("CPUs", crowding)
    return started


def _start(
    config: Config,
    sources: Sequence[PromptConfig],
    model: Model,
    calibration: Calibration | None,
    heads: Heads | None,
    ledger: Ledger,
    *,
    audit: bool,
) -> ClassifierParts:
    if heads is not None:
        heads.check_shape(model.facts.n_layer, model.facts.n_embd)
    n_labels = sum(len(prompt.labels) for prompt in config.prompts)
    with ledger.at_work("compile prompts", counted(n_labels, "label")):
        prompts = compile_prompts(config.prompts, model, audit=audit, heads=heads)
    n_read = sum(len(prompt.trie.read) for prompt in prompts.prompts)
    model.output_rows.of(prompts.label_tokens.tolist())
    ledger.step(
        "compile prompts", f"{counted(len(prompts.prompts), 'prompt')}, {counted(n_read, 'hidden state')} a query"
    )
    engine = open_engine(model, config.runtime, prompts, ledger)
    try:
        held, prefix_file = hold_prefixes(engine, prompts.prefixes, config.runtime, ledger)
        engine.context.keep_shapes(shapes(config.runtime, model.n_gpu_layers)[0])
        sha256 = model.sha256()
        for fitted in (calibration, heads):
            if fitted is not None:
                fitted.check_model(sha256)
        ledger.step("hash model", f"sha256 {sha256[:16]}…, in the background")
        label_tokens = prompts.label_tokens if prompts.exact else np.empty(0, np.int32)
        core = Core(engine, _model_info(model), config, label_tokens)
        loaded = add(core, prompts, held, sources)
        _warm_up(core, loaded, config.runtime, prefix_file)
        kept = engine.context.counters()
        ledger.step("warm-up", f"{counted(kept.n_shapes, 'graph')}, {kept.shapes_bytes / (1 << 20):.0f} MiB")
        calibrate(core, loaded, calibration)
        if queries := content_free_queries(prompts.settings):
            n_queries = counted(len(queries), "content-free query", "content-free queries")
            n_prompts = sum(prompt.prior == "content_free" for prompt in prompts.settings)
            ledger.step("priors", f"{n_queries}, {counted(n_prompts, 'prompt')}")
        core.start()
    except BaseException:
        engine.close()
        raise
    return ClassifierParts(core=core, prompts=loaded, ledger=ledger)


def _rendered(config: Config, model: Model, ledger: Ledger) -> Config:
    found = render_prompts(config.prompts, model, config.model)
    whose = "the configuration's" if config.model.chat_template else "the file's own"
    what = f"{whose}, {counted(found.n_rendered, 'prompt')}"
    if found.folded:
        what += f"; it has no turn for a system text, which begins the user's: {', '.join(found.folded)}"
    if found.end:
        what += f"; it ends answers with {shown(found.end)}, and so do labels here, not with the file's end of turn"
    ledger.step("chat template", what)
    return config.changed(prompts=found.prompts)


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
    )


def _warm_up(core: Core, prompts: LoadedPrompts, runtime: RuntimeConfig, prefix_file: StateCache | None) -> None:
    """Warm up. prefix_file: the file that prefixes were read from; if their cells give no scores, it is removed."""
    try:
        _run_decodes(core, prompts, runtime)
    except ScoreError as e:
        if prefix_file is None:
            raise
        # The engine has already computed the prefixes in use again.
        prefix_file.warn(f"its cells give no scores ({e})")
        prefix_file.discard()
        _run_decodes(core, prompts, runtime)


def _run_decodes(core: Core, prompts: LoadedPrompts, runtime: RuntimeConfig) -> None:
    """Run decodes like those of requests, because kernels load and graphs are built and captured at first uses."""
    engine, templates = core.engine, prompts.templates
    on_gpu = engine.model.n_gpu_layers > 0
    n_shapes, n_warm = shapes(runtime, engine.model.n_gpu_layers)

    def request(*queries: str) -> None:
        with suppress(PlanError):  # in some vocabularies a query of few letters has too many tokens
            core.answer([(prompts, query) for query in queries])
        _leave_memory(engine, runtime)

    if on_gpu:
        for n in range(n_warm, min(_WARM_TOKENS, runtime.max_query_tokens) + 1, _WARM_STEP):
            request(" a" * n)
        for n in range(2, runtime.max_batch + 1):
            request(*(f" a{' b' * i}" for i in range(n)))

    def build(n: int) -> int | None:
        if template := templates.of_query(n):
            for _ in range(N_UNTIL_CAPTURED if on_gpu else 1):
                engine.decode(template.any_tokens())
        return _leave_memory(engine, runtime)

    lengths = range(min(n_warm, n_shapes - 2), -2, -1) if n_warm else range(0)  # the last ones are kept longest
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
    if not on_gpu and runtime.n_shapes == "auto":
        kept = engine.context.counters()
        n_fitting = max(_LEAST_SHAPES, _MOST_SHAPES_BYTES * kept.n_shapes // max(1, kept.shapes_bytes))
        if n_fitting < n_shapes:
            engine.context.keep_shapes(n_fitting)  # frees what was built
            request("a")


def _leave_memory(engine: Engine, runtime: RuntimeConfig) -> int | None:
    """If a GPU that the context uses has little memory left, free all its graphs, and let it keep one fewer.

    Returns how many it keeps from now on; None if nothing was done.
    """
    if runtime.n_shapes != "auto" or all(
        gpu.free_bytes >= LEAST_FREE_BYTES for gpu in used_gpus(engine.model.placement)
    ):
        return None
    n_kept = engine.context.counters().n_shapes
    if n_kept <= _LEAST_SHAPES:
        return None
    engine.context.keep_shapes(n_kept - 1)
    return n_kept - 1
