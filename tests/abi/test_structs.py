"""Structs whose members do not fit, what a context without weights refuses, and the C header that ctypes mirrors."""

import ctypes
import re
import shutil
import subprocess
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SIZES, MakeModel
from oracle import decode_sequence

from qcls_gguf.errors import PlanError
from qcls_gguf.native import NativeContext, NativeModel, abi
from qcls_gguf.native.abi import ABI, SIGNATURES, Error, Parse, Status, Struct, TokenKind
from qcls_gguf.native.library import library


def open_with(model: NativeModel, params: abi.Struct) -> tuple[int, str]:
    """The status and message of opening a context, which is closed again."""
    handle, error = c_void_p(), Error()
    status = library().qcls_context_open(model.handle, byref(params), byref(handle), error)
    assert (status == Status.OK) == (handle.value is not None)
    assert library().qcls_context_close(handle, None) == Status.OK
    return status, error.message.decode()


@pytest.mark.parametrize(
    ("members", "message"),
    [
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
    ],
)
def test_members_out_of_range_are_named(members: dict[str, Any], message: str, model: NativeModel) -> None:
    status, found = open_with(model, abi.ContextParams(**{**SIZES, **members}))
    assert status == Status.BAD_ARGUMENT
    assert message in found


@pytest.mark.parametrize("value", [1 << 31, 1 << 32, -(1 << 32) + 5, np.int64(1 << 32)])
def test_integers_that_a_member_would_cut(value: int) -> None:
    with pytest.raises(PlanError, match=f"n_ctx is {value}"):
        abi.ContextParams(n_ctx=value)


def test_a_model_without_weights_has_contexts_to_describe_alone(make_model: MakeModel) -> None:
    with NativeModel(make_model(), without_weights=True) as model:
        context = NativeContext(model, **SIZES)
        zero = np.zeros(1, np.int32)
        assert context.counters().cache_bytes > 0
        for call in (
            context.clear,
            context.save_state,
            lambda: context.trim(zero, zero),
            lambda: context.keep_shapes(1),
            lambda: context.set_label_tokens(zero),
            lambda: decode_sequence(context, [5]),
        ):
            with pytest.raises(PlanError, match="opened without weights"):
                call()


def plan_of_one(context: NativeContext) -> tuple[abi.Struct, list[np.ndarray[Any, Any]]]:
    """One token of sequence 0, whose row is wanted, and its arrays."""
    arrays = [np.array(values, np.int32) for values in ([5], [0], [0, 1], [0])]
    arrays += [np.ones(1, np.uint8), np.zeros((1, context.row_size), np.float32)]
    names = "token", "pos", "seq_offset", "seq_id", "output", "rows"
    pointers = {name: array.ctypes.data for name, array in zip(names, arrays, strict=True)}
    return abi.Plan(n_tokens=1, n_seq_ids=1, n_rows=1, **pointers), arrays


@pytest.mark.parametrize(
    ("member", "value"),
    [
        *((member, value) for member in ("n_tokens", "n_rows") for value in ((1 << 32) + 1, -1)),
        *(("n_seq_ids", 0), ("n_seq_ids", -1), ("n_trim", 1)),
        *((member, None) for member in ("token", "pos", "seq_offset", "seq_id", "output")),
    ],
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


HEADER = Path(__file__).parents[2] / "qcls_gguf" / "native" / "src" / "qcls.h"
TEXT = HEADER.read_text(encoding="utf-8")
DECLARATION = re.compile(r"^QCLS_API [^(]*?\*? ?(qcls_\w+)\(([^;]*)\);", re.MULTILINE)
STRUCTS = {
    "qcls_" + re.sub(r"(?<!^)(?=[A-Z])", "_", struct.__name__).lower(): struct for struct in Struct.__subclasses__()
}


def members(struct: type[Struct]) -> list[str]:
    return [field[0] for field in struct._fields_]


def test_every_function_has_a_signature_with_as_many_arguments() -> None:
    declared = dict(DECLARATION.findall(TEXT))
    assert len(declared) == TEXT.count("QCLS_API ") - 1  # the macro itself
    assert declared.keys() == SIGNATURES.keys() | {"qcls_abi"}
    for name, signature in SIGNATURES.items():
        arguments = declared[name].split(",")
        assert arguments[-1].strip() == "qcls_error * error", name
        assert len(arguments) == len(signature) + 1, name


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_structs_and_statuses_are_the_compilers(tmp_path: Path) -> None:
    lines = ['printf("QCLS_ABI %d\\n", QCLS_ABI);']
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for member in members(struct):
            place = f"offsetof({name}, {member}), sizeof((({name} *) 0)->{member})"
            lines.append(f'printf("{name}.{member} %zu %zu\\n", {place});')
    lines += [f'printf("QCLS_{status.name} %d\\n", QCLS_{status.name});' for status in Status]
    lines += [f'printf("%d\\n", QCLS_PARSE_{parse.name});' for parse in Parse]
    lines += [f'printf("%d\\n", QCLS_TOKEN_{kind.name});' for kind in TokenKind]
    source = tmp_path / "layout.c"
    body = "\n    ".join(lines)
    source.write_text(
        f'#include "{HEADER}"\n#include <stddef.h>\n#include <stdio.h>\n'
        f"int main(void) {{\n    {body}\n    return 0;\n}}\n"
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = ["cc", *flags, str(source), "-o", str(tmp_path / "layout")]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()

    expected = [f"QCLS_ABI {ABI}"]
    for name, struct in STRUCTS.items():
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for member in members(struct):
            field = getattr(struct, member)
            expected.append(f"{name}.{member} {field.offset} {field.size}")
    expected += [f"QCLS_{status.name} {status.value}" for status in Status]
    expected += [str(parse.value) for parse in Parse] + [str(kind.value) for kind in TokenKind]
    assert printed == expected
