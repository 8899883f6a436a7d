"""Opens an engine for a model, a runtime configuration and the prompts that determine its size.

With `runtime.batch_invariant` a query's results are independent of what else is in its decode. This project's CUDA
kernels must then compute all products, because llama.cpp's split their sums by the number of tokens. So the conditions
here are those of can_compute in native/cuda/mmq_direct_graph.cu. The output matrix is multiplied for exact scores only.
The C shim checks the conditions for attention.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ..config.fitted import Calibration, Heads, layers_needed, read_fitted
from ..config.schema import Config, RuntimeConfig
from ..config.words import counted, shown
from ..errors import ConfigError, DecodeError, ModelError, PlanError
from ..model import Model, OpenModels, Vocabulary
from ..model.header import TensorInfo
from ..model.open import context_memory, find_file, open_vocabulary
from ..model.placement import ON_CPU, fitted_placement, flash_attention, gpus, is_scarce, used_gpus
from ..native.context import ContextSettings, NativeContext, n_contexts_on_gpus
from ..native.device import type_name
from ..prompts.chat import render_prompts
from ..prompts.prompt_set import PromptSet, compile_prompts, read_depths
from ..system.lifetimes import Ledger
from .capacity import limits
from .engine import Engine
from .resources import LEAST_FREE_BYTES, check_memory, shortage_on_gpus, threads

_COLUMNS_STEP = {8: 256, 12: 256, 14: 512}
"""For Q8_0, Q4_K and Q6_K: the length of a row must be a multiple of this."""
_ROWS_STEP = 32
_MOST_ROWS = 26_112
"""of a layer's matrix: 4,096 tiles of 64 rows and 112 of a decode's 1,024 tokens"""
_MOST_OUTPUT_ROWS = 262_144
"""of the output matrix, which is multiplied with at most 112 rows (qcls_context_params in native/src/qcls.h)"""
_OUTPUTS = ("output.weight", "token_embd.weight")


def open_engine(model: Model, runtime: RuntimeConfig, prompts: PromptSet, ledger: Ledger) -> Engine:
    """An engine with an empty cache for a prompt set, and for questions at run time.

    Raises ConfigError if a limit is too small, ModelError for a model whose logits cannot be computed from its hidden
    states, or if memory is lacking.
    """
    n_threads, why = threads(runtime)
    settings, n_leaf_seqs = _settings(model, runtime, prompts, n_threads)
    if model.n_gpu_layers == 0:  # a GPU's driver refuses what it does not have
        check_memory(model, settings, runtime.kv_type, lambda: context_memory(model.file, ON_CPU, settings))
    why_no_logits = _check_invariant(model, prompts) if runtime.batch_invariant else None
    context = _open_context(model, runtime, settings)
    ledger.step(
        "open context",
        f"{context.n_ctx} cells, {counted(context.n_batch, 'token')} a decode, "
        f"{counted(context.n_seq_max, 'sequence')}, {counted(n_threads, 'thread')} ({why})",
    )
    label_tokens = prompts.label_tokens if prompts.exact else None
    engine = Engine(model, context, n_leaf_seqs=n_leaf_seqs, label_tokens=label_tokens, why_no_logits=why_no_logits)
    try:
        engine.set_depths(*read_depths([prompts], model.facts.n_layer))
    except BaseException:
        engine.close()
        raise
    return engine


def open_model(config: Config, models: OpenModels, *, audit: bool = False, ledger: Ledger | None = None) -> Model:
    """The model of a configuration, with as many layers on GPUs as leave memory for the context of `open_engine`.

    audit: as for `compile_prompts`. Raises ConfigError or
    ModelError, also for what `open_engine` would refuse.
    """
    ledger, runtime, placed = ledger or Ledger(), config.runtime, None
    n_first = 0 if audit else layers_needed(config)
    if model := models.get(config, n_first):
        ledger.step("find model", str(model.path))
        ledger.step("load model", "open already")
        return model
    file = replace(find_file(models.path_of(config), ledger), n_first=n_first)
    if is_scarce(runtime, file.size_bytes, gpus()):
        try:
            with open_vocabulary(file, runtime, ledger) as vocabulary:
                settings = context_settings(config, vocabulary, audit=audit)
            placed, taken = fitted_placement(
                runtime, file.weights, gpus(), lambda placed: context_memory(file, placed, settings)
            )
        except (DecodeError, ModelError, PlanError) as e:  # if the whole model has the same fault, it says so
            ledger.step("measure context", f"not possible, 1 GiB of each GPU is left for it: {e}")
        else:
            ledger.step("measure context", f"{taken}, beside the weights")
    return models.open(config, file, placed, ledger)


class Compiled(NamedTuple):
    """A configuration's prompts on a model."""

    config: Config
    """with the whole text of every prompt, and the stated thresholds"""
    prompts: PromptSet
    calibration: Calibration | None
    heads: Heads | None


