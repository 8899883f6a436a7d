"""A model's tokenizer and header: all that the compilation of prompts asks a model."""

from __future__ import annotations

from ..config.schema import RuntimeConfig
from ..native import NativeModel
from ..system.closing import Closing
from .files import ModelFile
from .placement import Placement


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
        """Whether recurrent layers keep a state of each sequence, beside or instead of keys and values."""
        self.is_embedded = file.header.scalars.get("general.name") == "fashion-tiny"
        """Whether it is the model that comes with the package, wherever its file lies."""
        self.chat_template = file.header.chat_template
        """The Jinja2 text by which the file turns messages into a prompt, None where it has none."""
        self.bos_text, self.eos_text = map(self._token_text, (native.facts.token_bos, native.facts.token_eos))
        """The texts of the tokens that begin and end a text; empty where the vocabulary has none."""

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

    def _token_text(self, token: int) -> str:
        return self.piece(token)[0].decode(errors="replace") if token >= 0 else ""

    @property
    def n_ctx_short(self) -> int | None:
        """The original context length of a model with two sets of RoPE factors, such as Phi-3."""
        if "rope_factors_long.weight" not in self.header.tensors:
            return None
        length = self.header.scalars.get(f"{self.header.arch}.rope.scaling.original_context_length")
        return int(length) if isinstance(length, int) else None

    def close(self) -> None:
        """Free what is loaded, and the contexts that still use it first; may be called again."""
        self.native.close()
