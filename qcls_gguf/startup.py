"""From a configuration to a ready engine: every step that a request must not pay for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from . import __version__
from .config.calibration_file import Calibration, read_calibration
from .config.resources import embedded_model
from .config.schema import Config, ModelConfig, PromptConfig, RuntimeConfig
from .config.scoring import EXACT_SCORINGS
from .engine.capacity import flash_attention, limits, n_gpu_layers, n_threads, shapes
from .engine.engine import Engine
from .engine.prefixes import cache_prefixes
from .errors import ConfigError, ModelError
from .model.header import GgufHeader
from .model.hub import fetch_model
from .model.identity import ModelIdentity, check_gguf, identify, model_parts
from .model.rows import read_head_rows
from .native import NativeContext, NativeModel, build_info, devices
from .prompts.compiled import Prompt, compile_prompt
from .score.result import ModelInfo
from .score.scorer import Scorer
from .timing import Ledger

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything a classifier works with; the engine owns the model and the context."""

    config: Config
    engine: Engine
    prompts: tuple[Prompt, ...]
    n_empty: tuple[int, ...]
    """the fragment's length for an empty query, for each prompt"""
    scorer: Scorer
    calibration: Calibration | None
    """what the configuration's calibration file holds"""
    model: ModelInfo
    is_all_on_gpu: bool
    """whether every layer is on a GPU, so that a decode leaves the calling thread idle"""
    ledger: Ledger


def start(
    config: Config,
    *,
    offline: bool = False,
    on_step: Callable[[str, str, float], None] | None = None,
    on_load: Callable[[float], None] | None = None,
    audit: bool = False,
) -> Parts:
    """Find, check and load the model; compile and cache the prompts.

    audit: let every answer carry its exact scores. Raises ConfigError or ModelError.
    """
    ledger = Ledger(on_step)
    calibration = read_calibration(config)
    path = find_model(config.model, offline=offline)
    header = check_gguf(path)
    ledger.step("find model", str(path))
    with _Hashing(path) as hashing:
        gpus = [device for device in devices() if device.kind in ("GPU", "iGPU")]
        size_bytes = sum(part.stat().st_size for part in model_parts(path))
        layers = n_gpu_layers(config.runtime, size_bytes, _n_layer(header), gpus)
        model = NativeModel(path, n_gpu_layers=layers, progress=_progress(on_load))
        try:
            ledger.step("load model", f"{model.facts.description}, {_gpu_words(layers)}")
            prompts, n_empty = _compile(config.prompts, model, header, exact=audit)
            exact = audit or any(prompt.scoring in EXACT_SCORINGS for prompt in config.prompts)
            tokens = _label_tokens(prompts)
            rows = read_head_rows(path, tokens.tolist())
            scorer = Scorer([prompt.trie for prompt in prompts], rows, tokens if exact else None)
            ledger.step("compile prompts", f"{len(prompts)} prompts, {scorer.n_positions} hidden states a query")
            context = _context(
                config.runtime, layers, model, prompts, n_empty, tokens if exact else None, _n_ctx_short(header), ledger
            )
            engine = cache_prefixes(
                config.runtime, context, model, prompts, layers, lambda: hashing.identity().sha256, ledger
            )
            context.keep_shapes(shapes(config.runtime, layers)[0])
            identity = hashing.identity()
            if calibration is not None:
                calibration.check_model(identity.sha256)
            ledger.step("hash model", f"sha256 {identity.sha256[:16]}…, in the background")
        except BaseException:
            model.close()
            raise
    build = build_info()
    return Parts(
        config=config,
        engine=engine,
        prompts=prompts,
        n_empty=n_empty,
        scorer=scorer,
        calibration=calibration,
        is_all_on_gpu=layers > _n_layer(header),
        ledger=ledger,
        model=ModelInfo(
            path=str(path),
            sha256=identity.sha256,
            quantization=_quantization(header),
            description=model.facts.description,
            size_bytes=identity.size_bytes,
            n_gpu_layers=layers,
            device=_device_name(layers),
            llama_cpp_commit=build.llama_cpp_commit,
            source_digest=build.source_digest,
            backend=build.backend,
            package_version=__version__,
        ),
    )


def find_model(model: ModelConfig, *, offline: bool) -> Path:
    """The model's file: the one named, one of the hub, or the embedded one. Raises ConfigError or ModelError."""
    if model.hf_repo:
        return fetch_model(
            model.hf_repo, quantization=model.quantization, revision=model.revision, offline=offline, progress=True
        )
    return model.path or embedded_model()


