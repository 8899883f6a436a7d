"""This project's kernels for a CPU, compiled here for chosen instruction sets, or those of the built library."""

import ctypes
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from qcls_gguf.native.library import library_folder

NATIVE = Path(__file__).parents[1] / "qcls_gguf" / "native"
INCLUDES = [f"-I{NATIVE / 'shared'}", f"-I{NATIVE.parents[1] / 'vendor/llama.cpp/ggml/src'}"]
_CPUINFO = {"avxvnni": "avx_vnni", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "amx-bf16": "amx_bf16"}
"""Names of the compiler's, and other names of the same in /proc/cpuinfo."""


def why_not(flags: str) -> str | None:
    """Why code compiled with these flags cannot be tried here; None where it can."""
    if not shutil.which("g++"):
        return "needs g++"
    names = {_CPUINFO.get(name, name) for name in (flag.removeprefix("-m") for flag in flags.split())}
    lacking = names - set(Path("/proc/cpuinfo").read_text().split())
    return f"this CPU has no {', '.join(lacking)}" if lacking else None


def compiled_kernel(name: str, folder: Path, flags: str) -> ctypes.CDLL:
    """native/cpu/*NAME.cpp and tests/NAME.cpp as a library. QCLS_TEST_CXXFLAGS adds flags, such as sanitizers'."""
    path = folder / f"{name}.so"
    sources = [Path(__file__).parent / f"{name}.cpp", *(NATIVE / "cpu").glob(f"*{name}.cpp")]
    options = shlex.split(f"-std=c++17 -O2 -shared -fPIC {flags} {os.environ.get('QCLS_TEST_CXXFLAGS', '')}")
    subprocess.run(["g++", *options, *INCLUDES, *map(str, sources), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


def built_library() -> ctypes.CDLL:
    """The package's own CPU backend."""
    return ctypes.CDLL(str(next(library_folder().glob("libggml-cpu*.so"))))


def has_tiles(library: ctypes.CDLL) -> bool:
    """Whether its products can use AMX here."""
    library.qcls_has_tiles.restype = ctypes.c_bool
    return bool(library.qcls_has_tiles())
