"""Arguments on which llama.cpp would abort, tried in another process: refused, and then all is well."""

from __future__ import annotations

import pytest
from conftest import MakeModel, RunPython

START = """
import sys
from pathlib import Path
import numpy as np
from qcls_gguf.errors import DecodeError, ModelError, PlanError
from qcls_gguf.native import NativeContext, NativeModel

SIZES = dict(n_ctx=256, n_batch=64, n_seq_max=8, n_outputs_max=64, n_threads=1)

def expect(error, action):
    try:
        action()
    except error as e:
        assert str(e), "no message"
    else:
        raise SystemExit(f"no {error.__name__}")

def decode(context, token, pos, seq_offset, seq_id, output):
    rows = np.zeros((sum(output), context.row_size), np.float32)
    ints = [np.array(values, np.int32) for values in (token, pos, seq_offset)]
    context.decode(*ints, np.asarray(seq_id, np.int32), np.array(output, np.bool_), rows)
    assert np.isfinite(rows).all()

def works(context):
    seqs = np.arange(context.n_seq_max, dtype=np.int32)
    context.trim(seqs, np.zeros_like(seqs))
    decode(context, [1, 2], [0, 1], [0, 1, 2], [0, 0], [0, 1])

model = NativeModel(Path(sys.argv[1]))
"""
END = """
context.close()
model.close()
print("fine")
"""


@pytest.mark.parametrize(
    "change",
    [
        "n_seq_max=257",
        "n_seq_max=0",
        "n_seq_max=-1",
        "n_batch=7",
        "n_batch=0",
        "n_batch=257",
        "n_batch=2**31 - 1",
        "n_outputs_max=7",
        "n_outputs_max=65",
        "n_outputs_max=-1",
        "n_ctx=0",
        "n_ctx=-5",
        "n_ctx=2**32 + 256",
        "n_threads=0",
        "n_threads=513",
        "n_threads=-1",
        "kv_type='q3_x'",
        "kv_type=''",
        "kv_type='F16'",
    ],
)
def test_limits_out_of_range(change: str, limits_run: str) -> None:
    assert f"{change}: refused" in limits_run.splitlines()


@pytest.fixture(scope="module")
def limits_run(make_model: MakeModel, run_python: RunPython, request: pytest.FixtureRequest) -> str:
    """One process tries all: an abort in one is seen as the loss of all that follow."""
    marks = test_limits_out_of_range.pytestmark  # type: ignore[attr-defined]
    code = (
        START
        + f"""
for change in {marks[0].args[1]!r}:
    try:
        NativeContext(model, **{{**SIZES, **eval(f"dict({{change}})")}}).close()
    except PlanError as e:
        print(f"{{change}}: refused", flush=True)
    else:
        print(f"{{change}}: accepted", flush=True)
context = NativeContext(model, **SIZES)
works(context)
"""
    )
    return run_python(code + END, make_model()).stdout


@pytest.mark.parametrize(
    ("what", "action"),
    [
        ("no tokens", "decode(context, [], [], [0], [], [])"),
        ("too many tokens", "decode(context, [1] * 65, range(65), range(66), [0] * 65, [0] * 65)"),
        ("a token below 0", "decode(context, [-1], [0], [0, 1], [0], [1])"),
        ("a token past the vocabulary", "decode(context, [10**6], [0], [0, 1], [0], [1])"),
        ("a position below 0", "decode(context, [1], [-1], [0, 1], [0], [1])"),
        ("a sequence too high", "decode(context, [1], [0], [0, 1], [8], [1])"),
        ("a sequence past llama.cpp's own limit", "decode(context, [1], [0], [0, 1], [256], [1])"),
        ("no sequence", "decode(context, [1], [0], [0, 0], [], [1])"),
        ("a share past the last sequence", "context.share(0, 256, 0, 1)"),
        ("a trim past the last sequence", "context.trim(np.array([256], np.int32), np.zeros(1, np.int32))"),
    ],
)
def test_plans_out_of_range(what: str, action: str, make_model: MakeModel, run_python: RunPython) -> None:
    code = f"context = NativeContext(model, **SIZES)\nexpect(PlanError, lambda: {action})\nworks(context)"
    done = run_python(START + code + END, make_model())
    assert (done.returncode, done.stdout) == (0, "fine\n"), f"{what}: {done.stderr}"


@pytest.mark.parametrize(
    ("what", "action"),
    [
        ("a gap in the positions", "decode(context, [1, 2], [0, 2], [0, 1, 2], [0, 0], [0, 1])"),
        ("positions that fall", "decode(context, [1, 2], [1, 0], [0, 1, 2], [0, 0], [0, 1])"),
        ("a shared token behind unequal sequences", "uneven()"),
    ],
)
def test_plans_that_llama_cpp_refuses(what: str, action: str, make_model: MakeModel, run_python: RunPython) -> None:
    code = f"""
def uneven():
    decode(context, [1, 2], [0, 1], [0, 1, 2], [0, 0], [0, 0])
    decode(context, [3], [2], [0, 2], [0, 1], [1])

context = NativeContext(model, **SIZES)
expect(DecodeError, lambda: {action})
works(context)
"""
    done = run_python(START + code + END, make_model())
    assert (done.returncode, done.stdout) == (0, "fine\n"), f"{what}: {done.stderr}"


def test_offsets_that_lead_past_the_ids(make_model: MakeModel, run_python: RunPython) -> None:
    """seq_id ends where its page ends, and reading the next page is an access violation."""
    code = """
import ctypes, mmap
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page), page, 0) == 0
seq_id = np.frombuffer(memory, np.int32, 2, page - 8)
context = NativeContext(model, **SIZES)
expect(PlanError, lambda: decode(context, [1, 2], [0, 1], [0, 1 << 20, 2], seq_id, [0, 1]))
works(context)
"""
    done = run_python(START + code + END, make_model())
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
