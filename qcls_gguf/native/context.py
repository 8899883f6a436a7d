"""A llama.cpp context: its sequences, and decodes of plans."""

import os
import weakref
from collections.abc import Callable
from ctypes import addressof, byref, c_char, c_int64, c_void_p
from dataclasses import dataclass
from operator import attrgetter, le
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import DecodeError, PlanError
from ..statistics import Float32Array, Int32Array
from ..system.lifetimes import Closing
from . import abi
from .abi import BOOL, FLOAT32, INT32, Error, Status, address, check, int32
from .library import call, library
from .model import NativeModel

FORKED = "this was made in another process: make one in every process after forking"
_NONE: Int32Array = np.empty(0, np.int32)
# what `decode` takes: token, pos, seq_offset, seq_id, output, trim_seq, trim_start, rows
_DTYPES = [INT32, INT32, INT32, INT32, BOOL, INT32, INT32, FLOAT32]
_NDIMS = [1, 1, 1, 1, 1, 1, 1, 2]
_DTYPE, _NDIM = attrgetter("dtype"), attrgetter("ndim")
_FROM_BUFFER: Callable[[npt.NDArray[Any]], c_char] = c_char.from_buffer  # type: ignore[assignment]


FLASH_ATTN = {None: 0, False: 1, True: 2}  # qcls_flash_attn


@dataclass(frozen=True, slots=True)
class ContextMemory:
    """The memory of a context in bytes."""

    cache_bytes: int
    """the KV cache, with the states of recurrent layers, on all devices"""
    compute_bytes: int
    """the compute buffers for the largest decode, on the device that has most of them"""

    def __str__(self) -> str:
        gib = [n / (1 << 30) for n in (self.cache_bytes, self.compute_bytes)]
        return f"{gib[0]:.2f} GiB of cache and states, {gib[1]:.2f} GiB of compute buffers"


class ContextLimits(TypedDict):
    """The sizes of a context; see llama.cpp for n_ctx, n_batch and n_seq_max."""

    n_ctx: int
    n_batch: int
    n_seq_max: int
    n_outputs_max: int
    n_state_seqs: NotRequired[int]
    """of how many sequences recurrent layers keep states at once; 0: of all, as by default. Where the model walks
    trees, decodes that are trimmed afterwards write none"""


class ContextSettings(ContextLimits):
    """How a context is opened: its sizes, and what it computes with."""

    n_threads: int
    hidden_only: NotRequired[bool]
    """rows are final-norm hidden states, as by default; else logits (stock llama.cpp)"""
    label_tokens: NotRequired[Int32Array | None]
    """(n,) int32, as for `set_label_tokens`"""
    flash_attn: NotRequired[bool | None]
    """None lets llama.cpp choose, as by default"""
    visible_cells: NotRequired[bool]
    """read in attention only the cells that a token may see, if the context can (`why_no_visible_cells`), as by
    default; this needs flash_attn False on a CPU, None on a GPU"""
    batch_invariant: NotRequired[bool]
    """a token's row does not depend on what else is decoded with it; this needs attention to visible cells on CUDA
    devices, and weights that this project's kernels can multiply"""
    kv_type: NotRequired[str]
    """f16 by default"""


