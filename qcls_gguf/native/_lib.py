"""The ctypes border to libqcls (see qcls.h); the only module that imports ctypes.

Arrays cross it as numpy arrays whose dtype, dimensions and contiguity are checked here, once. ctypes releases the
interpreter lock during a call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from ..errors import DecodeError, ModelError, PlanError, QclsError

ABI = 7
_OK, _BAD_ARGUMENT, _LOAD_FAILED, _UNSUPPORTED, _DECODE_FAILED, _TOO_SMALL = range(6)
_ERRORS = {
    _BAD_ARGUMENT: PlanError,
    _LOAD_FAILED: ModelError,
    _UNSUPPORTED: ModelError,
    _DECODE_FAILED: DecodeError,
}
_FACTS = (
    "n_vocab",
    "n_embd",
    "n_layer",
    "n_ctx_train",
    "size_bytes",
    "n_params",
    "token_bos",
    "token_eos",
    "token_eot",
    "add_bos",
)
_DEVICE_KINDS = ("CPU", "GPU", "iGPU", "other")
_LOG_FN = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
_PROGRESS_FN = ctypes.CFUNCTYPE(c_int32, c_float, c_void_p)

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

_NONE: Int32Array = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInfo:
    """What the loaded library was built from."""

    llama_cpp_commit: str
    llama_cpp_python_version: str
    source_digest: str
    """The first 16 hex digits of a sha256 over the checksums of the sdist, every patch, and the kernels they call."""
    backend: str

    @property
    def is_cuda(self) -> bool:
        return self.backend.startswith("CUDA")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that llama.cpp can compute on; memory in bytes."""

    kind: Literal["CPU", "GPU", "iGPU", "other"]
    name: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Multiprocessors:
    """Of a CUDA device; they differ where a slice of it stands in for a smaller one."""

    n_planned: int
    """that kernels plan their work for"""
    n_given: int
    """that they run on"""
    n_device: int
    """of the whole device"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Seconds of one operation on a device: of five samples the best and the median."""

    best_s: float
    median_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the model file says of itself; a token id is -1 where the vocabulary has none."""

    n_vocab: int
    n_embd: int
    n_layer: int
    n_ctx_train: int
    size_bytes: int
    n_params: int
    token_bos: int
    token_eos: int
    token_eot: int
    add_bos: bool
    description: str


@dataclass(frozen=True, slots=True)
class Counters:
    """What a context did and holds."""

    n_graphs_reused: int
    """decodes that found their graph built"""
    n_shapes: int
    """graphs kept now"""
    shapes_bytes: int
    """their compute buffers, on all devices"""
    n_cuda_graphs: int
    """CUDA graphs launched by this process; -1 in a build without CUDA"""


def library_folder() -> Path:
    """The folder that holds libqcls and the patched libllama.

    QCLS_LIBRARY_FOLDER names another build's, such as one with sanitizers. Raises ModelError where the package was not
    built.
    """
    if folder_of_another := os.environ.get("QCLS_LIBRARY_FOLDER"):
        return Path(folder_of_another)
    name = "libqcls.dylib" if sys.platform == "darwin" else "libqcls.so"
    # An editable install keeps the compiled files apart from the sources: the package's path names both.
    for folder in sys.modules[__package__].__path__:
        if (Path(folder) / "lib" / name).is_file():
            return Path(folder) / "lib"
    raise ModelError(f"{name} is not installed beside {__package__}: build the package with pip install")


@cache
def _library() -> Any:
    name = "libqcls.dylib" if sys.platform == "darwin" else "libqcls.so"
    lib = ctypes.CDLL(str(library_folder() / name))
    if lib.qcls_abi() != ABI:  # before anything else is looked up: an older library lacks some of it
        raise ModelError(f"{name} speaks ABI {lib.qcls_abi()}, this package {ABI}: build and install them together")
    error = [c_char_p, c_int32]
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "qcls_build_info": (c_char_p, []),
        "qcls_set_log": (None, [_LOG_FN, c_void_p]),
        "qcls_device": (
            c_int32,
            [c_int32, POINTER(c_int32), c_char_p, c_int32, POINTER(c_uint64), POINTER(c_uint64)],
        ),
        "qcls_multiprocessors": (c_int32, [POINTER(c_int32)]),
        "qcls_model_open": (c_int32, [c_char_p, c_int32, _PROGRESS_FN, c_void_p, POINTER(c_void_p), *error]),
        "qcls_model_close": (None, [c_void_p]),
        "qcls_model_facts": (None, [c_void_p, POINTER(c_int64)]),
        "qcls_model_description": (None, [c_void_p, c_char_p, c_int32]),
        "qcls_tokenize": (
            c_int32,
            [c_void_p, c_char_p, c_int32, c_int32, c_void_p, c_int32, POINTER(c_int32), *error],
        ),
        "qcls_token_piece": (
            c_int32,
            [c_void_p, c_int32, c_char_p, c_int32, POINTER(c_int32), POINTER(c_int32), *error],
        ),
        "qcls_max_sequences": (c_int32, []),
        "qcls_context_open": (
            c_int32,
            [c_void_p, c_int32, c_int32, c_void_p, *[c_int32] * 6, c_char_p, POINTER(c_void_p), *error],
        ),
        "qcls_context_close": (None, [c_void_p]),
        "qcls_context_clear": (None, [c_void_p]),
        "qcls_probe_copy": (c_int32, [c_int32, c_int32, c_int64, c_double, POINTER(c_double), *error]),
        "qcls_probe_matmul": (c_int32, [*[c_int32] * 6, c_double, POINTER(c_double), *error]),
        "qcls_context_limits": (None, [c_void_p, POINTER(c_int64)]),
        "qcls_context_visible_cells": (c_int32, [c_void_p, c_char_p, c_int32]),
        "qcls_context_keep_shapes": (c_int32, [c_void_p, c_int32, *error]),
        "qcls_context_counters": (None, [c_void_p, POINTER(c_int64)]),
        "qcls_state_save": (c_int32, [c_void_p, c_void_p, POINTER(c_int64), *error]),
        "qcls_state_load": (c_int32, [c_void_p, c_char_p, c_int64, *error]),
        "qcls_seq_share": (c_int32, [c_void_p, c_int32, c_int32, c_int32, c_int32, *error]),
        "qcls_seq_trim": (c_int32, [c_void_p, c_int32, c_void_p, c_void_p, *error]),
        "qcls_decode": (
            c_int32,
            [c_void_p, c_int32, *[c_void_p] * 6, c_int32, c_int32, c_void_p, c_void_p, POINTER(c_int64), *error],
        ),
        "qcls_decode_rows": (c_int32, [c_void_p, c_void_p, c_int32, *error]),
        "qcls_trie_scores": (c_int32, [c_int32, c_int32, c_void_p, c_int32, *[c_void_p] * 5]),
    }
    for symbol, (result, arguments) in signatures.items():
        function = getattr(lib, symbol)
        function.restype, function.argtypes = result, arguments
    return lib


def _check(status: int, error: Any, path: Path | None = None) -> None:
    if status != _OK:
        message = error.value.decode(errors="replace")
        raise _ERRORS.get(status, QclsError)(f"{path}: {message}" if path else message)


def _int32(value: int) -> int:
    """A value that ctypes will not cut to 32 bits."""
    if not -(1 << 31) <= value < 1 << 31:
        raise PlanError(f"{value} does not fit 32 bits")
    return value


def _pointer(array: npt.NDArray[Any], dtype: type[np.generic], ndim: int, size: int) -> int:
    """The address of an array that C may read `size` elements of."""
    if array.dtype != dtype or array.ndim != ndim or not array.flags.c_contiguous or array.size < size:
        raise PlanError(
            f"expected a contiguous {np.dtype(dtype).name} array of {ndim} dimensions and at least {size} elements, "
            f"got {array.dtype.name} {array.shape}"
        )
    if array.size and array.flags.writeable:  # in a fifth of the time that array.ctypes.data takes
        return ctypes.addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
    return array.ctypes.data


@cache
def build_info() -> BuildInfo:
    """What the loaded library was built from."""
    commit, version, digest, backend = _library().qcls_build_info().decode().split("\t")
    return BuildInfo(llama_cpp_commit=commit, llama_cpp_python_version=version, source_digest=digest, backend=backend)


def devices() -> Iterator[Device]:
    """The devices that llama.cpp sees, GPUs first."""
    kind, free, total = c_int32(), c_uint64(), c_uint64()
    name = ctypes.create_string_buffer(256)
    index = 0
    while _library().qcls_device(index, byref(kind), name, len(name), byref(free), byref(total)) == _OK:
        text = name.value.decode(errors="replace")
        yield Device(kind=_DEVICE_KINDS[kind.value], name=text, free_bytes=free.value, total_bytes=total.value)  # type: ignore[arg-type]
        index += 1


def multiprocessors() -> Multiprocessors | None:
    """Those of the first CUDA device; None where there is none."""
    count = (c_int32 * 3)()
    return Multiprocessors(*count) if _library().qcls_multiprocessors(count) else None


def probe_copy(device: int, *, n_threads: int, n_bytes: int, budget_s: float) -> Probed:
    """Copy n_bytes on a device, by its index in `devices`; twice n_bytes of its memory are needed.

    Raises PlanError for a number out of range, DecodeError where the device cannot do it.
    """
    seconds, error = (c_double * 2)(), ctypes.create_string_buffer(256)
    status = _library().qcls_probe_copy(
        _int32(device), _int32(n_threads), n_bytes, budget_s, seconds, error, len(error)
    )
    _check(status, error)
    return Probed(best_s=seconds[0], median_s=seconds[1])


def probe_matmul(
    device: int, *, n_threads: int, ggml_type: int, n_inner: int, n_rows: int, n_columns: int, budget_s: float
) -> Probed:
    """Multiply weights of a ggml type, (n_inner, n_rows), with n_columns F32 columns; raises as `probe_copy`."""
    seconds, error = (c_double * 2)(), ctypes.create_string_buffer(256)
    numbers = map(_int32, (device, n_threads, ggml_type, n_inner, n_rows, n_columns))
    _check(_library().qcls_probe_matmul(*numbers, budget_s, seconds, error, len(error)), error)
    return Probed(best_s=seconds[0], median_s=seconds[1])


def max_sequences() -> int:
    """The most sequences that a context can have."""
    return int(_library().qcls_max_sequences())


_log: Callable[[int, str], None] | None = None


def _pass_on(level: int, text: bytes, _user: Any) -> None:
    if _log is not None:
        _log(level, text.decode(errors="replace"))


_forward_log = _LOG_FN(_pass_on)  # one for good: C may be in it when the log is changed


def set_log(log: Callable[[int, str], None] | None) -> None:
    """Send llama.cpp's log to `log(level, text)` (1 debug, 2 info, 3 warning, 4 error, 5 continued), or nowhere."""
    global _log
    _log = log
    _library().qcls_set_log(_forward_log if log is not None else _LOG_FN(), None)


