"""Handles: closing in any order and number, use after closing, what is left when nobody closes, leaks."""

import os
import sys
from collections.abc import Callable
from ctypes import c_int32, c_int64
from pathlib import Path

import numpy as np
import pytest
from conftest import SIZES, MakeModel, OpenContext, RunPython
from oracle import decode_sequence
from random_models import WITH_ANOTHER_TAIL

from qcls_gguf.errors import DecodeError, ModelError
from qcls_gguf.native import NativeContext, NativeModel
from qcls_gguf.native.abi import SIGNATURES, Error, Status
from qcls_gguf.native.context import measure_context
from qcls_gguf.native.library import library

N_CYCLES = 20
LARGEST_GROWTH_BYTES = 2 << 20


def test_closing_is_idempotent(make_model: MakeModel, open_context: OpenContext) -> None:
    model = NativeModel(make_model())
    context = open_context(model)
    for handle in (context, context, model, model, context):
        handle.close()


def test_a_closed_model_says_so(make_model: MakeModel, open_context: OpenContext) -> None:
    model = NativeModel(make_model())
    n_vocab = model.facts.n_vocab
    model.close()
    for call in (
        lambda: model.tokenize("red", parse_special=False),
        lambda: model.piece(1),
        lambda: open_context(model),
    ):
        with pytest.raises(ModelError, match="closed"):
            call()
    assert model.facts.n_vocab == n_vocab


def test_a_closed_context_says_so(context: NativeContext) -> None:
    context.close()
    nothing = np.zeros(1, np.int32)
    calls: list[Callable[[], object]] = [
        lambda: decode_sequence(context, [1, 2]),
        lambda: context.trim(nothing, nothing),
        lambda: context.share(0, 1, 0, 1),
        lambda: context.set_label_tokens(nothing),
        lambda: context.keep_shapes(1),
        lambda: context.load_state(b"state"),
        context.save_state,
        context.counters,
        context.clear,
    ]
    for call in calls:
        with pytest.raises(DecodeError, match="closed"):
            call()


def test_closing_nothing_is_allowed() -> None:
    assert library().qcls_context_close(None, None) == Status.OK
    assert library().qcls_model_close(None, None) == Status.OK


@pytest.mark.parametrize("name", sorted(SIGNATURES.keys() - {"qcls_context_close", "qcls_model_close", "qcls_set_log"}))
def test_functions_refuse_nothing(name: str) -> None:
    """Every pointer NULL, every number 0: a handle that is gone, a struct or a result that is not there."""
    error = Error()
    arguments = [
        argument(0) if argument in (c_int32, c_int64) or hasattr(argument, "restype") else None
        for argument in SIGNATURES[name][:-1]
    ]
    assert getattr(library(), name)(*arguments, error) in (Status.BAD_ARGUMENT, Status.UNSUPPORTED)
    assert error.message
    assert getattr(library(), name)(*arguments, None) in (Status.BAD_ARGUMENT, Status.UNSUPPORTED)


@pytest.mark.parametrize("order", ["del model, context", "del context, model", "model.self = model, context"])
def test_handles_that_nobody_closes(order: str, make_model: MakeModel, run_python: RunPython) -> None:
    code = f"""
import gc, sys
from pathlib import Path
from qcls_gguf.native import NativeContext, NativeModel
model = NativeModel(Path(sys.argv[1]))
context = NativeContext(model, n_ctx=256, n_batch=64, n_seq_max=8, n_outputs_max=64, n_threads=1)
{order}
gc.collect()
print("fine")
"""
    done = run_python(code, make_model())
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_a_model_closed_before_its_context_is_an_error_at_most(make_model: MakeModel, run_python: RunPython) -> None:
    code = """
import sys
from pathlib import Path
import numpy as np
from qcls_gguf.errors import QclsError
from qcls_gguf.native import NativeContext, NativeModel
model = NativeModel(Path(sys.argv[1]))
context = NativeContext(model, n_ctx=256, n_batch=64, n_seq_max=8, n_outputs_max=64, n_threads=1)
one = np.array([1], np.int32)
zero = np.zeros(1, np.int32)
try:
    model.close()
    context.decode(one, zero, np.array([0, 1], np.int32), zero, np.ones(1, np.bool_),
                   np.empty((1, context.row_size), np.float32))
except QclsError:
    print("refused")
context.close()
model.close()
print("fine")
"""
    done = run_python(code, make_model())
    assert (done.returncode, done.stdout) == (0, "refused\nfine\n"), done.stderr


def cycle(path: Path) -> float:
    """Open, use and close a model with a context of each kind, which is measured first."""
    with NativeModel(path, without_weights=True) as model:
        measure_context(model, **SIZES)
    with NativeModel(path) as model:
        total = 0.0
        for hidden_only in (False, True):
            with NativeContext(model, **SIZES, hidden_only=hidden_only) as context:
                total = float(decode_sequence(context, [1, 2, 3]).sum())
        return total


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_cycles_leak_neither_files_nor_memory(make_model: MakeModel, tmp_path: Path) -> None:
    """A model here has 4 MB and a context 1 MB. Measured over 20 cycles: no growth."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(make_model().read_bytes()[:-100_000])
    before_files = before_bytes = 0
    for n in range(N_CYCLES + 5):
        if n == 5:  # the first ones warm up allocators and thread pools
            before_files, before_bytes = len(os.listdir("/proc/self/fd")), resident_bytes()
        cycle(make_model())
        with pytest.raises(ModelError):
            NativeModel(broken)
        with NativeModel(make_model(**WITH_ANOTHER_TAIL)) as refused, pytest.raises(ModelError):
            NativeContext(refused, n_ctx=256, n_batch=64, n_seq_max=8, n_outputs_max=64, n_threads=1)
    assert len(os.listdir("/proc/self/fd")) == before_files
    assert resident_bytes() - before_bytes < LARGEST_GROWTH_BYTES
