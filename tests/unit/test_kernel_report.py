"""The report on compiled kernels: what it reads in a listing, and that no kernel outgrows a T4's instruction cache."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "qcls_gguf/native/cuda/kernel_report.py"
NAME = "_ZN10mmq_direct7mul_matINS_5shapeIL9ggml_type12ELi8ELNS_10generationE0ELb0EEELb1EEEvNS_4argsE"
LARGEST_LOOP = 32 * 1024


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_report", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def listing(*instructions: str) -> str:
    """What cuobjdump prints for one function; a jump names the address it goes to."""
    lines = [f"\t\tFunction : {NAME}", '\t.headerflags\t@"EF_CUDA_SM75"']
    for i, text in enumerate(instructions):
        lines += [f"        /*{16 * i:04x}*/  {text} ;  /* 0x{i:016x} */", f"  /* 0x{i:016x} */"]
    return "\n".join(lines)


PRODUCTS = ["IMMA.8816.S8.S8 R4, R8.ROW, R9.COL, R2"] * 64
"""of 32 rows, 8 columns and 256 values of K"""
LOOP = [
    "LDS.U.64 R8, [R10.X8]",
    *PRODUCTS,
    "@!P0 FFMA.FTZ R4, R5, R6, R7",
    "HMMA.1688.F32 R4, R8, R9, R4",
    "LOP3.LUT R3, R3, 0xf, RZ, 0xc0, !PT",
    "STL.64 [R1], R2",
    "@P1 BRA 0x20",
]


def test_the_loop_is_the_shortest_with_all_products(report: ModuleType) -> None:
    sass = listing("MOV R1, c[0x0][0x28]", "MOV R2, R3", *LOOP, "FADD R1, R1, R1", "@P2 BRA 0x10", "EXIT")
    (loop,) = report.loops(sass, {NAME: 99})
    assert (loop.weights, loop.columns, loop.rows, loop.glu, loop.short_loop) == ("q4_k", 8, 32, True, False)
    assert loop.code_bytes == 16 * len(LOOP)
    assert (loop.registers, loop.instructions, loop.spilled_bytes) == (99, len(LOOP), 8)
    assert loop.mix["IMMA"] == 64
    expected = {"issue": 70, "tensor": 264, "fma": 2, "alu": 2, "half": 0, "convert": 0, "shared": 8}
    assert loop.cycles == expected
    assert loop.bound == ("tensor", 264)


def test_a_kernel_without_a_loop_is_left_out(report: ModuleType) -> None:
    assert report.loops(listing("NOP", "BRA 0x10"), {}) == []


def test_registers_come_from_the_list_of_resources(report: ModuleType) -> None:
    text = f"Resource usage:\n Function {NAME}:\n  REG:168 STACK:0 SHARED:0 LOCAL:0\n Function other:\n  REG:7\n"
    assert report.resources(text) == {NAME: 168, "other": 7}


def test_what_is_too_large_is_named(report: ModuleType) -> None:
    found = report.loops(listing("NOP", "NOP", *LOOP), {})
    assert report.too_large(found, 16 * len(LOOP)) == []
    assert report.too_large(found, 16 * len(LOOP) - 1) == [
        "q4_k, 8 columns, glu: the loop has 1120 bytes of code, the limit is 1119"
    ]


def test_a_forecast_wants_the_kernels_of_its_file(report: ModuleType) -> None:
    found = report.loops(listing("NOP", "NOP", *LOOP), {})
    with pytest.raises(ValueError, match="none of the objects has kernels of q8_0"):
        report.forecast_ms("q8_0", found, 8)


def test_no_cuobjdump_is_said(report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="cuobjdump is not on the PATH"):
        report.read(tmp_path / "any.o", "sm_75")


@pytest.mark.skipif(shutil.which("cuobjdump") is None, reason="needs cuobjdump, of the CUDA toolkit")
def test_no_loop_outgrows_the_instruction_cache(report: ModuleType) -> None:
    objects = sorted(ROOT.glob("build/**/mmq_direct_q*.cu.o"))
    found = [loop for path in objects for loop in report.read(path, "sm_75")]
    if not found:
        pytest.skip("needs a build with machine code for 7.5")
    assert report.too_large(found, LARGEST_LOOP) == []
