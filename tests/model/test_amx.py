"""Products on a processor with AMX: right whatever tiles other code has left on the same threads.

No call preserves tiles, so every product configures them, and releases them at its end (patches/0010-amx-tiles.patch).
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tile_code
from build_commands import ROOT, compile_command
from conftest import MakeModel, RunPython

from qcls_gguf.native.device import cpu_features, instruction_sets

PATCH = ROOT / "patches" / "0010-amx-tiles.patch"
SOURCE = "ggml/src/ggml-cpu/amx/mmq.cpp"
needs_amx = pytest.mark.skipif("AMX_INT8" not in instruction_sets(), reason="this processor, or this build, has no AMX")


def compiled(source: Path, folder: Path) -> tile_code.Code:
    """The code of mmq.cpp, or of a changed copy of it, as the build's compiler makes it for a processor with AMX."""
    command = compile_command(SOURCE)
    if command is None:
        pytest.skip("no folder in build/ says how llama.cpp was compiled")
    if platform.machine() != "x86_64" or not all(map(shutil.which, ("objdump", "objcopy", "nm"))):
        pytest.skip("AMX is of x86-64, and its code is read with GNU binutils")
    original = command[-1]
    options = [option for option in command[:-2] if not option.startswith("-mno-amx")]
    # jump tables would have to be followed through data
    options += ["-march=sapphirerapids", "-fno-jump-tables", f"-I{Path(original).parent}"]
    target = folder / "mmq.o"
    done = subprocess.run([*options, "-c", str(source), "-o", str(target)], capture_output=True, text=True, check=False)
    if "sapphirerapids" in done.stderr:
        pytest.skip("this compiler is older than AMX")
    assert done.returncode == 0, done.stderr
    code = tile_code.read_code(target)
    if not code.n_tile_instructions():
        pytest.skip("with this compiler llama.cpp has no code for AMX (clang 14 names the macro otherwise)")
    return code


def source_path() -> Path:
    command = compile_command(SOURCE)
    return Path(command[-1] if command else SOURCE)


def test_every_product_configures_all_of_the_tiles_and_releases_them(tmp_path: Path) -> None:
    assert compiled(source_path(), tmp_path).problems() == []


def test_without_the_patch_the_code_is_found_wrong(tmp_path: Path) -> None:
    copy = tmp_path / SOURCE
    copy.parent.mkdir(parents=True)
    if not source_path().is_file():
        pytest.skip("no patched source tree is here")
    shutil.copy(source_path(), copy)
    undo = ["git", "apply", "-R"] if shutil.which("git") else ["patch", "-R", "-p1", "--batch", "-i"]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run([*undo, str(PATCH)], cwd=tmp_path, env=environment, check=True, capture_output=True)
    found = " ".join(compiled(copy, tmp_path).problems())
    for words in ("does not read constant data", "returns without a release", "uses tiles that it has not configured"):
        assert words in found


DECODE = """
import ctypes, os, sys
from pathlib import Path
import numpy as np
from qcls_gguf.native import NativeContext, NativeModel, set_log

LENGTHS = 1, 2, 16, 17, 32, 40  # tokens: none, one, and two tiles of activations, filled and not
log = []
set_log(lambda level, text: log.append(text))
path, n_threads = Path(sys.argv[1]), int(sys.argv[2])
model = NativeModel(path)
assert any("AMX model buffer" in line for line in log), "the weights are not laid out for AMX"
context = NativeContext(model, n_ctx=256, n_batch=64, n_seq_max=1, n_outputs_max=64, n_threads=n_threads)

def decode(n):
    rows = np.empty((n, context.row_size), np.float32)
    seq_offset = np.arange(n + 1, dtype=np.int32)
    token, pos, seq_id = seq_offset[1:].copy(), seq_offset[:-1].copy(), np.zeros(n, np.int32)
    context.decode(token, pos, seq_offset, seq_id, np.ones(n, np.bool_), rows, seq_id[:1], seq_id[:1])
    return rows.tobytes()

def check(what):
    for n, rows in wanted.items():
        what.disturb()
        assert decode(n) == rows, f"{n} tokens: other hidden states {what}"

wanted = {n: decode(n) for n in LENGTHS}
assert wanted == {n: decode(n) for n in LENGTHS}
"""


@needs_amx
@pytest.mark.parametrize("n_threads", [1, 4])
@pytest.mark.parametrize("weight_type", ["Q8_0", "Q4_K", "Q6_K"])
def test_tiles_left_by_others_change_no_answer(
    weight_type: str, n_threads: int, make_model: MakeModel, run_python: RunPython, disturber: Path
) -> None:
    """On the caller's thread, and on those that OpenMP keeps for it and that compute the products as well."""
    if n_threads > 1 and "OPENMP" not in cpu_features():
        pytest.skip("without OpenMP every decode starts threads of its own: nobody has left tiles there")
    code = """
class Left:
    def __init__(self, released):
        self.released = released
    def __str__(self):
        return "behind released tiles" if self.released else "behind tiles of another shape"
    def disturb(self):
        before = len(os.listdir("/proc/self/task"))
        assert library.disturb_tiles(int(self.released), n_threads) == n_threads
        assert len(os.listdir("/proc/self/task")) == before, "these were not the threads that compute"

library = ctypes.CDLL(sys.argv[3])
for released in (False, True, False):
    check(Left(released))
print("fine")
"""
    done = run_python(DECODE + code, make_model(weight_type=weight_type, n_embd=512, n_ff=512), n_threads, disturber)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@needs_amx
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("weight_type", ["Q8_0", "Q4_K", "Q6_K"])
def test_products_of_pytorch_in_between_change_no_answer(
    weight_type: str, make_model: MakeModel, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do ours change its own."""
    code = """
import torch

torch.manual_seed(0)
torch.set_num_threads(n_threads)
floats = torch.randn(128, 512).bfloat16(), torch.randn(512, 256).bfloat16()
bytes_ = [torch.randint(-128, 127, shape, dtype=torch.int8) for shape in ((128, 512), (512, 256))]

class Product:
    def __init__(self, name, multiply, a, b):
        self.name, self.multiply = name, lambda: multiply(a, b)
        self.wanted = self.multiply()
    def __str__(self):
        return f"behind PyTorch's product of {self.name}"
    def disturb(self):
        assert torch.equal(self.multiply(), self.wanted), f"another product of {self.name}"

for product in (Product("bf16", torch.matmul, *floats), Product("int8", torch._int_mm, *bytes_)):
    check(product)
print("fine")
"""
    monkeypatch.setenv("ONEDNN_VERBOSE", "1")  # oneDNN, which computes them, then names the code that it takes
    done = run_python(DECODE + code, make_model(weight_type=weight_type, n_embd=512, n_ff=512), 1, timeout=180.0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("fine\n")
    if not re.search(",exec,.*amx", done.stdout):
        pytest.skip("this PyTorch's products do not use AMX")


@pytest.fixture(scope="module")
def disturber(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/disturb_tiles.c as a library, with the OpenMP of the build's compiler."""
    command = compile_command("ggml/src/ggml-cpu/ggml-cpu.c")
    compiler = command[0] if command else (shutil.which("cc") or pytest.skip("no C compiler is here"))
    library = tmp_path_factory.mktemp("disturb") / "libdisturb.so"
    openmp = ["-fopenmp"] if "OPENMP" in cpu_features() else []
    options = ["-O2", "-shared", "-fPIC", *openmp, str(ROOT / "tests" / "disturb_tiles.c"), "-o", str(library)]
    subprocess.run([compiler, *options], check=True, capture_output=True)
    return library
