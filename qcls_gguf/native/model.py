"""A loaded model and its tokenizer."""

import ctypes
import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..config.schema import CpuActivations
from ..config.words import abbreviated
from ..errors import ModelError, PlanError
from ..statistics import Int32Array
from ..system.lifetimes import Closing, start_thread
from . import abi
from .abi import PROGRESS_FUNCTION, Error, ModelParams, Parse, Status, TokenKind, check, int32
from .library import call, heard, library

_USUAL = 512  # tokens; longer texts are tokenised twice, the second time into a temporary buffer
_TOO_SMALL = int(Status.TOO_SMALL)
_SPECIAL = int(Parse.SPECIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Properties of the model from its file; a token id is -1 if the vocabulary has no such token."""

    n_vocab: int
    n_embd: int
    n_layer: int
    """of the file"""
    n_left_out: int
    """the last of these, which were not loaded"""
    n_ctx_train: int
    size_bytes: int
    n_params: int
    token_bos: int
    token_eos: int
    token_eot: int
    add_bos: bool
    n_lane_ordered: int
    """matrices whose weights were put into lane order for the GPU's kernels: on cards of compute capability 7.5, or as
    QCLS_LANE_ORDER says"""
    walks_trees: bool
    """whether recurrent layers compute a token tree in one pass, whatever the lengths of its branches"""
    state_bytes: int
    """bytes of one sequence's recurrent states; 0: the model has none"""
    description: str
    """architecture, size and type, such as `qwen3 8B Q4_K - Medium`, with the number of weights if the size has no name
    in llama.cpp"""


class _Buffers(threading.local):
    """A thread's buffers for the tokenizer, allocated once, because allocating takes longer than tokenising."""

    def __init__(self) -> None:
        self.call = library().qcls_tokenize
        self.n_tokens = c_int64()
        self.n_tokens_ref = byref(self.n_tokens)
        self.error = Error()
        self.error_ref = byref(self.error)
        self.reserve(_USUAL)

    def reserve(self, capacity: int) -> None:
        token = np.empty(capacity, np.int32)
        # in one statement, so that an interrupt cannot leave a pointer without its array
        self.tokens = token, token.ctypes.data, capacity


class NativeModel(Closing):
    """A loaded model. `close` closes its contexts first, and is idempotent. Many threads may use the tokenizer."""

    def __init__(
        self,
        path: Path,
        *,
        n_gpu_layers: int = 0,
        share: Sequence[int] = (),
        progress: Callable[[float], object] | None = None,
        user_defined: bool = False,
        without_weights: bool = False,
        cpu_activations: CpuActivations = "default",
        n_first: int = 0,
    ) -> None:
        """Load a GGUF file; n_gpu_layers: on GPUs, if there are any; < 0: all of them.

        share: of these layers on the first GPUs; numbers of layers whose sum is n_gpu_layers are kept exactly,
        the output layer being the last one; (1,): all on the first GPU; none: llama.cpp divides them among all GPUs.
        progress(fraction) may raise an error, which ends the load. user_defined: text that spells a token which was
        added to the vocabulary, such as </think>, becomes that token in plain text, too. without_weights: load all but
        the weights, which is enough for facts, the tokenizer and `measure_context`. cpu_activations: see
        RuntimeConfig. n_first: above 0, load only so many of the first layers, and no LM head; llama.cpp loads models
        whole whose lower layers need higher ones. Raises ModelError.
        """
        self._plain = int(Parse.USER_DEFINED if user_defined else Parse.NOTHING)
        self._buffers = _Buffers()
        shares = np.array(share, np.int32)
        params = ModelParams(
            path=os.fsencode(path),
            n_gpu_layers=int32(n_gpu_layers, "n_gpu_layers"),
            share=shares.ctypes.data,
            n_gpus=shares.size,
            without_weights=int(without_weights),
            cpu_activations=("default", "fast", "fine").index(cpu_activations),
            n_layers=int32(n_first, "n_first"),
        )
        handle = _load(path, params, progress)
        self.without_weights = without_weights
        self._handle = handle
        self._free = weakref.finalize(self, library().qcls_model_close, handle, None)
        self._free.atexit = False  # at the exit of the interpreter another thread may still be decoding
        self.path = path
        self.n_gpu_layers = n_gpu_layers
        self.contexts: weakref.WeakSet[Closing] = weakref.WeakSet()
        """Those that are open."""
        facts = abi.ModelFacts()
        call("qcls_model_describe", handle, byref(facts), path=path)
        # llama.cpp guesses the size from the number of layers
        size = rf"\1 {abbreviated(facts.n_params)}"
        description = re.sub(r"^(\S+) \S+", size, facts.description.decode(errors="replace"))
        description = description.removesuffix(" (guessed)")  # where a file does not say its type
        self.facts = facts.to(
            ModelFacts, add_bos=bool(facts.add_bos), walks_trees=bool(facts.walks_trees), description=description
        )

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise ModelError("the model is closed")
        return self._handle

    def tokenize(self, text: str, *, parse_special: bool) -> Int32Array:
        """Token ids of text, shape (n_tokens,); no BOS is added. parse_special: spelt special tokens become tokens.

        Raises PlanError for text that is not valid Unicode, has more bytes than llama.cpp can count, or becomes a
        control token although parse_special is false, as with some vocabularies' rules.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as e:
            raise PlanError(f"character {e.start} of the text is not valid Unicode ({e.reason})") from None
        buffers, handle = self._buffers, self._handle or self.handle
        parse = _SPECIAL if parse_special else self._plain
        status = _TOO_SMALL
        while status == _TOO_SMALL:  # twice at the most
            _, pointer, capacity = buffers.tokens
            status = buffers.call(
                handle, data, len(data), parse, pointer, capacity, buffers.n_tokens_ref, buffers.error_ref
            )
            if status == _TOO_SMALL:
                buffers.reserve(buffers.n_tokens.value)
        if status:
            check(status, buffers.error)
        token = buffers.tokens[0][: buffers.n_tokens.value].copy()
        if len(token) > _USUAL:
            buffers.reserve(_USUAL)
        return token

    def piece(self, token: int) -> tuple[bytes, bool]:
        """The bytes of a token, and whether it is a special one, which only parse_special finds in text.

        Raises PlanError for a number that is no token's.
        """
        n_bytes, kind, error = c_int64(64), c_int32(), Error()
        for _ in range(2):
            text = ctypes.create_string_buffer(n_bytes.value)
            status = library().qcls_token_piece(
                self.handle, int32(token, "token"), text, len(text), byref(n_bytes), byref(kind), byref(error)
            )
            if status != Status.TOO_SMALL:
                break
        check(status, error)
        is_text = kind.value == TokenKind.TEXT or (
            kind.value == TokenKind.USER_DEFINED and self._plain == Parse.USER_DEFINED
        )
        return text.raw[: n_bytes.value], not is_text

    def close(self) -> None:
        if self._handle:
            for context in list(self.contexts):
                context.close()
            self._free()
            self._handle = c_void_p()


def _load(path: Path, params: abi.Struct, progress: Callable[[float], object] | None) -> c_void_p:
    """The handle of a loaded model.

    The load runs in a thread of its buffers, because in this one an interrupt would be raised in the callback and lost.
    """
    handle, error = c_void_p(), Error()
    status = int(Status.LOAD_FAILED)
    stop: list[BaseException] = []  # the exception that ends the load: from `progress`, or an interrupt of this thread

    def go_on(done: float, _user: object) -> int:
        try:
            if progress and not stop:
                progress(done)
        except BaseException as e:  # ctypes would swallow it
            stop.append(e)
        return int(not stop)

    def load() -> None:
        nonlocal status
        with heard():
            status = library().qcls_model_open(byref(params), byref(handle), byref(error))

    params.progress = PROGRESS_FUNCTION(go_on)
    loader = threading.Thread(target=load)
    start_thread(loader, ModelError, f"to load {path}")
    try:
        loader.join()
    except BaseException as e:
        stop.append(e)
        loader.join()
    if stop:
        library().qcls_model_close(handle, None)
        raise stop[0]
    check(status, error, path)
    _release_pages(path)
    return handle


def _release_pages(path: Path) -> None:
    """Give back the pages of the file that loading has read, where it is mapped: most weights have been copied, in the
    order of the kernels or to a GPU, and those that are used in place come back at the first touch.
    """
    maps = Path("/proc/self/maps")
    name, dont_need = os.path.realpath(path), 4  # MADV_DONTNEED
    for line in maps.read_text().splitlines() if maps.exists() else ():
        if line.split(maxsplit=5)[5:] == [name]:
            start, end = (int(address, 16) for address in line.partition(" ")[0].split("-"))
            ctypes.CDLL(None).madvise(c_void_p(start), ctypes.c_size_t(end - start), dont_need)