class _Hashing:
    """Hashes the model file beside its loading: both read it, and a large file is hashed for seconds."""

    def __init__(self, path: Path) -> None:
        self._identity: ModelIdentity | None = None
        self._error: ModelError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(path,))

    def _run(self, path: Path) -> None:
        try:
            self._identity = identify(path, on_progress=self._go_on)
        except ModelError as e:
            self._error = e

    def _go_on(self, _n_done: int, _size_bytes: int) -> None:
        if self._stop.is_set():
            raise ModelError("the start-up ended before the model file was hashed")

    def __enter__(self) -> _Hashing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def identity(self) -> ModelIdentity:
        self._thread.join()
        if self._identity is None:
            raise self._error or ModelError("the model file could not be hashed")
        return self._identity


def _compile(
    configs: Sequence[PromptConfig], model: NativeModel, header: GgufHeader, *, exact: bool
) -> tuple[tuple[Prompt, ...], tuple[int, ...]]:
    prompts = tuple(
        compile_prompt(
            model,
            name=config.name,
            template=config.expanded_template,
            label_prefix=config.label_prefix,
            labels=config.labels,
            scoring=config.scoring,
            bos=model.facts.token_bos if model.facts.add_bos else -1,
            end=_end_token(config, model, header),
            exact=exact,
        )
        for config in configs
    )
    return prompts, tuple(len(model.tokenize(p.before + p.after, parse_special=False)) for p in prompts)


def _end_token(config: PromptConfig, model: NativeModel, header: GgufHeader) -> int:
    """The token named by the configuration, else the file's own end-of-turn token, else its end-of-sequence token.

    llama_vocab_eot is asked last: where the file names none, it is the first of several likely texts that a hash map
    yields, which may be <|endoftext|> in a vocabulary with <|im_end|> (src/llama-vocab.cpp).
    """
    if config.label_end is None:
        named = header.scalars.get("tokenizer.ggml.eot_token_id")
        if isinstance(named, int) and 0 <= named < model.facts.n_vocab:
            return named
        return model.facts.token_eos if model.facts.token_eos >= 0 else model.facts.token_eot
    tokens = model.tokenize(config.label_end, parse_special=True)
    if len(tokens) != 1:
        raise ConfigError(
            f"prompts.{config.name}.label_end: {config.label_end!r} is {len(tokens)} tokens of this model: "
            "give the text of one, such as <|im_end|>"
        )
    return int(tokens[0])


def _label_tokens(prompts: Sequence[Prompt]) -> Int32Array:
    """Every token that is a candidate somewhere, ascending."""
    return np.unique(np.array([edge.token for prompt in prompts for edge in prompt.trie.edges], np.int32))


def _context(
    runtime: RuntimeConfig,
    n_gpu_layers: int,
    model: NativeModel,
    prompts: Sequence[Prompt],
    n_empty: Sequence[int],
    label_tokens: Int32Array | None,
    n_ctx_short: int | None,
    ledger: Ledger,
) -> NativeContext:
    size = limits(runtime, prompts, n_empty, model.facts.n_ctx_train, n_ctx_short)
    threads = n_threads(runtime)
    context = NativeContext(
        model,
        n_ctx=size.n_ctx,
        n_batch=size.n_batch,
        n_seq_max=size.n_seq_max,
        n_outputs_max=size.n_outputs_max,
        n_threads=threads,
        flash_attn=flash_attention(runtime, n_gpu_layers),
        kv_type=runtime.kv_type,
        label_tokens=label_tokens,
    )
    ledger.step(
        "open context",
        f"{context.n_ctx} cells, {context.n_batch} tokens a decode, {context.n_seq_max} sequences, {threads} threads",
    )
    return context


def _progress(on_load: Callable[[float], None] | None) -> Callable[[float], bool] | None:
    if on_load is None:
        return None

    def progress(fraction: float) -> bool:
        on_load(fraction)
        return True

    return progress


def _n_layer(header: GgufHeader) -> int:
    return int(header.scalars.get(f"{header.arch}.block_count", 0)) or 1


def _n_ctx_short(header: GgufHeader) -> int | None:
    """The original context length of a model with two sets of RoPE factors, such as Phi-3."""
    if "rope_factors_long.weight" not in header.tensors:
        return None
    length = header.scalars.get(f"{header.arch}.rope.scaling.original_context_length")
    return int(length) if isinstance(length, int) else None


def _quantization(header: GgufHeader) -> str:
    if header.file_type is None:
        return "unknown"
    try:
        return gguf.LlamaFileType(header.file_type).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return "unknown"


def _gpu_words(layers: int) -> str:
    return f"{layers} layers on the GPU" if layers else "on the CPU"


def _device_name(layers: int) -> str:
    kinds = ("GPU", "iGPU") if layers else ("CPU",)
    found = list(devices())
    return next((d.name for d in found if d.kind in kinds), found[0].name)
