"""A plain llama.cpp model for checks: tokenise, and logits after a prompt, one token sequence at a time."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType

import llama_cpp
import numpy as np


def _drop(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Take a line of llama.cpp's log and do nothing with it."""


_silent = llama_cpp.llama_log_callback(_drop)


class Model:
    """A GGUF model on the CPU with one context, which keeps the tokens decoded last for a prompt that begins alike."""

    def __init__(self, path: Path, n_ctx: int = 1024, n_threads: int = 2) -> None:
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"{path} does not load")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = n_ctx, n_ctx, n_ctx
        context.n_threads = context.n_threads_batch = n_threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        self._held: list[int] = []

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def tokenise(self, text: str, special: bool) -> list[int]:
        """The ids of a text, special tokens parsed or taken as plain text; nothing is added."""
        raw = text.encode()
        room = (llama_cpp.llama_token * (len(raw) + 8))()
        n = llama_cpp.llama_tokenize(self.vocabulary, raw, len(raw), room, len(room), False, special)
        return list(room[:n])

    def logits(self, tokens: list[int]) -> np.ndarray:
        """The logits after a token sequence, (n_vocab,); tokens shared with the previous call are not decoded again."""
        shared = 0
        while shared < min(len(tokens) - 1, len(self._held)) and tokens[shared] == self._held[shared]:
            shared += 1
        memory = llama_cpp.llama_get_memory(self.context)
        llama_cpp.llama_memory_seq_rm(memory, 0, shared, -1)
        rest = (llama_cpp.llama_token * (len(tokens) - shared))(*tokens[shared:])
        code = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(rest, len(rest)))
        if code != 0:
            raise RuntimeError(f"llama_decode gave {code}")
        self._held = list(tokens)
        pointer = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,)).copy()