class NativeContext(Closing):
    """A llama.cpp context with a unified KV cache. One thread at a time; `close` is idempotent."""

    def __init__(self, model: NativeModel, **settings: Unpack[ContextSettings]) -> None:
        """Open a context.

        Raises PlanError for a limit out of range, ModelError for a model whose hidden states do not give its logits.
        """
        self._error = Error()
        self._error_ref = byref(self._error)
        self._handle = handle = _opened(model, settings)
        self.model = model  # keeps the model open: it must not be freed before the context
        self._free = weakref.finalize(self, library().qcls_context_close, handle, None)
        self._free.atexit = False  # at the exit of the interpreter another thread may still be decoding
        self._pid = os.getpid()
        model.contexts.add(self)
        _contexts[id(self)] = self
        self._call_decode = library().qcls_decode
        self._plan = abi.Plan()
        self._plan_ref = byref(self._plan)
        facts = described(handle)
        self.why_no_visible_cells = facts.reads_all_since.decode() if facts.reads_all_since else None
        """Why attention reads every used cell; None if it reads only the cells that a token may see."""
        self.n_ctx: int = facts.n_ctx
        self.n_batch: int = facts.n_batch
        self.n_seq_max: int = facts.n_seq_max
        self.n_state_seqs: int = settings.get("n_state_seqs") or facts.n_seq_max
        self.n_outputs_max: int = facts.n_outputs_max
        self._row_size: int | None = facts.row_size

    @property
    def handle(self) -> c_void_p:
        if not self._handle:
            raise DecodeError("the context is closed" if self._pid == os.getpid() else FORKED)
        return self._handle

    @property
    def row_size(self) -> int:
        """Floats of a row that `decode` gives; `set_label_tokens` changes it."""
        if self._row_size is None:
            self._row_size = described(self.handle).row_size
        return self._row_size

    @property
    def output_steps(self) -> tuple[float, float | None, bool]:
        """(scale, cap, whether there is a bias): with h · w a product with a row of the output matrix, b the token's
        output.bias where the model adds it, and y = (h · w + b) · scale, the logit is y, or cap · tanh(y / cap).

        Raises PlanError for a context whose rows are logits.
        """
        facts = described(self.handle)
        if not facts.hidden_only:
            raise PlanError("output_steps: rows of this context are logits")
        # with a cap, C's scale includes the 1 / cap inside tanh
        scale = float(np.float32(facts.scale * (facts.cap or 1.0)))
        return scale, facts.cap or None, bool(facts.has_bias)

    def set_label_tokens(self, tokens: Int32Array) -> None:
        """Add to the rows of a hidden-only context the values that exact scorings need.

        tokens: (n,) int32. With n > 0 rows are n_embd + n + 1 floats: the hidden state, these tokens' logits from the
        LM head, and the log-sum-exp of all logits; with n = 0 the hidden state alone. `row_size` tells. Sequences keep
        their cells, and graphs are built anew.
        Raises PlanError for an invalid token or a context whose rows are logits, ModelError if memory is lacking; the
        context is then unchanged.
        """
        pointer = address(tokens, INT32, 1, 0)
        self._row_size = None  # an interrupt may come between any two lines
        call("qcls_context_set_label_tokens", self.handle, len(tokens), pointer)

    def set_depths(self, depths: Int32Array, end: int = 0) -> None:
        """Read the residual stream of flagged tokens at several depths of a hidden-only context.

        depths: (n,) int32 of 1 to n_layer - 1; rows hold, between the hidden state and the label tokens' logits, n
        times n_embd floats: the sum to which every layer adds, as it is after so many layers, without a norm. end:
        above 0, the graph ends after so many layers, more than any depth, and the row's hidden state is the residual
        stream there; layers above are not computed, and write no cells. `row_size` tells. Graphs are built anew.
        Raises PlanError for depths out of range or a context whose rows are logits, ModelError for a model whose graph
        does not show that stream; the context is then unchanged.
        """
        pointer = address(depths, INT32, 1, 0)
        self._row_size = None  # an interrupt may come between any two lines
        call("qcls_context_set_depths", self.handle, len(depths), pointer, int32(end, "end"))

    def keep_shapes(self, n_shapes: int) -> None:
        """Keep the graphs of the last n_shapes shapes of decode, with their compute buffers; 0: llama.cpp's one."""
        call("qcls_context_keep_shapes", self.handle, int32(n_shapes, "n_shapes"))

    def counters(self) -> abi.Struct:
        """Counts since the context was opened, and its memory, as of its last call: the members of qcls_context_facts.

        Any thread may ask.
        """
        return described(self.handle)

    def share(self, src: int, dst: int, start: int, end: int) -> None:
        """Let sequence dst share src's cells at positions [start, end); copies nothing."""
        call("qcls_seq_share", self.handle, *map(int32, (src, dst, start, end)))

    def trim(self, seq: Int32Array, start: Int32Array) -> None:
        """Remove the cells of sequence seq[i] at positions >= start[i]; both int32, shape (n,)."""
        n = len(seq)
        call("qcls_seq_trim", self.handle, n, address(seq, INT32, 1, n), address(start, INT32, 1, n))

    def save_state(self) -> bytes:
        """The cells of all sequences, for `load_state` of a context like this one in the same build."""
        size = c_int64(0)
        state = np.empty(0, np.uint8)
        status = Status.TOO_SMALL
        while status == Status.TOO_SMALL:
            state = np.empty(size.value, np.uint8)
            status = library().qcls_state_save(self.handle, state.ctypes.data, byref(size), self._error_ref)
        check(status, self._error)
        return state[: size.value].tobytes()

    def load_state(self, state: bytes) -> None:
        """Replace all sequences by saved ones. Raises DecodeError, with an empty cache, where they do not fit."""
        if not state:
            raise DecodeError("there are no saved cells")
        call("qcls_state_load", self.handle, state, len(state))

    def clear(self) -> None:
        """Forget every sequence, and overwrite the cells."""
        call("qcls_state_load", self.handle, None, 0)

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
        *,
        queued: bool = False,
    ) -> tuple[int, int]:
        """One llama_decode into rows, shape (n_outputs, row_size); DecodeInput in plan/decodes.py describes the arrays.

        Then, also after a DecodeError, sequences are trimmed as by `trim`. queued: that is done as soon as the work is
        queued on a GPU (on a CPU: done), then the rows are waited for.
        Returns the microseconds of filling the batch, and those of trimming (0 with queued, where it takes no extra
        time).
        Raises PlanError for a plan that does not fit, before anything changes, and DecodeError.
        """
        if self._row_size is None or not self._handle:
            self._row_size = described(self.handle).row_size
        if rows.ndim != 2 or rows.shape[1] != self._row_size or not rows.flags.writeable:
            raise PlanError(f"rows must be writable and have shape (n, {self._row_size}), not {rows.shape}")
        n, n_trim = len(token), len(trim_seq)
        arrays = (token, pos, seq_offset, seq_id, output, trim_seq, trim_start, rows)
        sizes = (n, n, n + 1, 0, n, n_trim, n_trim, 0)
        try:
            fit = [*map(_DTYPE, arrays)] == _DTYPES and [*map(_NDIM, arrays)] == _NDIMS
            fit = fit and all(map(le, sizes, map(len, arrays)))
            pointers = [*map(addressof, map(_FROM_BUFFER, arrays))] if fit else None
        except (TypeError, ValueError):  # for gaps between elements, and for no elements, which may be right
            pointers = None
        if pointers is None:
            pointers = [*map(address, arrays, _DTYPES, _NDIMS, sizes)]
        plan = self._plan
        plan.token, plan.pos, plan.seq_offset, plan.seq_id, plan.output, plan.trim_seq, plan.trim_from, memory = (
            pointers
        )
        plan.n_tokens = n
        plan.n_seq_ids = len(seq_id)
        plan.n_rows = len(rows)
        plan.rows = None if queued else memory
        plan.n_trim = n_trim
        if status := self._call_decode(self._handle, self._plan_ref, self._error_ref):
            check(status, self._error)
        if not queued:
            return plan.batch_us, plan.trim_us
        call("qcls_decode_rows", self._handle, memory, len(rows))
        return plan.batch_us, 0

    def close(self) -> None:
        if self._handle:
            self._free()
            self._handle = c_void_p()
            self.model.contexts.discard(self)
            _contexts.pop(id(self), None)


