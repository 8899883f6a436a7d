"""An open model: weights, tokenizer, header, identity. Many engines and prompt sets share one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Self

import numpy as np
import numpy.typing as npt

from ..config.schema import ModelConfig, QueryTokens, RuntimeConfig
from ..errors import DecodeError, ModelError, PlanError
from ..native import ContextMemory, ModelFacts, NativeModel, WeightOrder
from ..timing import Ledger
from .file_types import quantization_name, weights_text
from .find import find_model
from .hashing import Hashing
from .header import GgufHeader, TensorInfo, all_tensors
from .header_rules import other_purpose
from .identity import ModelIdentity, check_gguf
from .placement import Placement, device_name, fitted, gpus, is_scarce, placement, weights_of, why_not_on_gpu
from .rows import HeadRows
from .trial import try_model

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


class Model:
    """A loaded GGUF file. Any thread may use the tokenizer and read rows. Closing it closes its engines' contexts.

    with Model.open(config.model, config.runtime) as model:
        with Classifier.from_config(config, model=model) as classifier: ...
    """

    def __init__(
        self,
        headers: Sequence[GgufHeader],
        placement: Placement,
        native: NativeModel,
        hashing: Hashing,
        query_tokens: QueryTokens,
    ) -> None:
        """Use `open`."""
        self.path = headers[0].path
        self.query_tokens = query_tokens
        self.header = headers[0]
        self.headers = headers
        self.native = native
        self.placement = placement
        self._hashing = hashing
        self._head = cache(partial(HeadRows, headers))

    @classmethod
    def open(
        cls,
        config: ModelConfig,
        runtime: RuntimeConfig,
        *,
        offline: bool = False,
        on_load: Callable[[float], None] | None = None,
        ledger: Ledger | None = None,
        weight_order: WeightOrder = WeightOrder.BY_DEVICE,
        measure: Callable[[Model], ContextMemory] | None = None,
    ) -> Self:
        """Find, check and load a model.

        runtime: says how many layers go to the GPU, and whether user-defined tokens are found in plain text; offline:
        take a model of the hub from the local cache only; on_load(fraction) follows the loading, ledger gets the steps;
        weight_order: FILE where llama.cpp's own kernels are to be measured on the model; measure: what the context will
        take (`context_memory`), asked of the model without its weights where layers may have to make room for it; None:
        1 GiB of each GPU is left for it. Raises ConfigError or ModelError.
        """
        ledger = ledger or Ledger()
        path = find_model(config, offline=offline)
        header, *_ = headers = check_gguf(path)
        ledger.step("find model", str(path))
        if what := other_purpose(header):
            warnings.warn(f"{path}: {what}: choose the model that it was made from", stacklevel=2)
        parts = [each.path for each in headers]
        size_bytes = sum(each.size_bytes for each in headers)
        devices = gpus()
        weights = weights_of(all_tensors(headers), header.n_layer)
        placed = placement(runtime, weights, devices)
        if try_model(parts, size_bytes, placed, runtime):
            ledger.step("try model", "in a process of its own, once for this file and build")
        hashing = Hashing(path)
        try:
            if measure and is_scarce(runtime, size_bytes, devices):

                def context_with(placed: Placement) -> ContextMemory:
                    return cls._measured(measure, placed, headers, hashing, runtime)

                try:
                    placed, context = fitted(runtime, weights, devices, context_with)
                except (DecodeError, ModelError, PlanError) as e:  # if the whole model has the same fault, it says so
                    ledger.step("measure context", f"not possible, 1 GiB of each GPU is left for it: {e}")
                else:
                    ledger.step("measure context", f"{context}, beside the weights")
                    if try_model(parts, size_bytes, placed, runtime):  # once more where the number of GPUs is another
                        ledger.step("try model", "once more, on another number of GPUs")
            native = NativeModel(
                path,
                n_gpu_layers=placed.n_gpu_layers,
                share=placed.gpu_layers,
                progress=_progress(on_load),
                user_defined=runtime.query_tokens == "user_defined",
                weight_order=weight_order,
            )
        except ModelError as e:
            hashing.stop()
            if config.ollama:
                raise ModelError(
                    f"{e}; some older models of Ollama's library hold names and types that only Ollama reads: "
                    "pull a newer one, or take the model's GGUF file from the hub"
                ) from e
            raise
        except BaseException:
            hashing.stop()
            raise
        where = placed.text if placed.n_gpus else f"on the CPU{why_not_on_gpu(runtime)}"
        lanes = f", {weights_text(native.facts.n_lane_ordered)}" if native.facts.n_lane_ordered else ""
        ledger.step("load model", f"{native.facts.description}, {where}{lanes}")
        return cls(headers, placed, native, hashing, runtime.query_tokens)

    @classmethod
    def _measured(
        cls,
        measure: Callable[[Model], ContextMemory],
        placed: Placement,
        headers: Sequence[GgufHeader],
        hashing: Hashing,
        runtime: RuntimeConfig,
    ) -> ContextMemory:
        """What the context takes with layers so placed."""
        with NativeModel(
            headers[0].path,
            n_gpu_layers=placed.n_gpu_layers,
            share=placed.gpu_layers,
            user_defined=runtime.query_tokens == "user_defined",
            without_weights=True,
        ) as native:
            return measure(cls(headers, placed, native, hashing, runtime.query_tokens))

    @property
    def facts(self) -> ModelFacts:
        """What the file says of itself."""
        return self.native.facts

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """The tensors of all its files."""
        return all_tensors(self.headers)

    @property
    def n_gpu_layers(self) -> int:
        """Layers on GPUs, with the output layer."""
        return self.placement.n_gpu_layers

    @property
    def first_token(self) -> int:
        """The token that the model wants at the beginning of every text, -1 for none."""
        return self.facts.token_bos if self.facts.add_bos else -1

    @property
    def has_states(self) -> bool:
        """Whether recurrent layers keep a state of each sequence, beside or instead of keys and values."""
        return self.facts.state_bytes > 0

    @property
    def pass_tokens(self) -> int | None:
        """Of a model with states: how many tokens take as long as one more pass over its weights; none for others.

        On a CPU a pass took as long as 4 to 6 more tokens (8 layers of Qwen3.5's kind, Q8_0, one thread) or about 7
        (Qwen3.5-0.8B's shape, Q4_K_M); on an H200 as 38 to 59 (Qwen3-8B's shape, two sets of kernels) or 83
        (Qwen3.5-4B's, the graph of one pass built anew); on a T4 as 37 or more, as computed (docs/kernels.md).
        """
        if not self.has_states:
            return None
        return 48 if self.n_gpu_layers > 0 else 4

    @property
    def label_end(self) -> int:
        """The file's own end-of-turn token, else its end-of-sequence token, -1 where it has neither.

        llama_vocab_eot is asked last: where the file names none, it is the first of several likely texts that a hash
        map yields, which may be <|endoftext|> in a vocabulary with <|im_end|> (src/llama-vocab.cpp).
        """
        named = self.header.scalars.get("tokenizer.ggml.eot_token_id")
        if isinstance(named, int) and 0 <= named < self.facts.n_vocab:
            return named
        return self.facts.token_eos if self.facts.token_eos >= 0 else self.facts.token_eot

    @property
    def chat_template(self) -> str | None:
        """The Jinja2 text by which the file turns messages into a prompt, None where it has none."""
        return self.header.chat_template

    @property
    def is_embedded(self) -> bool:
        """Whether it is the model that comes with the package, wherever its file lies."""
        return self.header.scalars.get("general.name") == "fashion-tiny"

    @property
    def bos_text(self) -> str:
        """The text of the token that begins a text; empty where the vocabulary has none."""
        return self._token_text(self.facts.token_bos)

    @property
    def eos_text(self) -> str:
        """The text of the token that ends a text; empty where the vocabulary has none."""
        return self._token_text(self.facts.token_eos)

    def _token_text(self, token: int) -> str:
        return self.piece(token)[0].decode(errors="replace") if token >= 0 else ""

    @property
    def is_all_on_gpu(self) -> bool:
        """Whether every layer and the output layer are on a GPU."""
        return self.n_gpu_layers > self.header.n_layer

    @property
    def device(self) -> str:
        """The names of the GPUs that layers are on, or that of the CPU."""
        return device_name(self.placement)

    @property
    def quantization(self) -> str:
        """The file's own word for its weights' types, such as Q4_K_M."""
        return quantization_name(self.header.file_type)

    @property
    def n_ctx_short(self) -> int | None:
        """The original context length of a model with two sets of RoPE factors, such as Phi-3."""
        if "rope_factors_long.weight" not in self.header.tensors:
            return None
        length = self.header.scalars.get(f"{self.header.arch}.rope.scaling.original_context_length")
        return int(length) if isinstance(length, int) else None

    def identity(self) -> ModelIdentity:
        """Size and sha256; waits until the file is hashed, which begins with the loading. Raises ModelError."""
        return self._hashing.identity()

    def tokenize(self, text: str, *, parse_special: bool) -> Int32Array:
        """Token ids of text, shape (n_tokens,); no BOS is added. parse_special: spelt special tokens become tokens.

        Raises PlanError for text that is not valid Unicode.
        """
        return self.native.tokenize(text, parse_special=parse_special)

    def piece(self, token: int) -> tuple[bytes, bool]:
        """The bytes of a token, and whether it is a special one, which only parse_special finds in text."""
        return self.native.piece(token)

    def rows(self, tokens: Iterable[int]) -> dict[int, Float32Array]:
        """The dequantised rows of the LM head of some tokens, each float32 of shape (n_embd,). Raises ModelError."""
        return self._head().of(tokens)

    def output_biases(self, tokens: Iterable[int]) -> dict[int, float]:
        """What a head with output.bias adds to the logits of some tokens. Raises ModelError."""
        return self._head().biases(tokens)

    def close(self) -> None:
        """Free the weights, and the contexts that still use them first; may be called again."""
        self._hashing.stop()
        self._head.cache_clear()  # and with it the file
        self.native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _progress(on_load: Callable[[float], None] | None) -> Callable[[float], bool] | None:
    if on_load is None:
        return None

    def progress(fraction: float) -> bool:
        on_load(fraction)
        return True

    return progress
