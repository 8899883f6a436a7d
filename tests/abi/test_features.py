"""The instruction sets that the build names: none that this processor lacks, since the build runs here."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qcls_gguf.native.device import cpu_variant, instruction_sets

LINUX_NAMES = {
    "SSE3": "pni", "SSSE3": "ssse3", "AVX": "avx", "AVX_VNNI": "avx_vnni", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma",
    "BMI2": "bmi2", "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8",
}  # fmt: skip
"""ggml's names to those of /proc/cpuinfo."""
CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(platform.machine() != "x86_64" or not CPUINFO.exists(), reason="reads Linux's list for x86-64")
def test_instruction_sets_are_those_of_this_processor() -> None:
    found = re.search(r"^flags\s*: (.*)$", CPUINFO.read_text(), re.MULTILINE)
    assert found
    has = set(found[1].split())
    assert {LINUX_NAMES[name] for name in instruction_sets()} <= has
    if "avx2" in has:
        assert "AVX2" in instruction_sets()


def test_the_command_names_them_with_the_version() -> None:
    command = [str(Path(sys.executable).parent / "qcls-gguf"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    variant = cpu_variant()
    whose = f"variant {variant} of a portable build" if variant else "a build for one kind of processor"
    assert f"CPU code for {' '.join(instruction_sets())} ({whose})\n" in said