def measure_context(model: NativeModel, **settings: Unpack[ContextSettings]) -> ContextMemory:
    """What a context would take, for a model without weights; nothing of it is allocated. Raises as NativeContext."""
    if not model.without_weights:
        raise PlanError("the model was opened with its weights: open a context, and ask its counters")
    handle = _opened(model, settings)
    try:
        return described(handle).to(ContextMemory)
    finally:
        library().qcls_context_close(handle, None)


def _opened(model: NativeModel, settings: ContextSettings) -> c_void_p:
    """The handle of a context. Raises as NativeContext."""
    members: dict[str, Any] = {"hidden_only": True, "visible_cells": True, **settings}
    tokens = members.pop("label_tokens", None)
    if tokens is not None:
        members |= {"label_token": address(tokens, INT32, 1, 0), "n_label_tokens": len(tokens)}
    members["flash_attn"] = FLASH_ATTN[settings.get("flash_attn")]
    members["kv_type"] = settings.get("kv_type", "f16").encode()
    handle, error, params = c_void_p(), Error(), abi.ContextParams(**members)
    status = library().qcls_context_open(model.handle, byref(params), byref(handle), byref(error))
    check(status, error, None if status == Status.BAD_ARGUMENT else model.path)
    return handle


def described(handle: c_void_p) -> abi.Struct:
    """A context as C describes it; any thread may ask."""
    facts = abi.ContextFacts()
    call("qcls_context_describe", handle, byref(facts))
    return facts


_contexts: weakref.WeakValueDictionary[int, NativeContext] = weakref.WeakValueDictionary()
"""Those that are open, by id."""


def n_contexts_on_gpus() -> int:
    """The open contexts of this process whose models have layers on GPUs."""
    contexts = [reference() for reference in _contexts.valuerefs()]  # at once: other threads may add some meanwhile
    return sum(context is not None and context.model.n_gpu_layers != 0 for context in contexts)


def _abandon_all() -> None:
    """In a forked process, without freeing them, which would wait for threads of the parent."""
    for reference in _contexts.valuerefs():
        if context := reference():
            context._free.detach()
            context._handle = c_void_p()
    _contexts.clear()


os.register_at_fork(after_in_child=_abandon_all)
