"""Reads an object file's machine code: is every use of AMX tiles between a load of their configuration and a release?

Works on objdump's text. Jump tables are not followed: compile with -fno-jump-tables.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

COLUMN_BYTES = (64, 64, 32, 32, 64, 64, 64, 64)
ROWS = (8, 8, 16, 16, 16, 16, 16, 16)
CONFIGURATION = struct.pack("<BB14x8H16x8B8x", 1, 0, *COLUMN_BYTES, *ROWS)
"""The 64 bytes of palette 1: two tiles of weights, two of activations, four of sums (ggml-cpu/amx/mmq.cpp)."""

LOAD, RELEASE = "ldtilecfg", "tilerelease"
NO_RETURN = re.compile(
    r"ggml_abort|abort|__stack_chk_fail|_Unwind_Resume|__assert_fail|_ZSt\w+|__cxa_\w+|__clang_call_term"
)

Place = tuple[str, int]
"""A section and an offset in it."""


@dataclass(slots=True)
class Instruction:
    """One instruction; `symbol` and `addend` are of its relocation, where it has one."""

    name: str
    operands: str
    symbol: str | None = None
    addend: int = 0
    next: Place | None = None


@dataclass(slots=True)
class Code:
    """An object file's instructions, the functions' first ones by name, and those that other files can call."""

    path: Path
    instructions: dict[Place, Instruction] = field(default_factory=dict)
    functions: dict[str, Place] = field(default_factory=dict)
    exported: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What is wrong with the use of tiles; nothing where it is right."""
        loads = [place for place, each in self.instructions.items() if each.name == LOAD]
        found = [] if loads else ["the tiles' configuration is never loaded"]
        found += [text for place in loads if (text := self._wrong_data(place))]
        found += [
            f"{self._function(place)}: returns without a release" for place in loads if self._returns_loaded(place)
        ]
        needing = self._needing_tiles()
        found += [f"{name}: uses tiles that it has not configured" for name in self.exported if name in needing]
        for place, each in self.instructions.items():
            if each.name == RELEASE and any(self._uses_tiles(at, needing) for at in self._walk([each.next], {LOAD})):
                found.append(f"{self._function(place)}: uses tiles behind the release")
        return found

    def n_tile_instructions(self) -> int:
        return sum(map(_is_tile_instruction, self.instructions.values()))

    def _wrong_data(self, place: Place) -> str | None:
        each = self.instructions[place]
        if "(%rip)" not in each.operands or each.symbol is None or not each.symbol.startswith(".rodata"):
            return f"{self._function(place)}: {LOAD} {each.operands} does not read constant data"
        command = ["objcopy", "-O", "binary", f"--only-section={each.symbol}", str(self.path), "/dev/stdout"]
        data = subprocess.run(command, capture_output=True, check=True).stdout
        start = each.addend + 4  # relative to the end of the instruction, which the address ends
        loaded = data[start : start + 64]
        return None if loaded == CONFIGURATION else f"{self._function(place)}: {LOAD} reads {loaded.hex(' ')}"

    def _returns_loaded(self, load: Place) -> bool:
        return any(self._returns(at) for at in self._walk([self.instructions[load].next], {RELEASE}))

    def _returns(self, place: Place) -> bool:
        """Whether it leads back to the caller, or on to a function of another file."""
        each = self.instructions[place]
        return each.name == "ret" or (_is_jump(each) and self._target(place) is None)

    def _needing_tiles(self) -> set[str]:
        """The functions that use tiles before they load a configuration; so do those that call one of them first."""
        needing: set[str] = set()
        while True:
            more = {
                name
                for name, start in self.functions.items()
                if name not in needing and any(self._uses_tiles(at, needing) for at in self._walk([start], {LOAD}))
            }
            if not more:
                return needing
            needing |= more

    def _uses_tiles(self, place: Place, needing: set[str]) -> bool:
        each = self.instructions[place]
        return _is_tile_instruction(each) or (each.name == "call" and self._callee(place) in needing)

    def _callee(self, place: Place) -> str | None:
        """The function called; none where a register or memory names it."""
        each = self.instructions[place]
        if each.operands.startswith("*"):
            return None
        target = self._target(place)
        return each.symbol if target is None else self._function(target)

    def _function(self, place: Place) -> str:
        section, offset = place
        starts = [(at, name) for name, (where, at) in self.functions.items() if where == section and at <= offset]
        return max(starts)[1]

    def _target(self, place: Place) -> Place | None:
        """Where a jump or call leads, if that is in this file."""
        each = self.instructions[place]
        if each.symbol is None:
            return place[0], int(each.operands.split()[0], 16)
        if each.symbol in self.functions:
            return self.functions[each.symbol]
        found = each.symbol, each.addend + 4
        return found if found in self.instructions else None

    def _walk(self, starts: Iterable[Place | None], stops: set[str]) -> Iterator[Place]:
        """Every instruction that control can reach from the starts without passing one of `stops`."""
        todo, seen = [start for start in starts if start is not None], set()
        while todo:
            place = todo.pop()
            if place in seen or self.instructions[place].name in stops:
                continue
            seen.add(place)
            yield place
            todo += self._followers(place)

    def _followers(self, place: Place) -> list[Place]:
        each = self.instructions[place]
        if each.name in ("ret", "ud2", "hlt"):
            return []
        following = [] if each.next is None else [each.next]
        if each.name == "call":
            return [] if NO_RETURN.fullmatch(self._callee(place) or "") else following
        if not _is_jump(each):
            return following
        if each.operands.startswith("*"):
            raise ValueError(f"{self._function(place)}: {each.name} {each.operands} leads nobody knows where")
        target = self._target(place)
        return [*([] if target is None else [target]), *([] if each.name == "jmp" else following)]


def _is_tile_instruction(each: Instruction) -> bool:
    return each.name.startswith(("tileload", "tilestore", "tilezero", "tdp"))


def _is_jump(each: Instruction) -> bool:
    return each.name.startswith("j")


def read_code(path: Path) -> Code:
    """The code of an object file."""
    code, section, last = Code(path), "", None
    for line in _said("objdump", "-dr", "--no-show-raw-insn", path):
        if found := re.match(r"Disassembly of section (.*):", line):
            section, last = found[1], None
        elif found := re.match(r"([0-9a-f]+) <(.*)>:$", line):
            code.functions[found[2]] = section, int(found[1], 16)
        elif last and (found := re.match(r"\s+[0-9a-f]+: R_X86_64_\w+\s+(.*?)([+-]0x[0-9a-f]+)?$", line)):
            last.symbol, last.addend = found[1], int(found[2] or "0", 16)
        elif found := re.match(r"\s*([0-9a-f]+):\s+((?:(?:bnd|notrack|lock|rep\w*|data16|cs) )*)(\S+)\s*(.*)", line):
            place = section, int(found[1], 16)
            if last:
                last.next = place
            last = code.instructions[place] = Instruction(name=found[3], operands=found[4].split("#")[0].strip())
    symbols = (line.split() for line in _said("nm", path))
    code.exported = [words[-1] for words in symbols if words[-2] in "TW" and words[-1] in code.functions]
    return code


def _said(program: str, *arguments: object) -> list[str]:
    command = [program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
