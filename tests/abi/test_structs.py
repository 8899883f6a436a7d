"""Structs of another size: of an older caller (shorter), of a later one (longer), and of none that fits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_void_p
from typing import Any, ClassVar

import numpy as np
import pytest
from conftest import OpenContext
from oracle import decode_sequence

from qcls_gguf.errors import PlanError
from qcls_gguf.native import NativeContext, NativeModel, abi
from qcls_gguf.native.abi import Error, Status, Struct
from qcls_gguf.native.library import library

SIZES: dict[str, Any] = {"n_ctx": 256, "n_batch": 64, "n_seq_max": 8, "n_outputs_max": 64, "n_threads": 1}


def longer(struct: type[Struct]) -> Any:
    """A struct with a member that the library does not know, as a later caller has it."""

    class Longer(struct):  # type: ignore[misc, valid-type]
        _fields_: ClassVar = [("later", ctypes.c_int64)]

    return Longer


def open_with(model: NativeModel, params: Struct) -> tuple[int, str, int]:
    """The status and message of opening a context, and the size of its rows."""
    handle, error, limits = c_void_p(), Error(), abi.Limits()
    status = library().qcls_context_open(
        model.handle, ctypes.cast(byref(params), ctypes.POINTER(abi.ContextParams)), byref(handle), error
    )
    if status == Status.OK:
        assert library().qcls_context_limits(handle, limits, None) == Status.OK
        assert library().qcls_context_close(handle, None) == Status.OK
    else:
        assert handle.value is None
    return status, error.message.decode(), limits.row_size


def test_members_that_a_shorter_struct_lacks_have_their_default(model: NativeModel) -> None:
    params = abi.ContextParams(**SIZES, hidden_only=1, flash_attn=77, kv_type=b"no such type")
    params.size = abi.ContextParams.flash_attn.offset
    assert open_with(model, params) == (Status.OK, "", model.facts.n_embd)
    params.size = abi.ContextParams.hidden_only.offset
    assert open_with(model, params) == (Status.OK, "", model.facts.n_vocab)


@pytest.mark.parametrize("size", [0, 3, 4, abi.ContextParams.n_threads.offset])
def test_a_struct_without_what_is_required_is_refused(size: int, model: NativeModel) -> None:
    params = abi.ContextParams(**SIZES)
    params.size = size
    status, message, _ = open_with(model, params)
    assert status == Status.BAD_ARGUMENT
    assert f"qcls_context_params.size is {size}, less than the 24 bytes" in message


def test_a_longer_struct_is_taken_if_the_rest_is_zero(model: NativeModel) -> None:
    params = longer(abi.ContextParams)(**SIZES)
    assert params.size == ctypes.sizeof(abi.ContextParams) + 8
    assert open_with(model, params) == (Status.OK, "", model.facts.n_vocab)
    params.later = 1
    status, message, _ = open_with(model, params)
    assert status == Status.BAD_ARGUMENT
    assert f"size is {params.size}" in message


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"flash_attn": 3}, "flash_attn is 3"),
        ({"flash_attn": -1}, "flash_attn is -1"),
        ({"kv_type": b"q3_x"}, "kv_type is q3_x"),
        ({"n_label_tokens": -1, "hidden_only": 1}, "negative length: -1"),
        ({"n_label_tokens": 1, "hidden_only": 1}, "label tokens is NULL"),
        ({"n_batch": 7}, "n_batch is 7: it must be between n_seq_max and n_ctx"),
    ],
)
def test_members_out_of_range_are_named(members: dict[str, Any], message: str, model: NativeModel) -> None:
    status, found, _ = open_with(model, abi.ContextParams(**{**SIZES, **members}))
    assert status == Status.BAD_ARGUMENT
    assert message in found


@pytest.mark.parametrize("value", [1 << 31, 1 << 32, -(1 << 32) + 5, np.int64(1 << 32)])
def test_integers_that_a_member_would_cut(value: int) -> None:
    with pytest.raises(PlanError, match=f"n_ctx is {value}"):
        abi.ContextParams(n_ctx=value)


FILLED: dict[str, Callable[[NativeContext, Any], int]] = {
    "limits": lambda context, out: library().qcls_context_limits(context.handle, out, None),
    "head_tail": lambda context, out: library().qcls_context_head_tail(context.handle, out, None),
    "counters": lambda context, out: library().qcls_context_counters(context.handle, out, None),
    "facts": lambda context, out: library().qcls_model_describe(context._model.handle, out, None),
    "device": lambda context, out: library().qcls_device_describe(0, out, None),
}
STRUCT_OF = {
    "limits": abi.Limits,
    "head_tail": abi.HeadTail,
    "counters": abi.Counters,
    "facts": abi.Facts,
    "device": abi.Device,
}


@pytest.mark.parametrize("name", FILLED)
def test_a_struct_is_filled_as_far_as_the_caller_has_it(
    name: str, model: NativeModel, open_context: OpenContext
) -> None:
    context, struct, fill = open_context(model), STRUCT_OF[name], FILLED[name]
    whole = struct()
    assert fill(context, whole) == Status.OK
    for size in (4, 8, 16, ctypes.sizeof(struct)):
        short = struct()
        ctypes.memset(ctypes.addressof(short), 0x55, ctypes.sizeof(short))
        short.size = size
        assert fill(context, short) == Status.OK
        assert short.size == size
        assert bytes(short)[4:size] == bytes(whole)[4:size]
        assert bytes(short)[size:] == b"\x55" * (ctypes.sizeof(struct) - size)
    for size in (0, 3):
        short.size = size
        assert fill(context, short) == Status.BAD_ARGUMENT
    long = longer(struct)(later=-1)
    assert fill(context, ctypes.cast(byref(long), ctypes.POINTER(struct))) == Status.OK
    assert (long.size, long.later) == (ctypes.sizeof(struct) + 8, 0)
    assert bytes(long)[4 : ctypes.sizeof(struct)] == bytes(whole)[4:]


def plan_of_one(context: NativeContext) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """One token of sequence 0, whose row is wanted, in a struct with a member behind it; and its arrays."""
    arrays = [np.array(values, np.int32) for values in ([5], [0], [0, 1], [0])]
    arrays += [np.ones(1, np.uint8), np.zeros((1, context.row_size), np.float32)]
    names = "token", "pos", "seq_offset", "seq_id", "output", "rows"
    pointers = {name: array.ctypes.data for name, array in zip(names, arrays, strict=True)}
    return longer(abi.Plan)(n_tokens=1, n_seq_ids=1, n_rows=1, **pointers), arrays


def test_plans_of_other_sizes(model: NativeModel, open_context: OpenContext) -> None:
    context = open_context(model)
    zero = np.zeros(1, np.int32)
    expected = decode_sequence(context, [5])
    plan, arrays = plan_of_one(context)

    def decode(size: int) -> int:
        context.trim(zero, zero)
        arrays[-1][:] = 0
        plan.size = size
        status = library().qcls_decode(context.handle, ctypes.cast(byref(plan), ctypes.POINTER(abi.Plan)), None)
        assert (arrays[-1] == (expected if status == Status.OK else 0)).all()
        return int(status)

    assert decode(ctypes.sizeof(abi.Plan)) == Status.OK
    assert decode(ctypes.sizeof(abi.Plan) + 8) == Status.OK
    plan.later = 1
    assert decode(ctypes.sizeof(abi.Plan)) == Status.OK
    assert decode(ctypes.sizeof(abi.Plan) + 8) == Status.BAD_ARGUMENT
    plan.n_trim = -1
    assert decode(ctypes.sizeof(abi.Plan)) == Status.BAD_ARGUMENT
    assert decode(abi.Plan.n_trim.offset) == Status.OK  # without the members of trimming
    assert decode(abi.Plan.trim_us.offset) == Status.BAD_ARGUMENT


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("n_tokens", (1 << 32) + 1),
        ("n_tokens", -1),
        ("n_rows", (1 << 32) + 1),
        ("n_rows", -1),
        ("n_seq_ids", 0),
        ("n_seq_ids", -1),
        ("n_trim", 1),
        ("token", None),
        ("pos", None),
        ("seq_offset", None),
        ("seq_id", None),
        ("output", None),
    ],
)
def test_plans_that_do_not_fit(member: str, value: int | None, model: NativeModel, open_context: OpenContext) -> None:
    context = open_context(model)
    plan, arrays = plan_of_one(context)
    plan.size = ctypes.sizeof(abi.Plan)
    setattr(plan, member, value)
    error = Error()
    status = library().qcls_decode(context.handle, ctypes.cast(byref(plan), ctypes.POINTER(abi.Plan)), error)
    assert status == Status.BAD_ARGUMENT
    assert error.message
    assert not arrays[-1].any()
    decode_sequence(context, [5])  # position 0 is still free


def test_lengths_that_no_int32_holds(model: NativeModel, open_context: OpenContext) -> None:
    """Cut to 32 bits they would be 1: nothing is read of the arrays, which have one element."""
    context, one, long = open_context(model), np.zeros(1, np.int32), (1 << 32) + 1
    tokens = library().qcls_context_set_label_tokens(context.handle, long, one.ctypes.data, None)
    assert tokens == Status.BAD_ARGUMENT
    rows = np.zeros((1, context.row_size), np.float32)
    assert library().qcls_decode_rows(context.handle, rows.ctypes.data, long, None) == Status.BAD_ARGUMENT
    assert library().qcls_seq_trim(context.handle, -1, one.ctypes.data, one.ctypes.data, None) == Status.BAD_ARGUMENT
    assert library().qcls_state_load(context.handle, b"", -1, None) == Status.BAD_ARGUMENT