def compile_config(
    config: Config,
    model: Vocabulary,
    *,
    audit: bool = False,
    fitted: tuple[Config, Calibration | None, Heads | None] | None = None,
    ledger: Ledger | None = None,
) -> Compiled:
    """Render the prompts by the chat template where one is needed, and compile them with their fitted files.

    audit: as for `compile_prompts`; fitted: what `read_fitted`
    gave already. Reads the rows of the output matrix of a Model. Raises ConfigError, ModelError.
    """
    ledger = ledger or Ledger()
    if n_rendered := sum(prompt.is_chat for prompt in config.prompts):
        rendered = render_prompts(config.prompts, model, config.model)
        whose = "the configuration's" if config.model.chat_template else "the file's own"
        what = f"{whose}, {counted(n_rendered, 'prompt')}"
        if rendered.folded:
            what += f"; it has no turn for a system text, which begins the user's: {', '.join(rendered.folded)}"
        if rendered.end:
            what += f"; it ends answers with {shown(rendered.end)}, not the file's end of turn, and so do labels here"
        ledger.step("chat template", what)
        config = config.changed(prompts=rendered.prompts)
    config, calibration, heads = fitted or read_fitted(config)
    if heads is not None:
        heads.check_shape(model.facts.n_layer, model.facts.n_embd)
    n_labels = sum(len(prompt.labels) for prompt in config.prompts)
    with ledger.at_work("compile prompts", counted(n_labels, "label")):
        prompts = compile_prompts(config.prompts, model, audit=audit, heads=heads)
    if isinstance(model, Model):
        model.output_rows.of(prompts.label_tokens.tolist())  # before anybody has to wait for them
    n_read = sum(len(prompt.trie.read) for prompt in prompts.fed)
    ledger.step(
        "compile prompts", f"{counted(len(prompts.prompts), 'prompt')}, {counted(n_read, 'hidden state')} a query"
    )
    return Compiled(config, prompts, calibration, heads)


def context_settings(config: Config, vocabulary: Vocabulary, *, audit: bool = False) -> ContextSettings:
    """The settings with which `open_engine` opens the context of a configuration, except the number of threads.

    audit: as for `compile_prompts`. Raises what `compile_config` and `open_engine` raise.
    """
    prompts = compile_config(config, vocabulary, audit=audit).prompts
    if config.runtime.batch_invariant:
        _check_invariant(vocabulary, prompts)
    return _settings(vocabulary, config.runtime, prompts, n_threads=1)[0]


