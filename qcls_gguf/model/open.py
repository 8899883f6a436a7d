"""An open model: weights, tokenizer, header, identity. Many engines and prompt sets share one, which is opened once."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Self

from ..config.schema import Config, ModelConfig, RuntimeConfig
from ..config.words import shown
from ..errors import ConfigError, ModelError
from ..native import NativeModel
from ..native.context import ContextMemory, ContextSettings, measure_context
from ..system.lifetimes import Closing, Ledger
from .files import Hashing, ModelFile, OutputRows
from .find import find_model
from .header import DECISION_KINDS
from .placement import Placement, gpus, placement, stock_text, stock_types, why_not_on_gpu, with_all_wanted
from .trial import try_model

_RANKING = 4  # LLAMA_POOLING_TYPE_RANK in include/llama.h


class Vocabulary(Closing):
    """A model's file, opened without its weights: what compiles prompts and measures contexts, in any thread."""

    def __init__(self, file: ModelFile, placement: Placement, native: NativeModel, runtime: RuntimeConfig) -> None:
        """Use `open_vocabulary`."""
        self.file = file
        self.path = file.path
        self.header = file.header
        self.placement = placement
        self.n_gpu_layers = placement.n_gpu_layers
        """Layers on GPUs, with the output layer."""
        self.native = native
        self.tokenize = native.tokenize
        """Text to token ids; see NativeModel."""
        self.piece = native.piece
        """The bytes of a token, and whether it is a special one."""
        self.facts = native.facts
        self.opened_with = runtime.of_model
        self.first_token = native.facts.token_bos if native.facts.add_bos else -1
        """The token that the model wants at the beginning of every text, -1 for none."""
        self.has_states = native.facts.state_bytes > 0
        """Whether recurrent layers keep states of sequences, beside or instead of keys and values."""
        self.is_embedded = file.header.scalars.get("general.name") == "fashion-tiny"
        """Whether it is the model that comes with the package, wherever its file lies."""
        self.chat_template = file.header.chat_template
        """The Jinja2 text by which the file turns messages into a prompt, None where it has none."""
        self.bos_text, self.eos_text = (
            native.piece(token)[0].decode(errors="replace") if token >= 0 else ""
            for token in (native.facts.token_bos, native.facts.token_eos)
        )
        """The texts of the tokens that begin and end a text; empty where the vocabulary has none."""
        # llama_vocab_eot is asked last: where the file names none, it is the first of several likely texts that a hash
        # map yields, which may be <|endoftext|> in a vocabulary with <|im_end|> (src/llama-vocab.cpp).
        named, facts = file.header.scalars.get("tokenizer.ggml.eot_token_id"), native.facts
        usual = facts.token_eos if facts.token_eos >= 0 else facts.token_eot
        self.label_end = named if isinstance(named, int) and 0 <= named < facts.n_vocab else usual
        """The file's own end-of-turn token, else its end-of-sequence token, -1 where it has neither."""
        length = file.header.scalars.get(f"{file.header.arch}.rope.scaling.original_context_length")
        has_two = "rope_factors_long.weight" in file.header.tensors
        self.n_ctx_short = length if has_two and isinstance(length, int) else None
        """The original context length of a model with two sets of RoPE factors, such as Phi-3."""

    def close(self) -> None:
        """Free what is loaded, and the contexts that still use it first; may be called again."""
        self.native.close()


