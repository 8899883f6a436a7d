"""Arrays and ids that do not fit are refused before llama.cpp sees them, and the context goes on as before."""

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import cases
from conftest import OpenContext
from oracle import Float32Array, decode_sequence

from qcls_gguf.errors import DecodeError, PlanError
from qcls_gguf.native import NativeContext, NativeModel
from qcls_gguf.native.abi import Plan, Status
from qcls_gguf.native.library import library

N_TOKENS = 4
NO_SEQ = np.zeros(1, np.int32)


def good_plan(context: NativeContext) -> dict[str, Any]:
    """Four tokens of sequence 0, two of them flagged."""
    return {
        "token": np.array([5, 6, 7, 8], np.int32),
        "pos": np.arange(N_TOKENS, dtype=np.int32),
        "seq_offset": np.arange(N_TOKENS + 1, dtype=np.int32),
        "seq_id": np.zeros(N_TOKENS, np.int32),
        "output": np.array([False, True, False, True]),
        "rows": np.zeros((2, context.row_size), np.float32),
    }


def decode_good(context: NativeContext) -> Float32Array:
    """The rows of its tokens; sequence 0 is empty before and after."""
    context.trim(NO_SEQ, NO_SEQ)
    rows = decode_sequence(context, [5, 6, 7, 8])
    context.trim(NO_SEQ, NO_SEQ)
    return rows


def assert_refused(context: NativeContext, **changed: Any) -> None:
    before = decode_good(context)
    with pytest.raises(PlanError):
        context.decode(**{**good_plan(context), **changed})
    assert (decode_good(context) == before).all()


DTYPES = {
    "token": (np.int64, np.uint32, ">i4"),
    "pos": (np.int64, np.float32),
    "seq_offset": (np.int64,),
    "seq_id": (np.int16,),
    "output": (np.uint8, np.int32),
    "rows": (np.float64, np.float16),
}


@pytest.mark.parametrize("name", DTYPES)
def test_arrays_of_another_kind(name: str, context: NativeContext) -> None:
    """Another dtype, gaps between the elements, another dimension, too short."""
    array = good_plan(context)[name]
    for dtype in DTYPES[name]:
        assert_refused(context, **{name: array.astype(dtype)})
    spread = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)[..., ::2]
    spread[...] = array
    longer = np.arange(5, dtype=np.int32)  # the number of tokens is its length: the others are too short then
    for other in (spread, array[:, None], longer if name == "token" else array[:-1]):
        assert_refused(context, **{name: other})


def test_rows_of_another_shape(context: NativeContext) -> None:
    assert context.row_size == 256
    for shape in [(2,), (2, 255), (2, 257), (1, 2, 256), (1, 256), (3, 256), (0, 256)]:
        assert_refused(context, rows=np.zeros(shape, np.float32))
    rows = np.zeros((2, context.row_size), np.float32)
    rows.flags.writeable = False
    assert_refused(context, rows=rows)
    assert not rows.any()


@cases(
    ("token", 0, (-1, 1 << 20, np.iinfo(np.int32).min)),
    ("pos", 0, (-1,)),
    ("seq_id", 1, (-1, 8, 1 << 12, np.iinfo(np.int32).max)),
    ("seq_offset", 0, (-1,)),
    ("seq_offset", 1, (0, 1 << 30, 64)),
    ("seq_offset", 2, (1,)),
    ("seq_offset", 4, (5, -1, 3)),
)
def test_ids_out_of_range(name: str, index: int, values: tuple[int, ...], context: NativeContext) -> None:
    array = good_plan(context)[name]
    for value in values:
        array[index] = value
        assert_refused(context, **{name: array})


@cases((0, "0 tokens do not fit"), (65, "65 tokens do not fit"), (4, "4 flagged tokens, room for 3 rows"))
def test_numbers_of_tokens_that_do_not_fit(n: int, message: str, model: NativeModel, open_context: OpenContext) -> None:
    context = open_context(model, n_seq_max=1, n_outputs_max=3)
    before = decode_sequence(context, [5, 6, 7])
    context.trim(NO_SEQ, NO_SEQ)
    with pytest.raises(PlanError, match=message):
        decode_sequence(context, [5] * n, output=np.arange(n) < 4)
    assert (decode_sequence(context, [5, 6, 7]) == before).all()


