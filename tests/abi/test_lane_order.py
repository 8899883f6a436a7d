"""Lane order: a permutation of a matrix's bytes in which lanes of the CUDA kernels find what the file's blocks hold."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SHARED = TESTS.parent / "qcls_gguf" / "native" / "shared"


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_lanes_find_what_blocks_hold(tmp_path: Path) -> None:
    """Every byte once, there and back; and each lane's loads, by the index functions that the kernels have, too."""
    program = tmp_path / "lane_order"
    flags = ["-std=c++17", "-O1", "-D_GLIBCXX_ASSERTIONS", f"-I{SHARED}"]
    subprocess.run(["g++", *flags, str(TESTS / "lane_order.cpp"), "-o", str(program)], check=True)
    run = subprocess.run([str(program)], check=False, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert run.stdout.splitlines() == [
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
