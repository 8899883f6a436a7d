"""Products on a processor with AMX: right whatever tiles other code has left on the same threads.

No call preserves tiles, so every product configures them, and releases them at its end (patches/0007-amx-tiles.patch).
"""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from build_commands import ROOT, compile_command
from conftest import MakeModel, RunPython

from qcls_gguf.native.device import instruction_sets

PATCH = ROOT / "patches" / "0007-amx-tiles.patch"
SOURCE = "ggml/src/ggml-cpu/amx/mmq.cpp"
needs_amx = pytest.mark.skipif("AMX_INT8" not in instruction_sets(), reason="this processor, or this build, has no AMX")


def machine_code(source: Path, folder: Path) -> str:
    """objdump's text of mmq.cpp, or of a changed copy of it, as the build's compiler makes it for AMX."""
    command = compile_command(SOURCE)
    if command is None:
        pytest.skip("no folder in build/ says how llama.cpp was compiled")
    if platform.machine() != "x86_64" or not shutil.which("objdump"):
        pytest.skip("AMX is of x86-64, and its code is read with GNU binutils")
    options = [option for option in command[:-2] if not option.startswith("-mno-amx")]
    options += [
        "-march=sapphirerapids",
        f"-I{Path(command[-1]).parent}",
        "-c",
        str(source),
        "-o",
        str(folder / "mmq.o"),
    ]
    done = subprocess.run(options, capture_output=True, text=True, check=False)
    if "sapphirerapids" in done.stderr:
        pytest.skip("this compiler is older than AMX")
    assert done.returncode == 0, done.stderr
    objdump = ["objdump", "-dr", "--no-show-raw-insn", str(folder / "mmq.o")]
    text = subprocess.run(objdump, capture_output=True, text=True, check=True).stdout
    if "tdpbssd" not in text and "tdpbusd" not in text:
        pytest.skip("with this compiler llama.cpp has no code for AMX (clang 14 names the macro otherwise)")
    return text


def problems(text: str) -> list[str]:
    """What is wrong with the configuration of tiles in machine code."""
    loads = re.findall(r"ldtilecfg (.*)\n(?:\s+[0-9a-f]+: R_X86_64_\w+\s+(\S+))?", text)
    found = [f"the configuration is not constant data: {place}" for place, of in loads if not of.startswith(".rodata")]
    found += [] if loads else ["the configuration is never loaded"]
    return found if "tilerelease" in text else [*found, "tiles are never released"]


def test_products_configure_tiles_from_constant_data_and_release_them(tmp_path: Path) -> None:
    command = compile_command(SOURCE)
    source = Path(command[-1] if command else SOURCE)
    assert problems(machine_code(source, tmp_path)) == []
    copy = tmp_path / SOURCE
    copy.parent.mkdir(parents=True)
    shutil.copy(source, copy)
    undo = ["git", "apply", "-R"] if shutil.which("git") else ["patch", "-R", "-p1", "--batch", "-i"]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run([*undo, str(PATCH)], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert len(problems(machine_code(copy, tmp_path))) >= 2, "without the patch both faults are there"


DECODE = """
import ctypes, os, sys
from pathlib import Path
import numpy as np
from qcls_gguf.native import NativeContext, NativeModel
from qcls_gguf.native.library import set_log

os.environ["QCLS_CPU_PRODUCTS"] = "0"  # llama.cpp's are wanted
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

wanted = {n: decode(n) for n in LENGTHS}
assert wanted == {n: decode(n) for n in LENGTHS}
"""


@needs_amx
@pytest.mark.parametrize("weight_type", ["Q8_0", "Q4_K", "Q6_K"])
def test_tiles_left_by_others_change_no_answer(
    weight_type: str, make_model: MakeModel, run_python: RunPython, disturber: Path
) -> None:
    """On the caller's thread; without OpenMP no other keeps what it computes with."""
    code = """
library = ctypes.CDLL(sys.argv[3])
for released in (False, True, False):
    for n, rows in wanted.items():
        assert library.disturb_tiles(int(released)) == 0
        assert decode(n) == rows, f"{n} tokens: other hidden states after tiles, released: {released}"
print("fine")
"""
    done = run_python(DECODE + code, make_model(weight_type=weight_type, n_embd=512, n_ff=512), 1, disturber)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.fixture(scope="module")
def disturber(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/disturb_tiles.c as a library, made by the build's compiler."""
    command = compile_command("ggml/src/ggml-cpu/ggml-cpu.c")
    compiler = command[0] if command else (shutil.which("cc") or pytest.skip("no C compiler is here"))
    library = tmp_path_factory.mktemp("disturb") / "libdisturb.so"
    options = ["-O2", "-shared", "-fPIC", str(ROOT / "tests" / "disturb_tiles.c"), "-o", str(library)]
    subprocess.run([compiler, *options], check=True, capture_output=True)
    return library
