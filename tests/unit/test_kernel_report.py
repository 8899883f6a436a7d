"""The report on compiled kernels: what it reads in a listing, and that no kernel outgrows a T4's instruction cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qcls_gguf.native.cuda import kernel_loops, sass, t4_forecast

ROOT = Path(__file__).parents[2]
NAME = "_ZN10mmq_direct7mul_matINS_5shapeIL9ggml_type12ELi8ELNS_10generationE0ELb0EEELb1EEEvNS_4argsE"
PLAIN_NAME = NAME.replace("EEELb1E", "EEELb0E")
ATTENTION_NAME = "_ZN11qcls_attend6attendILi128EEEv21ggml_cuda_attend_callii"
LARGEST_LOOP = 32 * 1024


def listing(*instructions: str, name: str = NAME) -> str:
    """What cuobjdump prints for one function; a jump names the address it goes to."""
    lines = [f"\t\tFunction : {name}", '\t.headerflags\t@"EF_CUDA_SM75"']
    for i, text in enumerate(instructions):
        lines += [f"        /*{16 * i:04x}*/  {text} ;  /* 0x{i:016x} */", f"  /* 0x{i:016x} */"]
    return "\n".join(lines)


def attention_loop(*instructions: str, n_registers: int = 0) -> kernel_loops.AttentionLoop:
    (loop,) = kernel_loops.loops(listing(*instructions, name=ATTENTION_NAME), {ATTENTION_NAME: n_registers})
    assert isinstance(loop, kernel_loops.AttentionLoop)
    return loop


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


def test_the_loop_is_the_shortest_with_all_products() -> None:
    text = listing("MOV R1, c[0x0][0x28]", "MOV R2, R3", *LOOP, "FADD R1, R1, R1", "@P2 BRA 0x10", "EXIT")
    (loop,) = kernel_loops.loops(text, {NAME: 99})
    assert isinstance(loop, kernel_loops.ProductLoop)
    assert (loop.weights, loop.columns, loop.rows, loop.glu, loop.short_loop) == ("q4_k", 8, 32, True, False)
    assert loop.code_bytes == 16 * len(LOOP)
    assert (loop.registers, loop.instructions, loop.spilled_bytes) == (99, len(LOOP), 8)
    assert loop.mix["IMMA"] == 64
    expected = {"issue": 70, "tensor": 264, "fma": 2, "alu": 2, "half": 0, "convert": 0, "shared": 8}
    assert loop.cycles == expected
    assert loop.bound == ("tensor", 264)


def test_kernels_for_lane_order_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    name = NAME.replace("ELb0EEELb1E", "ELb0ELb1EEELb0E")
    text = listing("NOP", "NOP", *LOOP, name=PLAIN_NAME) + "\n" + listing("NOP", "NOP", *LOOP, *LOOP[:-1], name=name)
    loops = [each for each in kernel_loops.loops(text, {}) if isinstance(each, kernel_loops.ProductLoop)]
    assert [(each.lanes, each.glu, each.is_default) for each in loops] == [(False, False, True), (True, False, True)]
    # with both, a forecast counts those for lane order
    monkeypatch.setitem(t4_forecast.N_WEIGHTS, "q4_k_m", {"q4_k": 1e9})
    monkeypatch.setitem(t4_forecast.BYTES_PER_WEIGHT, "q4_k", 0.0)
    slow = replace(loops[1], cycles={name: 2 * n for name, n in loops[1].cycles.items()})
    both, lanes = (t4_forecast.products_ms("q4_k_m", each, 8) for each in ([slow, loops[0]], [slow]))
    assert both == lanes != t4_forecast.products_ms("q4_k_m", [loops[0]], 8)


@pytest.mark.parametrize(("columns", "is_default"), [(112, False), (120, False), (128, True)])
def test_two_warps_that_halve_the_columns_are_told_apart(columns: int, is_default: bool) -> None:
    """Theirs is a T4's kernel from 128 columns on; 120 columns are 15 groups of 8, of which each warp has 8."""
    n_groups = -(-columns // 16)
    name = NAME.replace("ggml_type12ELi8E", f"ggml_type8ELi{columns}E").replace("ELb0EEELb1E", "ELb1ELb1ELb1EEELb0E")
    loop = [
        "NOP",
        "NOP",
        *n_groups * LOOP[1:33],
        "@P1 BRA 0x20",
    ]  # products of 32 rows, 8 columns and 128 values of K each
    (found,) = kernel_loops.loops(listing(*loop, name=name), {})
    assert isinstance(found, kernel_loops.ProductLoop)
    assert (found.halves, found.rows, found.is_default) == (True, 16, is_default)
    assert found.name == f"q8_0, {columns} columns, lanes, halves"


def test_kernels_for_coarse_scales_run_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_ZN10mmq_direct7mul_matINS_12coarse_shapeIL9ggml_type12ELi8ELb0ELb0EEELb0EEEvNS_4argsE"
    short = [*PRODUCTS[:32], "@P1 BRA 0x20"]
    text = listing("NOP", "NOP", *LOOP, name=PLAIN_NAME) + "\n" + listing("NOP", "NOP", *short, name=name)
    plain, coarse = (each for each in kernel_loops.loops(text, {}) if isinstance(each, kernel_loops.ProductLoop))
    assert (plain.coarse, plain.is_default, plain.is_chosen) == (False, True, False)
    assert (coarse.coarse, coarse.is_default, coarse.is_chosen) == (True, False, True)
    assert (coarse.name, coarse.rows, coarse.short_loop) == ("q4_k, 8 columns, coarse", 32, True)
    assert kernel_loops.too_large([coarse], 16 * len(short) - 1) != []
    assert not replace(coarse, halves=True).is_chosen  # of few columns: for devices of many multiprocessors
    monkeypatch.setitem(t4_forecast.N_WEIGHTS, "q4_k_m", {"q4_k": 1e9})
    monkeypatch.setitem(t4_forecast.BYTES_PER_WEIGHT, "q4_k", 0.0)
    slow = replace(coarse, cycles={name: 2 * n for name, n in plain.cycles.items()})
    by_default, chosen = (t4_forecast.products_ms("q4_k_m", [slow, plain], 8, each) for each in (False, True))
    assert by_default == t4_forecast.products_ms("q4_k_m", [plain], 8) != chosen


def test_a_kernel_without_a_loop_is_left_out() -> None:
    assert kernel_loops.loops(listing("NOP", "BRA 0x10"), {}) == []


def test_the_loop_of_attention_has_the_products_of_halves() -> None:
    chunk = ["LDSM.16.M88.4 R4, [R8]", "LDSM.16.MT88.2 R4, [R8]", "HMMA.1688.F32 R4, R8, R9, R4", "MUFU.EX2 R3, R2"]
    loop = attention_loop("NOP", "FMUL R1, R1, R2", "BRA 0x10", *chunk, "@!P0 BRA 0x30", n_registers=254)
    assert (loop.head_size, loop.registers, loop.code_bytes, loop.instructions) == (128, 254, 16 * 5, 5)
    assert loop.cycles == {"issue": 5, "tensor": 8, "fma": 0, "alu": 0, "half": 0, "convert": 8, "shared": 8 + 4}
    assert loop.bound == ("shared", 4 * 12)


def test_registers_come_from_the_list_of_resources() -> None:
    text = f"Resource usage:\n Function {NAME}:\n  REG:168 STACK:0 SHARED:0 LOCAL:0\n Function other:\n  REG:7\n"
    assert sass.resources(text) == {NAME: 168, "other": 7}


def test_what_is_too_large_is_named() -> None:
    found = kernel_loops.loops(listing("NOP", "NOP", *LOOP), {})
    assert kernel_loops.too_large(found, 16 * len(LOOP)) == []
    assert kernel_loops.too_large(found, 16 * len(LOOP) - 1) == [
        "q4_k, 8 columns, glu: the loop has 1120 bytes of code, the limit is 1119"
    ]


def test_a_forecast_wants_the_kernels_of_its_file() -> None:
    products = kernel_loops.loops(listing("NOP", "NOP", *LOOP, name=PLAIN_NAME), {})
    attention = attention_loop("NOP", "NOP", *LOOP)
    with pytest.raises(ValueError, match="none of the objects has kernels of q8_0"):
        t4_forecast.forecast_ms("q8_0", [*products, attention], 8)
    with pytest.raises(ValueError, match="kernel of attention for heads of 128"):
        t4_forecast.attention_ms([], 8)


def test_what_a_decode_takes_by_the_model() -> None:
    loop = attention_loop("NOP", "NOP", *8 * LOOP[:-1], LOOP[-1])
    loads = 6 * 300 / 1.5e3  # µs, of a block; 2 prompts are 16 blocks, on 40 multiprocessors at once
    products = 2 * loop.bound[1] / 0.9 / 1.5e3
    assert t4_forecast.attention_ms([loop], 26)["isolated"][0] == pytest.approx(36e-3 * (2 + loads + products))
    # of 9 prompts more memory is read than two turns of blocks take
    n_bytes = 9 * 58 * 2 * 8 * 128 * 2 + 0.5 * 2 * 107 * 32 * 128 * 4
    assert t4_forecast.attention_ms([loop], 107)["isolated"][0] == pytest.approx(36e-3 * (2 + n_bytes / 235e3))
    low, high = t4_forecast.rest_ms(26)
    n_bytes = 26 * 36 * (2 * 4096 * (12 + 1.1875) + 4 * (2 * 4096 + 2048) + 2 * 2048 + (4096 + 12288) * (4 + 1.1875))
    assert low == pytest.approx(36 * 10 * 2e-3 + 0.5 * n_bytes / 235e6)
    assert high == pytest.approx(36 * 10 * 4e-3 + n_bytes / 235e6)


def test_the_script_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qcls_gguf.native.cuda.kernel_report", str(tmp_path / "any.o")]
    result = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert result.returncode == 1
    assert result.stderr == "kernel_report: cuobjdump is not on the PATH: it is part of the CUDA toolkit\n"


@pytest.mark.skipif(shutil.which("cuobjdump") is None, reason="needs cuobjdump, of the CUDA toolkit")
def test_no_loop_outgrows_the_instruction_cache() -> None:
    names = ("mmq_direct_q*.cu.o", "attend.cu.o")
    objects = sorted(path for name in names for path in ROOT.glob(f"build/**/{name}"))
    found = [loop for path in objects for loop in kernel_loops.read(path, "sm_75")]
    if not found:
        pytest.skip("needs a build with machine code for 7.5")
    assert kernel_loops.too_large(found, LARGEST_LOOP) == []