class Model(Vocabulary):
    """A loaded GGUF file. Any thread may use the tokenizer and read rows. Closing it closes its engines' contexts.

    with Model.open(config.model, config.runtime) as model:
        with Classifier.from_config(config, model=model) as classifier: ...
    """

    def __init__(
        self, file: ModelFile, placement: Placement, native: NativeModel, runtime: RuntimeConfig, hashing: Hashing
    ) -> None:
        """Use `open`."""
        super().__init__(file, placement, native, runtime)
        self._hashing = hashing

    @classmethod
    def open(
        cls,
        config: ModelConfig | ModelFile,
        runtime: RuntimeConfig,
        *,
        offline: bool = False,
        on_load: Callable[[float], None] | None = None,
        ledger: Ledger | None = None,
        placed: Placement | None = None,
    ) -> Self:
        """Find, check and load a model.

        config: or its file, if that was found before (`OpenModels.file_of`). runtime: says how many layers go to the
        GPU, and whether user-defined tokens are found in plain text; offline: take a model of the hub from the local
        cache only; on_load(fraction) follows the loading, ledger gets the steps; placed: where layers go
        (`placement.fitted_placement`); none: as many on GPUs as leave 1 GiB free. Raises ConfigError or ModelError.
        """
        ledger = ledger or Ledger()
        file = config if isinstance(config, ModelFile) else find_file(find_model(config, offline=offline), ledger)
        if placed is None:
            placed = placement(runtime, file.weights, gpus())
        try_model(file, placed, runtime, ledger)
        hashing = Hashing(file.parts)
        try:
            native = _load(file, placed, runtime, on_load=on_load)
        except BaseException:
            hashing.stop()
            raise
        n_loaded = native.facts.n_layer - native.facts.n_left_out
        if file.n_first not in (0, n_loaded):  # llama.cpp needs more of them: they belong on the same devices
            native.close()
            hashing.stop()
            needed = replace(file, n_first=n_loaded if native.facts.n_left_out else 0)
            return cls.open(needed, runtime, on_load=on_load, ledger=ledger)
        where = placed.text if placed.n_gpus else f"on the CPU{why_not_on_gpu(runtime)}"
        first = f", {file.n_layer} of {native.facts.n_layer} layers" if native.facts.n_left_out else ""
        model = cls(file, placed, native, runtime, hashing)
        told = [f"{native.facts.description}{first}, {where}", stock_text(model.stock_types)]
        ledger.step("load model", "; ".join(filter(None, told)))
        return model

    @cached_property
    def stock_types(self) -> dict[str, float]:
        """The types of matrices that llama.cpp's kernels multiply by, with their share of the bytes."""
        return stock_types(self.header.tensors.values(), self.n_gpu_layers > 0)

    def check_loaded(self, last_layer: int) -> None:
        """Raise ConfigError where the layers up to `last_layer` are not loaded; 0: all layers."""
        facts = self.facts
        n_loaded = facts.n_layer - facts.n_left_out
        if facts.n_left_out and not 0 < last_layer <= n_loaded:
            what = f"{n_loaded} of the model's {facts.n_layer} layers are loaded, because all prompts have heads there"
            raise ConfigError(f"{what}: set runtime.question_prefixes above 0 for whatever needs more layers")

    def sha256(self) -> str:
        """Waits until the file is hashed, which begins with the loading. Raises ModelError."""
        return self._hashing.sha256()

    @cached_property
    def output_rows(self) -> OutputRows:
        """Rows of the output matrix, and other tensors of the file, which is opened for them once more."""
        return OutputRows(self.file)

    def close(self) -> None:
        """Free the weights, and the contexts that still use them first; may be called again."""
        self._hashing.stop()
        self.__dict__.pop("output_rows", None)  # and with it the file
        super().close()


def find_file(path: Path, ledger: Ledger) -> ModelFile:
    """Check the headers of a model that was found. Raises ModelError."""
    file = ModelFile.read(path)
    scalars, kind = file.header.scalars, file.header.decision_kind
    ledger.step("find model", str(file.path) if kind is None else f"{file.path}, a decision model ({kind})")
    if kind not in (None, *DECISION_KINDS):
        what = f"{file.path}: a decision model of kind {shown(kind)}, which has a head of its own"
        raise ModelError(
            f"{what}: this version reads {', '.join(DECISION_KINDS)}, a llama-server from b11361 on others"
        )
    if scalars.get("tokenizer.ggml.model") == "gpt2" and not scalars.get("tokenizer.ggml.pre"):
        what = f"{file.path} has no tokenizer.ggml.pre: llama.cpp splits text by its default rules"
        warnings.warn(f"{what}, perhaps not as in the training: choose a file that was converted anew", stacklevel=3)
    pooling_key = f"{file.header.arch}.pooling_type"
    if pooling := scalars.get(pooling_key):
        purpose = "ranking texts" if pooling == _RANKING else "embeddings"
        what = f"{file.path}: the model was made for {purpose} ({pooling_key} is {pooling})"
        warnings.warn(
            f"{what}, and may label no better than chance: choose the model that it was made from", stacklevel=3
        )
    return file


