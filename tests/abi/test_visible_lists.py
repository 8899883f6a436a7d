"""The lists of visible cells that a GPU reads: they say of each token which cells it may see, and no others."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NATIVE = TESTS.parent / "qcls_gguf" / "native"


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_each_token_sees_its_cells_once(tmp_path: Path) -> None:
    """Random trees of sequences, with cells all over the cache; QCLS_TEST_CXXFLAGS adds flags, such as sanitizers'."""
    program = tmp_path / "visible_lists"
    sources = [TESTS / "visible_lists.cpp", NATIVE / "llama" / "visible_lists.cpp"]
    flags = f"-std=c++17 -O1 -D_GLIBCXX_ASSERTIONS {os.environ.get('QCLS_TEST_CXXFLAGS', '')}"
    folders = [f"-I{NATIVE / name}" for name in ("llama", "shared")]
    subprocess.run(["g++", *shlex.split(flags), *folders, *map(str, sources), "-o", str(program)], check=True)
    run = subprocess.run([str(program)], check=False, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
