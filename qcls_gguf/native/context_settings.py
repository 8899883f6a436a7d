"""How a context is opened, and what it would take, known before anything is allocated."""

from __future__ import annotations

from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, Unpack

from ..errors import PlanError
from ..statistics import Int32Array
from . import abi
from .abi import INT32, Error, Status, address, check
from .library import call, library
from .model import NativeModel

FLASH_ATTN = {None: 0, False: 1, True: 2}  # qcls_flash_attn


@dataclass(frozen=True, slots=True)
class ContextMemory:
    """The memory of a context in bytes, on all devices."""

    cache_bytes: int
    """the KV cache, with the states of recurrent layers"""
    compute_bytes: int
    """the compute buffers for the largest decode"""

    def __str__(self) -> str:
        gib = [n / (1 << 30) for n in (self.cache_bytes, self.compute_bytes)]
        return f"{gib[0]:.2f} GiB of cache and states, {gib[1]:.2f} GiB of compute buffers"


class ContextSettings(TypedDict):
    """How a context is opened: its limits, as llama.cpp names them, and what it computes with."""

    n_ctx: int
    n_batch: int
    n_seq_max: int
    n_outputs_max: int
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
    n_state_seqs: NotRequired[int]
    """of how many sequences recurrent layers keep states at once; 0: of all, as by default. Where the model walks
    trees, decodes that are trimmed afterwards write only those of sequences that keep some"""
    kv_type: NotRequired[str]
    """f16 by default"""


def params_of(settings: ContextSettings) -> abi.ContextParams:
    """The struct of the settings, which must live as long as it. Raises PlanError for a limit out of range."""
    members: dict[str, Any] = {"hidden_only": True, "visible_cells": True, **settings}
    tokens = members.pop("label_tokens", None)
    if tokens is not None:
        members |= {"label_token": address(tokens, INT32, 1, 0), "n_label_tokens": len(tokens)}
    members["flash_attn"] = FLASH_ATTN[settings.get("flash_attn")]
    members["kv_type"] = settings.get("kv_type", "f16").encode()
    return abi.ContextParams(**members)


def opened(model: NativeModel, settings: ContextSettings) -> c_void_p:
    """The handle of a context. Raises as NativeContext."""
    handle, error, params = c_void_p(), Error(), params_of(settings)
    status = library().qcls_context_open(model.handle, byref(params), byref(handle), byref(error))
    check(status, error, None if status == Status.BAD_ARGUMENT else model.path)
    return handle


def measure_context(model: NativeModel, **settings: Unpack[ContextSettings]) -> ContextMemory:
    """What a context would take, for a model without weights; nothing of it is allocated. Raises as NativeContext."""
    if not model.without_weights:
        raise PlanError("the model was opened with its weights: open a context, and ask its counters")
    handle = opened(model, settings)
    try:
        return described(handle).to(ContextMemory)
    finally:
        library().qcls_context_close(handle, None)


def described(handle: c_void_p) -> abi.ContextFacts:
    """A context as C describes it; any thread may ask."""
    facts = abi.ContextFacts()
    call("qcls_context_describe", handle, byref(facts))
    return facts