def test_offsets_that_lead_past_the_ids(model: NativeModel, open_context: OpenContext) -> None:
    """seq_id ends where its page ends, and reading the next page is an access violation."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page), page, 0) == 0
    seq_id = np.frombuffer(memory, np.int32, N_TOKENS, page - 4 * N_TOKENS)
    assert_refused(open_context(model), seq_id=seq_id, seq_offset=np.array([0, 1, 1 << 20, 3, 4], np.int32))


@pytest.mark.parametrize("start", [1, 5, np.iinfo(np.int32).max])
def test_positions_with_a_gap_before_them(start: int, context: NativeContext) -> None:
    """Left to llama.cpp, which refuses them: position 3 must be followed by 4."""
    before = decode_good(context)
    decode_sequence(context, [5, 6, 7, 8])
    with pytest.raises(DecodeError):
        decode_sequence(context, [9], start=start)
    assert (decode_good(context) == before).all()


def test_more_cells_than_there_are(context: NativeContext) -> None:
    before = decode_good(context)
    for seq in range(4):
        decode_sequence(context, [1] * 64, seq=seq)
    with pytest.raises(DecodeError, match="no free cells"):
        decode_sequence(context, [1], seq=4)
    context.trim(np.arange(8, dtype=np.int32), np.zeros(8, np.int32))
    assert (decode_good(context) == before).all()


@pytest.mark.parametrize(("seq", "start"), [(-1, 0), (8, 0), (np.iinfo(np.int32).max, 0), (0, -1)])
def test_trimming_out_of_range_trims_nothing(seq: int, start: int, context: NativeContext) -> None:
    decode_sequence(context, [5, 6, 7])
    with pytest.raises(PlanError, match="seq_trim"):
        context.trim(np.array([0, seq], np.int32), np.array([0, start], np.int32))
    with pytest.raises(DecodeError):  # position 0 would be free if sequence 0 had been trimmed
        decode_sequence(context, [5])
    decode_sequence(context, [8], start=3)


@pytest.mark.parametrize("queued", [False, True])
def test_a_decode_trims_what_it_is_told_to(queued: bool, context: NativeContext) -> None:
    before = decode_good(context)
    for start in (0, 0, 3):  # all, of which the second decode needs position 0 to be free, and the last of four
        plan = good_plan(context)
        trim_start = np.array([start], np.int32)
        elapsed = context.decode(**plan, trim_seq=NO_SEQ, trim_start=trim_start, queued=queued)
        assert min(elapsed) >= 0
        assert elapsed[1] == 0 or not queued
        assert (plan["rows"] == before[[1, 3]]).all()
    np.testing.assert_allclose(decode_sequence(context, [8], start=3)[0], before[3], rtol=0, atol=1e-4)
    context.trim(NO_SEQ, NO_SEQ)
    nothing = {**good_plan(context), "output": np.zeros(N_TOKENS, np.bool_), "rows": good_plan(context)["rows"][:0]}
    context.decode(**nothing, trim_seq=NO_SEQ, trim_start=NO_SEQ, queued=queued)
    assert (decode_good(context) == before).all()


def test_a_decode_is_refused_for_what_cannot_be_trimmed(context: NativeContext) -> None:
    for seq, start in [(-1, 0), (8, 0), (0, -1)]:
        assert_refused(context, trim_seq=np.array([0, seq], np.int32), trim_start=np.array([0, start], np.int32))
    assert_refused(context, trim_seq=np.zeros(2, np.int32), trim_start=NO_SEQ)
    assert_refused(context, trim_seq=np.zeros(1, np.int64), trim_start=NO_SEQ)


def test_a_decode_that_fails_trims_too(context: NativeContext) -> None:
    before = decode_good(context)
    plan = good_plan(context)
    plan["pos"] = plan["pos"] + np.array([0, 0, 5, 5], np.int32)  # llama.cpp refuses the gap
    decode_sequence(context, [5, 6], seq=1)
    with pytest.raises(DecodeError):
        context.decode(**plan, trim_seq=np.array([0, 1], np.int32), trim_start=np.zeros(2, np.int32))
    decode_sequence(context, [5, 6], seq=1)
    assert (decode_sequence(context, [5, 6, 7, 8]) == before).all()


def leave_rows(context: NativeContext) -> tuple[Float32Array, Callable[[int], int]]:
    """Queue a decode of two rows, and return room for four and what asks for n of them, giving the status."""
    context.trim(NO_SEQ, NO_SEQ)
    plan = good_plan(context)
    given = Plan(n_tokens=N_TOKENS, n_seq_ids=N_TOKENS, n_rows=2)
    for name in ("token", "pos", "seq_offset", "seq_id", "output"):
        setattr(given, name, plan[name].ctypes.data)
    assert library().qcls_decode(context.handle, given, None) == Status.OK
    room = np.zeros((4, context.row_size), np.float32)
    return room, lambda n: int(library().qcls_decode_rows(context.handle, room.ctypes.data, n, None))


@pytest.mark.parametrize("n_rows", [-1, 0, 1, 3, (1 << 32) + 2])
def test_rows_that_were_not_left_are_refused(n_rows: int, context: NativeContext) -> None:
    before = decode_good(context)[[1, 3]]
    room, ask = leave_rows(context)
    assert ask(n_rows) == Status.BAD_ARGUMENT
    assert not room.any()
    assert (ask(2), ask(2)) == (Status.OK, Status.BAD_ARGUMENT)
    assert (room == [*before, *np.zeros_like(before)]).all()


def calls_of(context: NativeContext, state: bytes = b"state") -> dict[str, Callable[[], object]]:
    """Whatever is asked of a context."""
    fresh = np.array([4], np.int32)
    return {
        "clear": context.clear,
        "trim": lambda: context.trim(NO_SEQ, NO_SEQ),
        "share": lambda: context.share(0, 1, 0, 4),
        "save_state": context.save_state,
        "load_state": lambda: context.load_state(state),
        "set_label_tokens": lambda: context.set_label_tokens(NO_SEQ[:0]),
        "keep_shapes": lambda: context.keep_shapes(2),
        "decode": lambda: context.decode(
            fresh, fresh, np.arange(2, dtype=np.int32), NO_SEQ, np.zeros(1, np.bool_), np.zeros((0, 256), np.float32)
        ),
    }


@cases("clear", "trim", "share", "save_state", "load_state", "set_label_tokens", "keep_shapes", "decode")
def test_whatever_else_is_asked_waits_for_work_in_flight(call: str, context: NativeContext) -> None:
    """As after an interrupt at the very return of qcls_decode, which leaves rows that nobody will ask for."""
    before = decode_good(context)[[1, 3]]
    calls = calls_of(context, context.save_state())
    room, ask = leave_rows(context)
    calls[call]()
    assert ask(2) == Status.BAD_ARGUMENT
    assert not room.any()
    context.clear()
    assert (decode_good(context)[[1, 3]] == before).all()


def test_a_closed_context_says_so(context: NativeContext) -> None:
    context.close()
    for call in (*calls_of(context).values(), context.counters):
        with pytest.raises(DecodeError, match="closed"):
            call()


def test_a_model_without_weights_has_contexts_to_describe_alone(open_context: OpenContext) -> None:
    context = open_context("qwen3", without_weights=True)
    assert context.counters().cache_bytes > 0
    for call in calls_of(context).values():
        with pytest.raises(PlanError, match="opened without weights"):
            call()


@cases((-1, 0, 0), (0, -1, 0), (0, 8, 0), (8, 0, 0), (0, 1, -1), (0, 1 << 32, 0), (0, -(1 << 32), 0))
def test_sharing_out_of_range(src: int, dst: int, start: int, context: NativeContext) -> None:
    with pytest.raises(PlanError, match=r"seq_share|32 bits"):
        context.share(src, dst, start, 4)
