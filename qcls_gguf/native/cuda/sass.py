"""Machine code as cuobjdump lists it: functions, their main loops, registers, and what a loop asks of 7.5's pipes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P[T\d]+\s+)?(\S+)([^;]*);")
_RESOURCES = re.compile(r"^\s*Function (\S+):\s*$")
_REGISTERS = re.compile(r"REG:(\d+)")
_MATRICES = re.compile(r"\.MT?88(?:\.(\d))?$")

N_SCHEDULERS = 4
SHARED_BYTES_PER_CYCLE = 64
"""of shared memory and L1 together, a multiprocessor of 7.5; counted as what lands in registers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The main loop of one kernel. Cycles and instructions are a warp's."""

    code_bytes: int
    """of the loop as it stands"""
    registers: int
    spilled_bytes: float
    """that a lane moves to and from local memory"""
    instructions: float
    mix: dict[str, float]
    cycles: dict[str, float]
    """of each pipe: of a scheduler, but `shared`, of the multiprocessor"""

    @property
    def bound(self) -> tuple[str, float]:
        """The busiest pipe where all four schedulers are at work, and its cycles a warp of each."""
        loads = {name: n if name != "shared" else n * N_SCHEDULERS for name, n in self.cycles.items()}
        name = max(loads, key=lambda each: loads[each])
        return name, loads[name]


def functions(lines: Sequence[str]) -> Iterator[tuple[str, list[tuple[int, str, str]]]]:
    """Each function of a SASS listing: its name and (address, instruction, operands)."""
    name = ""
    body: list[tuple[int, str, str]] = []
    for line in lines:
        if found := _FUNCTION.match(line):
            if name:
                yield name, body
            name, body = found[1], []
        elif found := _INSTRUCTION.match(line):
            body.append((int(found[1], 16), found[2], found[3]))
    if name:
        yield name, body


def main_loop(body: Sequence[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """The shortest backward jump's range that holds the most tensor products; empty where there is none."""
    best: list[tuple[int, str, str]] = []
    most = 0
    index = {address: i for i, (address, _, _) in enumerate(body)}
    for i, (_, instruction, operands) in enumerate(body):
        target = re.search(r"0x([0-9a-f]+)\s*$", operands.rstrip())
        if instruction.split(".")[0] != "BRA" or target is None or index.get(int(target[1], 16), i) >= i:
            continue
        inside = list(body[index[int(target[1], 16)] : i + 1])
        products = sum(name.startswith(("IMMA", "HMMA")) for _, name, _ in inside)
        if products > most or (0 < products == most and len(inside) < len(best)):
            best, most = inside, products
    return best


def _width(instruction: str) -> int:
    """Bytes that an access moves for one lane."""
    if matrices := _MATRICES.search(instruction):
        return 4 * int(matrices[1] or 1)
    for part in instruction.split(".")[1:]:
        if part in ("64", "128"):
            return int(part) // 8
        if part in ("U8", "S8"):
            return 1
        if part in ("U16", "S16"):
            return 2
    return 4


def pipe_cycles(loop: Sequence[str]) -> dict[str, float]:
    """Cycles that each pipe of a scheduler of 7.5 is busy with a warp's instructions; `shared` is of a multiprocessor.

    16 lanes of FMA, of integer and of half arithmetic are two cycles an instruction; 256 int8 and 128 half
    multiply-adds a cycle of the tensor cores four and eight; 4 lanes of conversions eight.
    """
    cycles = dict.fromkeys(("issue", "tensor", "fma", "alu", "half", "convert", "shared"), 0.0)
    for instruction in loop:
        kind = instruction.split(".")[0]
        cycles["issue"] += 1
        if kind == "IMMA":
            cycles["tensor"] += 4
        elif kind == "HMMA":
            cycles["tensor"] += 8
        elif kind in ("FFMA", "FMUL", "FADD", "IMAD"):
            cycles["fma"] += 2
        elif kind in ("HADD2", "HMUL2", "HFMA2"):
            cycles["half"] += 2
        elif kind in ("I2F", "F2I", "F2F", "MUFU", "S2R", "POPC"):
            cycles["convert"] += 8
        elif kind in ("LDS", "STS", "LDG", "LDL", "STL", "LD", "ST", "STG", "LDGSTS", "LDSM"):
            cycles["shared"] += max(1.0, 32 * _width(instruction) / SHARED_BYTES_PER_CYCLE)
        elif kind not in ("BRA", "BSSY", "BSYNC", "NOP", "WARPSYNC", "BAR") and not kind.startswith("U"):
            cycles["alu"] += 2
    return cycles


def of_loop(inside: Sequence[tuple[int, str, str]], registers: int, scale: float = 1) -> dict[str, Any]:
    """The fields of a Loop, by `scale` those that are counts."""
    names = [instruction for _, instruction, _ in inside]
    return {
        "code_bytes": inside[-1][0] - inside[0][0] + 16,
        "registers": registers,
        "spilled_bytes": scale * sum(_width(each) for each in names if each.split(".")[0] in ("LDL", "STL")),
        "instructions": scale * len(names),
        "mix": {kind: scale * n for kind, n in Counter(each.split(".")[0] for each in names).most_common()},
        "cycles": {pipe: scale * n for pipe, n in pipe_cycles(names).items()},
    }


def resources(listing: str) -> dict[str, int]:
    """Registers of each function, from a listing of `cuobjdump -res-usage`."""
    found: dict[str, int] = {}
    name = ""
    for line in listing.splitlines():
        if function := _RESOURCES.match(line):
            name = function[1]
        elif name and (registers := _REGISTERS.search(line)):
            found[name] = int(registers[1])
            name = ""
    return found


def read(path: Path, arch: str) -> tuple[str, dict[str, int]]:
    """A file's SASS and the registers of its functions; ValueError where cuobjdump is missing or cannot read it."""
    tool = shutil.which("cuobjdump")
    if tool is None:
        raise ValueError("cuobjdump is not on the PATH: it is part of the CUDA toolkit")
    listings = []
    for option in ("-sass", "-res-usage"):
        command = [tool, option, str(path)] if path.suffix == ".cubin" else [tool, "-arch", arch, option, str(path)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise ValueError(f"{path}: cuobjdump {option}: {(result.stderr or result.stdout).strip()}")
        listings.append(result.stdout)
    return listings[0], resources(listings[1])