def open_vocabulary(file: ModelFile, runtime: RuntimeConfig, ledger: Ledger | None = None) -> Vocabulary:
    """Open a model without its weights, as if all layers that are wanted on GPUs were there: to compile the prompts of
    a context that decides where layers go (`placement.fitted_placement`). Raises ModelError.
    """
    weights, free = file.weights, gpus()
    try_model(file, placement(runtime, weights, free), runtime, ledger or Ledger())
    wanted = with_all_wanted(runtime, weights, free)
    return Vocabulary(file, wanted, _load(file, wanted, runtime, without_weights=True), runtime)


def context_memory(file: ModelFile, placed: Placement, settings: ContextSettings) -> ContextMemory:
    """The most that a context takes beside layers so placed, also while it is opened. Raises as NativeContext."""
    with _load(file, placed, without_weights=True) as native:
        memory = measure_context(native, **settings)
        # llama.cpp opens a context with buffers for all logits, and then makes ours
        opening = settings.copy()
        opening["hidden_only"], opening["label_tokens"] = False, None
        n_opening = measure_context(native, **opening).compute_bytes
    return replace(memory, compute_bytes=max(memory.compute_bytes, n_opening))


def _load(
    file: ModelFile,
    placed: Placement,
    runtime: RuntimeConfig | None = None,
    *,
    on_load: Callable[[float], None] | None = None,
    without_weights: bool = False,
) -> NativeModel:
    return NativeModel(
        file.path,
        n_gpu_layers=placed.n_gpu_layers,
        share=placed.gpu_layers,
        progress=on_load,
        user_defined=runtime is not None and runtime.query_tokens == "user_defined",
        without_weights=without_weights,
        cpu_activations=runtime.cpu_activations if runtime else "default",
        n_first=file.n_first,
    )


class OpenModels(Closing):
    """Opens the models of configurations once: those of one file and equal settings of the model share it."""

    def __init__(self, *, offline: bool = False, on_load: Callable[[float], None] | None = None) -> None:
        self._find = cache(lambda model: find_model(model, offline=offline))
        self._on_load = on_load
        self._models: dict[tuple[Path, int | str, tuple[str, ...], int], Model] = {}

    def get(self, config: Config, n_first: int) -> Model | None:
        """The model of a configuration if it is open, whole or with n_first layers.

        Raises ConfigError or ModelError.
        """
        return self._models.get(self._key(config, 0)) or self._models.get(self._key(config, n_first))

    def open(self, config: Config, file: ModelFile, placed: Placement | None, ledger: Ledger) -> Model:
        """Open the model of a configuration, which is not open yet; see `Model.open`. Raises ConfigError or ModelError.

        Of configurations that share it the first one's placement counts.
        """
        model = Model.open(file, config.runtime, on_load=self._on_load, ledger=ledger, placed=placed)
        self._models[self._key(config, file.n_first)] = model
        return model

    def path_of(self, config: Config) -> Path:
        """The model's file. Raises ConfigError or ModelError."""
        return self._find(config.model)

    def _key(self, config: Config, n_first: int) -> tuple[Path, int | str, tuple[str, ...], int]:
        path, runtime = self.path_of(config).resolve(), config.runtime
        return path, runtime.n_gpu_layers, runtime.of_model, n_first

    def __len__(self) -> int:
        return len(self._models)

    def close(self) -> None:
        """Close every model."""
        while self._models:
            self._models.popitem()[1].close()