def _open_context(model: Model, runtime: RuntimeConfig, settings: ContextSettings) -> NativeContext:
    """Open a context, unless it would leave too little of a GPU's memory for its decodes.

    That is checked if layers were placed for a context, perhaps of another configuration, and if other contexts are
    open: a process that opens another must not end because of it. Raises ModelError.
    """
    n_others, placed = n_contexts_on_gpus(), model.placement
    try:
        context = NativeContext(model.native, **settings)
    except ModelError as e:
        if model.n_gpu_layers == 0:
            raise
        why = str(e)
    else:
        is_asked = runtime.n_gpu_layers == "auto" or n_others > 0
        free = [gpu.free_bytes for gpu in used_gpus(placed)] if is_asked else []
        if (n_least := min(free, default=LEAST_FREE_BYTES)) >= LEAST_FREE_BYTES:
            return context
        context.close()
        why = (
            f"{model.path}: a context would leave {n_least >> 20} MiB of a GPU free, and decodes need "
            f"{LEAST_FREE_BYTES >> 20}"
        )
    taken = context_memory(model.file, placed, settings)
    free_bytes = [gpu.free_bytes for gpu in used_gpus(placed)]
    raise ModelError(f"{why}; {shortage_on_gpus(runtime, placed.n_gpu_layers, taken, free_bytes, n_others)}")


def _settings(
    model: Vocabulary, runtime: RuntimeConfig, prompts: PromptSet, n_threads: int
) -> tuple[ContextSettings, int]:
    """The settings of a context, and how many of its sequences are for the leaves of token trees."""
    facts, decides = model.facts, model.header.decision_kind is not None
    sizes, n_leaf_seqs = limits(
        runtime, prompts, facts.n_ctx_train, model.n_ctx_short, facts.state_bytes, decides, facts.walks_trees
    )
    settings = ContextSettings(
        **sizes,  # type: ignore[typeddict-item]  # which has defaults for the others
        n_threads=n_threads,
        flash_attn=flash_attention(runtime, model.n_gpu_layers),
        batch_invariant=runtime.batch_invariant,
        kv_type=runtime.kv_type,
        label_tokens=prompts.label_tokens if prompts.exact else None,
    )
    return settings, n_leaf_seqs


def _check_invariant(model: Vocabulary, prompts: PromptSet) -> str | None:
    """Raise ConfigError for what cannot be batch-invariant. If only logits cannot, returns why there are none."""
    if model.has_states:
        what = "runtime.batch_invariant: recurrent layers, which this model has, have no kernels for that"
        raise ConfigError(f"{what}: leave it out, max_batch 1 keeps queries apart")
    why_no_logits = check_tensors(model.file.tensors)
    if why_no_logits and prompts.exact:
        raise ConfigError(why_no_logits)
    return why_no_logits


def check_tensors(tensors: Mapping[str, TensorInfo]) -> str | None:
    """Raise ConfigError if the kernels cannot compute a matrix of the layers. tensors: of all the file's parts.

    Returns why exact scores, which need all rows of the output matrix, are impossible; None if the kernels can compute
    it. Other scores need only the rows of label tokens, which are multiplied on the CPU, whatever its type.
    """
    for name, tensor in tensors.items():
        if name.startswith("blk.") and len(tensor.shape) > 1 and (wrong := _wrong_matrix(tensor, _MOST_ROWS)):
            raise ConfigError(f"runtime.batch_invariant: {wrong}; without it, max_batch 1 keeps queries apart")
    wrong = _wrong_matrix(next(tensors[name] for name in _OUTPUTS if name in tensors), _MOST_OUTPUT_ROWS)
    remedy = "choose scoring: tree, or leave batch_invariant out; max_batch 1 keeps queries apart"
    return wrong and f"runtime.batch_invariant: {wrong}, for exact scores: {remedy}"


def _wrong_matrix(tensor: TensorInfo, most_rows: int) -> str | None:
    step = _COLUMNS_STEP.get(tensor.ggml_type)
    if step is None:
        what = f"tensor {tensor.name!r} is {type_name(tensor.ggml_type)}"
        return f"{what}, and the kernels for that take Q4_K, Q6_K and Q8_0: choose another file"
    if len(tensor.shape) > 2 or tensor.shape[0] % step or tensor.shape[1] % _ROWS_STEP or tensor.shape[1] > most_rows:
        what = f"tensor {tensor.name!r} has the shape {tensor.shape}, and the kernels for that take two dimensions"
        return f"{what}, the first a multiple of {step}, the second of {_ROWS_STEP} and at most {most_rows}"
    return None