_ROOM = 512  # tokens; longer texts are tokenised twice, and leave nothing


class _Room(threading.local):
    """What a thread's calls of the tokenizer write to, made once: making it would take longer than they do."""

    def __init__(self) -> None:
        self.call = _library().qcls_tokenize
        self.n_tokens = c_int32()
        self.n_tokens_ref = byref(self.n_tokens)
        self.error = ctypes.create_string_buffer(256)
        self.reserve(_ROOM)

    def reserve(self, capacity: int) -> None:
        self.token = np.empty(capacity, np.int32)
        self.pointer, self.capacity = self.token.ctypes.data, capacity


class NativeModel:
    """A loaded model. `close` closes its contexts first, and is idempotent. Many threads may use the tokenizer."""

    def __init__(self, path: Path, *, n_gpu_layers: int = -1, progress: Callable[[float], bool] | None = None) -> None:
        """Load a GGUF file; n_gpu_layers < 0 puts all layers on the GPU, if there is one.

        progress(fraction) returns False to stop the load. Raises ModelError.
        """
        self._handle = c_void_p()
        self._room = _Room()
        handle, error = c_void_p(), ctypes.create_string_buffer(2048)
        stop: list[BaseException] = []  # what ends the load: from `progress`, or an interrupt of this thread
        status = _LOAD_FAILED

        def go_on(done: float, _user: Any) -> int:
            try:
                return int(not stop and (progress is None or progress(done)))
            except BaseException as e:  # ctypes would swallow it
                stop.append(e)
                return 0

        def load() -> None:
            nonlocal status
            status = _library().qcls_model_open(
                os.fsencode(path), n_gpu_layers, _PROGRESS_FN(go_on), None, byref(handle), error, len(error)
            )

        # In a thread of its own: an interrupt would be raised in the callback, and lost there.
        loader = threading.Thread(target=load)
        loader.start()
        try:
            loader.join()
        except BaseException as e:
            stop.append(e)
            loader.join()
        if stop:
            _library().qcls_model_close(handle)
            raise stop[0]
        _check(status, error, path)
        self._handle = handle
        self._free = weakref.finalize(self, _library().qcls_model_close, handle)
        self.path = path
        self.contexts: weakref.WeakSet[NativeContext] = weakref.WeakSet()
        fact = (c_int64 * len(_FACTS))()
        _library().qcls_model_facts(handle, fact)
        text = ctypes.create_string_buffer(256)
        _library().qcls_model_description(handle, text, len(text))
        values: dict[str, Any] = dict(zip(_FACTS, fact, strict=True))
        values["add_bos"] = bool(values["add_bos"])
        self.facts = ModelFacts(**values, description=text.value.decode(errors="replace"))

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise ModelError("the model is closed")
        return self._handle

    def tokenize(self, text: str, *, parse_special: bool) -> Int32Array:
        """Token ids of text, shape (n_tokens,); no BOS is added. parse_special: spelt special tokens become tokens.

        Raises PlanError for text that is not valid Unicode.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as e:
            raise PlanError(f"character {e.start} of the text is not valid Unicode ({e.reason})") from None
        room = self._room
        status = self._tokenize(data, parse_special, room)
        if status == _TOO_SMALL:
            room.reserve(room.n_tokens.value)
            status = self._tokenize(data, parse_special, room)
        _check(status, room.error)
        token = room.token[: room.n_tokens.value].copy()
        if len(token) > _ROOM:
            room.reserve(_ROOM)
        return token

    def _tokenize(self, data: bytes, parse_special: bool, room: _Room) -> int:
        status: int = room.call(
            self.handle,
            data,
            len(data),
            parse_special,
            room.pointer,
            room.capacity,
            room.n_tokens_ref,
            room.error,
            len(room.error),
        )
        return status

    def piece(self, token: int) -> tuple[bytes, bool]:
        """The bytes of a token, and whether it is a special one, which only parse_special finds in text."""
        n_bytes, special, error = c_int32(), c_int32(), ctypes.create_string_buffer(256)
        size = 64
        for _ in range(2):
            text = ctypes.create_string_buffer(size)
            status = _library().qcls_token_piece(
                self.handle, token, text, size, byref(n_bytes), byref(special), error, len(error)
            )
            if status != _TOO_SMALL:
                break
            size = n_bytes.value
        _check(status, error)
        return text.raw[: n_bytes.value], bool(special.value)

    def close(self) -> None:
        if self._handle:
            for context in list(self.contexts):
                context.close()
            self._free()
            self._handle = c_void_p()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NativeContext:
    """A llama.cpp context with a unified KV cache. One thread at a time; `close` is idempotent."""

    def __init__(
        self,
        model: NativeModel,
        *,
        n_ctx: int,
        n_batch: int,
        n_seq_max: int,
        n_outputs_max: int,
        n_threads: int,
        hidden_only: bool = True,
        label_tokens: Int32Array | None = None,
        flash_attn: bool | None = None,
        visible_cells: bool = True,
        kv_type: str = "f16",
    ) -> None:
        """Open a context; with hidden_only its rows are final-norm hidden states, else logits (stock llama.cpp).

        label_tokens: (n,) int32; rows are then n_embd + n + 1 floats: hidden state, these tokens' logits from the LM
        head, and the log-sum-exp of all logits.
        flash_attn: llama.cpp's flash attention; none: llama.cpp chooses. Where it is False, visible_cells asks for
        attention that reads only the cells that a token may see, which not every context can have
        (`why_no_visible_cells`), instead of all cells.

        Raises PlanError for a limit out of range, ModelError for a model whose hidden states do not give its logits.
        """
        self._handle = c_void_p()
        handle, error = c_void_p(), ctypes.create_string_buffer(2048)
        tokens = np.empty(0, np.int32) if label_tokens is None else label_tokens
        attention = -1 if flash_attn is None else 1 if flash_attn else 2 if visible_cells else 0
        numbers = n_ctx, n_batch, n_seq_max, n_outputs_max, n_threads, attention
        status = _library().qcls_context_open(
            model.handle,
            int(hidden_only),
            len(tokens),
            _pointer(tokens, np.int32, 1, 0),
            *map(_int32, numbers),
            kv_type.encode(),
            byref(handle),
            error,
            len(error),
        )
        _check(status, error, None if status == _BAD_ARGUMENT else model.path)
        self._handle = handle
        self._model = model  # which must not be freed before the context
        self._free = weakref.finalize(self, _library().qcls_context_close, handle)
        model.contexts.add(self)
        self._error = error
        self._elapsed_us = (c_int64 * 2)()
        self.n_outputs_max = n_outputs_max
        limit = (c_int64 * 4)()
        _library().qcls_context_limits(handle, limit)
        self.n_ctx, self.n_batch, self.n_seq_max, self.row_size = (int(value) for value in limit)
        why = ctypes.create_string_buffer(128)
        reads_visible = _library().qcls_context_visible_cells(handle, why, len(why))
        self.why_no_visible_cells = None if reads_visible else why.value.decode()
        """Why attention reads every used cell; None where it reads only those that a token may see."""

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise DecodeError("the context is closed")
        return self._handle

    def keep_shapes(self, n_shapes: int) -> None:
        """Keep the graphs of the last n_shapes shapes of decode, each with its compute buffers; 0: llama.cpp's one."""
        status = _library().qcls_context_keep_shapes(self.handle, _int32(n_shapes), self._error, len(self._error))
        _check(status, self._error)

    def counters(self) -> Counters:
        """What the context did since it was opened, and holds now."""
        counter = (c_int64 * 4)()
        _library().qcls_context_counters(self.handle, counter)
        return Counters(*counter)

    def share(self, src: int, dst: int, start: int, end: int) -> None:
        """Let sequence dst share src's cells at positions [start, end); copies nothing."""
        numbers = map(_int32, (src, dst, start, end))
        _check(_library().qcls_seq_share(self.handle, *numbers, self._error, len(self._error)), self._error)

    def trim(self, seq: Int32Array, start: Int32Array) -> None:
        """Sequence seq[i] loses its cells at positions >= start[i]; both int32, shape (n,)."""
        n = len(seq)
        status = _library().qcls_seq_trim(
            self.handle,
            n,
            _pointer(seq, np.int32, 1, n),
            _pointer(start, np.int32, 1, n),
            self._error,
            len(self._error),
        )
        _check(status, self._error)

    def save_state(self) -> bytes:
        """The cells of all sequences, for `load_state` of a context like this one in the same build."""
        size = c_int64(0)
        state = np.empty(0, np.uint8)
        status = _TOO_SMALL
        while status == _TOO_SMALL:
            state = np.empty(size.value, np.uint8)
            status = _library().qcls_state_save(
                self.handle, state.ctypes.data, byref(size), self._error, len(self._error)
            )
        _check(status, self._error)
        return state[: size.value].tobytes()

    def load_state(self, state: bytes) -> None:
        """Replace all sequences by saved ones. Raises DecodeError, with an empty cache, where they do not fit."""
        status = _library().qcls_state_load(self.handle, state, len(state), self._error, len(self._error))
        _check(status, self._error)

    def clear(self) -> None:
        """Forget every sequence, and overwrite the cells."""
        _library().qcls_context_clear(self.handle)

    def decode(
        self,
        token: Int32Array,
        pos: Int32Array,
        seq_offset: Int32Array,
        seq_id: Int32Array,
        output: npt.NDArray[np.bool_],
        rows: Float32Array,
        trim_seq: Int32Array = _NONE,
        trim_start: Int32Array = _NONE,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[int, int]:
        """One llama_decode of a plan (see plan.Plan for the arrays) into rows, shape (n_outputs, row_size).

        Then, also after a DecodeError, sequences are trimmed as by `trim`. meanwhile is called, after the trimming,
        once the work is queued on a GPU (on a CPU: done) and before it is waited for; it must not touch the context.
        Returns the microseconds spent on filling the batch, and those of trimming, 0 where that was `meanwhile` too.
        Raises PlanError for a plan that does not fit, before anything changed, DecodeError, and what meanwhile raises.
        """
        n, n_trim = len(token), len(trim_seq)
        if rows.ndim != 2 or rows.shape[1] != self.row_size or not rows.flags.writeable:
            raise PlanError(f"rows must be writable and have shape (n, {self.row_size}), not {rows.shape}")
        offsets = _pointer(seq_offset, np.int32, 1, n + 1)
        room = _pointer(rows, np.float32, 2, 0)
        status = _library().qcls_decode(
            self.handle,
            n,
            _pointer(token, np.int32, 1, n),
            _pointer(pos, np.int32, 1, n),
            offsets,
            _pointer(seq_id, np.int32, 1, int(seq_offset[n])),
            _pointer(output, np.bool_, 1, n),
            room if meanwhile is None else None,
            len(rows),
            n_trim,
            _pointer(trim_seq, np.int32, 1, n_trim),
            _pointer(trim_start, np.int32, 1, n_trim),
            self._elapsed_us,
            self._error,
            len(self._error),
        )
        _check(status, self._error)
        batch_us, trim_us = self._elapsed_us[:]
        if meanwhile is None:
            return batch_us, trim_us
        try:
            meanwhile()
        finally:
            status = _library().qcls_decode_rows(self.handle, room, len(rows), self._error, len(self._error))
            _check(status, self._error)
        return batch_us, 0

    def close(self) -> None:
        if self._handle:
            self._free()
            self._handle = c_void_p()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrieScores:
    """The arithmetic of label tries (see score.py): edge logits to label scores. One thread at a time."""

    def __init__(self, node_start: Int32Array, label_start: Int32Array, label_edge: Int32Array) -> None:
        """Node i's edges are [node_start[i], node_start[i + 1]), label j's path label_edge[label_start[j] :
        label_start[j + 1]]; every node and label has an edge.

        Raises PlanError where they do not fit each other.
        """
        self._layout = node_start, label_start, label_edge
        self._nodes, self._labels, self._label_edges = (
            _pointer(array, np.int32, 1, len(array)) for array in self._layout
        )
        for start, n in ((node_start, int(node_start[-1])), (label_start, len(label_edge))):
            if start[0] != 0 or start[-1] != n or not (np.diff(start) > 0).all():
                raise PlanError(f"starts must ascend from 0 to {n}: {start}")
        self.n_edges = int(node_start[-1])
        if not ((label_edge >= 0) & (label_edge < self.n_edges)).all():
            raise PlanError(f"the labels' edges must be among {self.n_edges}: {label_edge}")
        self._n_nodes, self._n_labels = len(node_start) - 1, len(label_start) - 1
        self._call = _library().qcls_trie_scores
        self._reserve(1)

    def _reserve(self, n_queries: int) -> None:
        self.edge = np.empty((n_queries, self.n_edges), np.float32)
        self._log_probability = np.empty((n_queries, self._n_labels), np.float32)
        self._probability = np.empty((n_queries, self._n_labels), np.float32)
        arrays = self.edge, self._log_probability, self._probability
        self._results = [array.ctypes.data for array in arrays]

    def logits(self, n_queries: int) -> Float32Array:
        """(n_queries, n_edges) where the next call finds the logits."""
        if len(self.edge) != n_queries:
            self._reserve(n_queries)
        return self.edge

    def __call__(self) -> tuple[Float32Array, Float32Array, bool]:
        """(n_queries, n_labels) the log-probabilities, the probabilities, and whether all are finite.

        Both are views that the next call overwrites. `logits` then holds each edge's log-softmax.
        """
        is_finite = self._call(
            len(self.edge),
            self._n_nodes,
            self._nodes,
            self._n_labels,
            self._labels,
            self._label_edges,
            *self._results,
        )
        return self._log_probability, self._probability, bool(is_finite)
