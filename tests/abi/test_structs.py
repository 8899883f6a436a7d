"""Structs whose members do not fit, what a context without weights refuses, and what is read of the C header.

Label tokens of an open context: set, changed, removed and refused.
"""

import ctypes
import re
import shutil
import subprocess
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import cases, written
from conftest import SIZES, OpenContext
from oracle import Float32Array, decode_sequence

from qcls_gguf.errors import PlanError
from qcls_gguf.native import NativeContext, NativeModel, abi
from qcls_gguf.native.abi import ABI, HEADER, SIGNATURES, Error, Parse, Status, Struct, TokenKind
from qcls_gguf.native.library import library
from qcls_gguf.statistics import Int32Array


@cases(
    ({"flash_attn": 3}, "flash_attn is 3"),
    ({"kv_type": b"q3_x"}, "kv_type is q3_x"),
    ({"n_label_tokens": -1, "hidden_only": 1}, "negative length: -1"),
    ({"n_label_tokens": 1, "hidden_only": 1}, "label tokens is NULL"),
    ({"n_batch": 7}, "n_batch is 7: it must be between n_seq_max and n_ctx"),
    ({"n_seq_max": 0}, "n_seq_max is 0"),
    ({"n_seq_max": 4097, "n_ctx": 8192, "n_batch": 8192}, "n_seq_max is 4097: it must be between 1 and 4096"),
    ({"n_outputs_max": 7}, "n_outputs_max is 7"),
    ({"n_ctx": 0}, "n_ctx is 0"),
    ({"n_threads": 0}, "n_threads is 0"),
    ({"n_threads": 513}, "n_threads is 513"),
)
def test_members_out_of_range_are_named(members: dict[str, Any], message: str, model: NativeModel) -> None:
    handle, error = c_void_p(), Error()
    params = abi.ContextParams(**{**SIZES, **members})
    status = library().qcls_context_open(model.handle, byref(params), byref(handle), error)
    assert (status, handle.value) == (Status.BAD_ARGUMENT, None)
    assert message in error.message.decode()


@pytest.mark.parametrize("value", [1 << 31, 1 << 32, -(1 << 32) + 5, np.int64(1 << 32)])
def test_integers_that_a_member_would_cut(value: int) -> None:
    with pytest.raises(PlanError, match=f"n_ctx is {value}"):
        abi.ContextParams(n_ctx=value)


def plan_of_one(context: NativeContext) -> tuple[abi.Struct, list[np.ndarray[Any, Any]]]:
    """One token of sequence 0, whose row is wanted, and its arrays."""
    arrays = [np.array(values, np.int32) for values in ([5], [0], [0, 1], [0])]
    arrays += [np.ones(1, np.uint8), np.zeros((1, context.row_size), np.float32)]
    names = "token", "pos", "seq_offset", "seq_id", "output", "rows"
    pointers = {name: array.ctypes.data for name, array in zip(names, arrays, strict=True)}
    return abi.Plan(n_tokens=1, n_seq_ids=1, n_rows=1, **pointers), arrays


@cases(
    *((member, value) for member in ("n_tokens", "n_rows") for value in ((1 << 32) + 1, -1)),
    *(("n_seq_ids", 0), ("n_seq_ids", -1), ("n_trim", 1)),
    *((member, None) for member in ("token", "pos", "seq_offset", "seq_id", "output")),
)
def test_plans_that_do_not_fit(member: str, value: int | None, context: NativeContext) -> None:
    plan, arrays = plan_of_one(context)
    setattr(plan, member, value)
    error = Error()
    status = library().qcls_decode(context.handle, byref(plan), error)
    assert status == Status.BAD_ARGUMENT
    assert error.message
    assert not arrays[-1].any()
    decode_sequence(context, [5])  # position 0 is still free


def test_lengths_that_no_int32_holds(context: NativeContext) -> None:
    """Cut to 32 bits they would be 1: nothing is read of the arrays, which have one element."""
    one, long = np.zeros(1, np.int32), (1 << 32) + 1
    tokens = library().qcls_context_set_label_tokens(context.handle, long, one.ctypes.data, None)
    assert tokens == Status.BAD_ARGUMENT
    rows = np.zeros((1, context.row_size), np.float32)
    assert library().qcls_decode_rows(context.handle, rows.ctypes.data, long, None) == Status.BAD_ARGUMENT
    assert library().qcls_seq_trim(context.handle, -1, one.ctypes.data, one.ctypes.data, None) == Status.BAD_ARGUMENT
    assert library().qcls_state_load(context.handle, b"", -1, None) == Status.BAD_ARGUMENT


