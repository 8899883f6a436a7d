"""Programs in C++ that test code of the kernels without a GPU. QCLS_TEST_CXXFLAGS adds flags, such as sanitizers'.

A build for another kind of processor says so: what it needs, and what the processor has (`make cpus`: refusals).
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from qcls_gguf import ModelError
from qcls_gguf.native.library import check_processor, library_folder, processor_text

TESTS = Path(__file__).parents[1]
NATIVE = TESTS.parent / "qcls_gguf" / "native"
GGML = TESTS.parent / "vendor" / "llama.cpp" / "ggml" / "include"
pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


def output_of(program: Path, *sources: Path) -> list[str]:
    """The lines that a program of these sources prints; it ends well, without errors."""
    flags = f"-std=c++17 -O1 -D_GLIBCXX_ASSERTIONS {os.environ.get('QCLS_TEST_CXXFLAGS', '')}"
    folders = [f"-I{folder}" for folder in (NATIVE / "llama", NATIVE / "shared", GGML)]
    subprocess.run(["g++", *shlex.split(flags), *folders, *map(str, sources), "-o", str(program)], check=True)
    run = subprocess.run([str(program)], check=False, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    return run.stdout.splitlines()


def test_lanes_find_what_blocks_hold(tmp_path: Path) -> None:
    """Lane order is a permutation of a matrix's bytes: every byte once, there and back; and each lane's loads, by the
    index functions that the CUDA kernels have, too.
    """
    assert output_of(tmp_path / "lane_order", TESTS / "lane_order.cpp") == [
        "by default on 7.5 alone",
        "q8_0: 32 rows of 272 bytes",
        "q8_0: 96 rows of 816 bytes",
        "q6_k: 32 rows of 210 bytes",
        "q6_k: 96 rows of 630 bytes",
        "q8_0, 2 groups a warp: 18432 fragments",
        "q8_0, 4 groups a warp: 18432 fragments",
        "q6_k, 2 groups a warp: 147456 values",
        "q6_k, 4 groups a warp: 147456 values",
    ]


def test_each_token_sees_its_cells_once(tmp_path: Path) -> None:
    """The lists of visible cells that a GPU reads, of random trees of sequences, with cells all over the cache."""
    sources = TESTS / "visible_lists.cpp", NATIVE / "llama" / "visible_lists.cpp"
    assert output_of(tmp_path / "visible_lists", *sources) == []


def test_recurrent_layers_walk_random_trees(tmp_path: Path) -> None:
    """Each token's result is that of its path alone; no tree needs more slots for states than there are."""
    sources = TESTS / "tree_walk.cpp", NATIVE / "llama" / "tree_order.cpp", NATIVE / "cpu" / "tree_walk.cpp"
    assert output_of(tmp_path / "tree_walk", *sources) == []


LIBRARY = library_folder() / "libqcls-processor.so"
LINUX_NAMES = {
    "SSE3": "pni", "LZCNT": "abm", "BMI": "bmi1", "AVXVNNI": "avx_vnni", "AVXIFMA": "avx_ifma",
    "AVXVNNIINT8": "avx_vnni_int8", "AVXNECONVERT": "avx_ne_convert", "AVX512VBMI2": "avx512_vbmi2",
    "AVX512VNNI": "avx512_vnni", "AVX512BITALG": "avx512_bitalg", "AVX512VPOPCNTDQ": "avx512_vpopcntdq",
    "AVX512FP16": "avx512_fp16", "AVX512BF16": "avx512_bf16",
}  # fmt: skip
"""Of those whose name in /proc/cpuinfo is another than the compiler's in small letters."""
CPUINFO = Path("/proc/cpuinfo")
on_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or not CPUINFO.exists(), reason="reads Linux's list for x86-64"
)


@on_x86
def test_the_processor_has_what_the_system_says() -> None:
    found = re.search(r"^flags\s*: (.*)$", CPUINFO.read_text(), re.MULTILINE)
    assert found
    flags = set(found[1].split())
    has = processor_text(LIBRARY, "qcls_processor_has")
    source = (Path(__file__).parents[2] / "qcls_gguf/native/host/processor.h").read_text()
    names = re.findall(r"^    X\((\w+),", source, re.MULTILINE)
    assert len(names) > 30
    assert has.split() == [name for name in names if LINUX_NAMES.get(name, name.lower()) in flags]


def test_the_build_lacks_nothing_where_it_runs() -> None:
    assert processor_text(LIBRARY, "qcls_processor_lacks") == ""


def test_a_library_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "libqcls-processor.so").write_text("none")
    with pytest.raises(ModelError, match=r"libqcls-processor\.so cannot be loaded: .*: install the package again"):
        check_processor(tmp_path / "libqcls-processor.so")