STRUCTS = {"qcls_" + re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in Struct.__subclasses__()}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_what_is_read_of_the_header_is_the_compilers(tmp_path: Path) -> None:
    text = HEADER.read_text(encoding="utf-8")
    assert len(STRUCTS) == text.count("typedef struct qcls_") - 2
    assert len(SIGNATURES) == text.count("QCLS_API int32_t") - 1
    values = {"QCLS_ABI": ABI}
    for name, struct in STRUCTS.items():
        values[f"sizeof({name})"] = ctypes.sizeof(struct)
        for member in (field[0] for field in struct._fields_):
            values[f"offsetof({name}, {member})"] = getattr(struct, member).offset
            values[f"sizeof((({name} *) 0)->{member})"] = getattr(struct, member).size
    for prefix, kinds in {"QCLS_": Status, "QCLS_PARSE_": Parse, "QCLS_TOKEN_": TokenKind}.items():
        values |= {f"{prefix}{kind.name}": kind.value for kind in kinds}
    head = f'#include "{HEADER}"\n#include <stddef.h>\n#include <stdio.h>\n'
    body = "\n".join(f'printf("%d\\n", (int) {expression});' for expression in values)
    source = written(tmp_path / "layout.c", f"{head}int main(void) {{\n{body}\nreturn 0;\n}}\n")
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = ["cc", *flags, str(source), "-o", str(tmp_path / "layout")]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout
    assert dict(zip(values, map(int, printed.split()), strict=True)) == values


TOKENS = [5, 6, 7, 8]
NONE = np.empty(0, np.int32)


def label_tokens(*ids: int) -> Int32Array:
    return np.array(ids, np.int32)


def decode_again(context: NativeContext) -> Float32Array:
    """The rows of all of TOKENS, in an empty sequence 0."""
    zero = np.zeros(1, np.int32)
    context.trim(zero, zero)
    return decode_sequence(context, TOKENS)


@pytest.mark.parametrize("types", [{}, {"head_type": "Q6_K", "weight_type": "Q8_0"}], ids=["f32", "q8_0"])
@pytest.mark.parametrize("n_shapes", [0, 4])
def test_rows_are_those_of_a_context_opened_with_them(
    n_shapes: int, types: dict[str, str], open_context: OpenContext
) -> None:
    """Set, lengthened, reordered, shortened and removed, at one shape of decode, whose graph must not be kept."""
    context = open_context(types)
    context.keep_shapes(n_shapes)
    plain = decode_again(context)
    n_embd = context.row_size
    for wanted in ((3,), (3, 9, 4), (4, 3, 9), (9, 9), (11,)):
        tokens = label_tokens(*wanted)
        context.set_label_tokens(tokens)
        assert context.row_size == n_embd + len(wanted) + 1
        with open_context(types, label_tokens=tokens) as opened:
            expected = decode_again(opened)
        for _ in range(2):  # the second of them reuses the graph
            assert (decode_again(context) == expected).all()
        np.testing.assert_array_equal(expected[:, :n_embd], plain)
    context.set_label_tokens(NONE)
    assert context.row_size == n_embd
    for _ in range(2):
        assert (decode_again(context) == plain).all()


def test_a_room_for_rows_of_the_former_size_is_refused(context: NativeContext) -> None:
    rows = np.zeros((1, context.row_size), np.float32)
    one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
    context.set_label_tokens(label_tokens(3))
    with pytest.raises(PlanError, match="rows must"):
        context.decode(one, zero, np.arange(2, dtype=np.int32), zero, np.ones(1, np.bool_), rows)


@cases(
    (label_tokens(3, -1), "label token -1"),
    (label_tokens(1 << 20), "label token 1048576"),
    (label_tokens(3, np.iinfo(np.int32).max), "label token 2147483647"),
    (np.zeros(1 << 16, np.int32), "number of label tokens is 65536"),
    (np.array([3], np.int64), "int32"),
    (label_tokens(3, 4, 5, 6)[::2], "contiguous"),
    (label_tokens(3)[None], "1 dimensions"),
)
def test_refused_tokens_leave_the_context_as_it_was(refused: Any, message: str, context: NativeContext) -> None:
    for before in (NONE, label_tokens(3, 9)):
        context.set_label_tokens(before)
        row_size, expected = context.row_size, decode_again(context)
        with pytest.raises(PlanError, match=message):
            context.set_label_tokens(refused)
        assert context.row_size == row_size
        assert (decode_again(context) == expected).all()


def test_logits_need_no_label_tokens(model: NativeModel, open_context: OpenContext) -> None:
    context = open_context(model, hidden_only=False)
    with pytest.raises(PlanError, match="hidden-only"):
        context.set_label_tokens(label_tokens(3))
    context.set_label_tokens(NONE)
    assert decode_again(context).shape == (len(TOKENS), model.facts.n_vocab)
    with pytest.raises(PlanError, match="hidden-only"):
        open_context(model, hidden_only=False, label_tokens=label_tokens(3))
