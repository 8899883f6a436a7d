"""The main loops of this project's kernels in machine code for 7.5, and what they ask of a multiprocessor's pipes.

Reads object files or cubins of mmq_direct_q4_k.cu and its like and of attend.cu with cuobjdump, of the CUDA toolkit.
The loop of a product is that over K, scaled to 256 values of K; that of attention is over chunks of 32 cells, with all
that a chunk needs only where it raises a row's largest score. docs/kernels.md says what the model assumes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qcls_gguf.report.document import TEXT, Table

K_BLOCK = 256
N_SCHEDULERS = 4
LARGEST_LOOP = 32 * 1024
"""bytes of code that a T4's instruction cache holds, with room to spare"""
_SHARED_BYTES_PER_CYCLE = 64
"""of shared memory and L1 together, a multiprocessor of 7.5; counted as what lands in registers"""
_TYPES = {8: "q8_0", 12: "q4_k", 14: "q6_k"}
_IMMA_VALUES = {"8816": 16 * 8, "16816": 16 * 16, "16832": 32 * 16}
"""values of K times rows of one int8 product"""
PIPES = ("issue", "tensor", "fma", "alu", "half", "convert", "shared")
_COSTS = {
    "tensor": {"IMMA": 4.0, "HMMA": 8.0},
    "fma": dict.fromkeys(("FFMA", "FMUL", "FADD", "IMAD"), 2.0),
    "half": dict.fromkeys(("HADD2", "HMUL2", "HFMA2"), 2.0),
    "convert": dict.fromkeys(("I2F", "F2I", "F2F", "MUFU", "S2R", "POPC"), 8.0),
    "none": dict.fromkeys(("BRA", "BSSY", "BSYNC", "NOP", "WARPSYNC", "BAR"), 0.0),
}
"""Cycles that an instruction of a warp keeps a scheduler's pipe busy. 16 lanes of FMA and of half arithmetic are two
cycles an instruction; 256 int8 and 128 half multiply-adds a cycle of the tensor cores four and eight; 4 lanes of
conversions eight. All others are integer arithmetic, two cycles, but for accesses to memory."""
_MEMORY = ("LDS", "STS", "LDG", "LDL", "STL", "LD", "ST", "STG", "LDGSTS", "LDSM")
_PRODUCT = re.compile(
    r"mul_matINS_5shapeIL9ggml_type(\d+)ELi(\d+)"
    r"(?:ELNS_10generationE(\d)ELb(\d))?(?:ELb(\d))?(?:ELb(\d))?EEELb(\d)E"
)
_ATTENTION = re.compile(r"qcls_attend6attendILi(\d+)E")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P[T\d]+\s+)?(\S+)([^;]*);")
_MATRICES = re.compile(r"\.MT?88(?:\.(\d))?$")
_LAUNCHES = Path(__file__).parents[2] / "qcls_gguf/native/cuda/mmq_direct_launch.h"

Instruction = tuple[int, str, str]
"""address, name with its suffixes, operands"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The main loop of one kernel. Cycles and instructions are a warp's."""

    name: str
    weights: str
    """type of a product's weights, or `attention`"""
    columns: int
    """of a product; of attention the values of a head"""
    rows: int
    """of a warp; half of them where two warps halve the columns"""
    lanes: bool
    """whether weights are in lane order"""
    glu: bool
    is_default: bool
    """whether a T4 runs it where no variable says otherwise"""
    code_bytes: int
    registers: int
    spilled_bytes: float
    """that a lane moves to and from local memory"""
    instructions: float
    cycles: dict[str, float]
    """of each pipe of a scheduler; `shared` is of the multiprocessor"""

    @property
    def bound(self) -> tuple[str, float]:
        """The busiest pipe where all four schedulers are at work, and its cycles a warp of each."""
        loads = {name: n if name != "shared" else n * N_SCHEDULERS for name, n in self.cycles.items()}
        return max(loads.items(), key=lambda load: load[1])


def read_loops(paths: Sequence[Path]) -> list[Loop]:
    """The loops of all kernels with code for 7.5 in some files. ValueError where cuobjdump is missing or fails."""
    tool = shutil.which("cuobjdump")
    if tool is None:
        raise ValueError("cuobjdump is not on the PATH: it is part of the CUDA toolkit")
    found = []
    for path in paths:
        listings = []
        for option in ("-sass", "-res-usage"):
            command = [tool, *(() if path.suffix == ".cubin" else ("-arch", "sm_75")), option, str(path)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise ValueError(f"{path}: cuobjdump {option}: {(done.stderr or done.stdout).strip()}")
            listings.append(done.stdout)
        registers = dict(re.findall(r"Function (\S+):\s*\n.*?REG:(\d+)", listings[1]))
        for name, body in _functions(listings[0]):
            if loop := _loop(name, _main_loop(body), int(registers.get(name, 0))):
                found.append(loop)
    return sorted(found, key=lambda loop: (loop.weights, loop.lanes, loop.glu, loop.columns, loop.code_bytes))


def _functions(listing: str) -> Iterator[tuple[str, list[Instruction]]]:
    for part in re.split(r"^\s*Function : ", listing, flags=re.MULTILINE)[1:]:
        name, *lines = part.splitlines()
        found = filter(None, map(_INSTRUCTION.match, lines))
        yield name.strip(), [(int(each[1], 16), each[2], each[3]) for each in found]


def _main_loop(body: Sequence[Instruction]) -> list[Instruction]:
    """The shortest backward jump's range that holds the most tensor products; empty where there is none."""
    best: list[Instruction] = []
    most = 0
    index = {address: i for i, (address, _, _) in enumerate(body)}
    for i, (_, name, operands) in enumerate(body):
        target = re.search(r"0x([0-9a-f]+)\s*$", operands.rstrip())
        if _kind(name) != "BRA" or target is None or (start := index.get(int(target[1], 16), i)) >= i:
            continue
        inside = list(body[start : i + 1])
        products = sum(each.startswith(("IMMA", "HMMA")) for _, each, _ in inside)
        if products > most or (0 < products == most and len(inside) < len(best)):
            best, most = inside, products
    return best


def _loop(name: str, inside: Sequence[Instruction], registers: int) -> Loop | None:
    """What is known of a kernel by its name and its loop; None for other functions."""
    product, attention = _PRODUCT.search(name), _ATTENTION.search(name)
    if not inside or not (product or attention):
        return None
    names = [each for _, each, _ in inside]
    if attention:
        kind, columns, rows, scale, marks, is_default = "attention", int(attention[1]), 16, 1.0, [], True
        lanes = glu = False
    else:
        assert product is not None
        number, columns, generation, *flags = (int(each or 0) for each in product.groups())
        short_loop, lanes, halves, glu = map(bool, flags)
        kind = _TYPES[number]
        # the rows of a warp follow from the products: those of 128 or of 256 values of K, for 8 columns each
        n_k = K_BLOCK // 2 if short_loop else K_BLOCK
        n_groups = columns / 8 + (columns / 8 % 2 if halves else 0)  # the middle one of an odd number is both's
        values = sum(_IMMA_VALUES[each.split(".")[1]] for each in names if each.startswith("IMMA"))
        rows, scale = round(values / n_groups / n_k), K_BLOCK / n_k
        marks = [mark for mark, is_so in (("lanes", lanes), ("halves", halves), ("glu", glu)) if is_so]
        is_short = generation == 0 and columns >= _constant(
            "LEAST_COLUMNS_OF_SHORT_LOOP" + ("_Q6_K_LANES" if lanes and kind == "q6_k" else "")
        )
        is_default = short_loop == is_short and (not halves or columns >= _constant("LEAST_COLUMNS_OF_HALVES"))
    return Loop(
        name=", ".join([kind, f"{columns} columns" if product else f"heads of {columns}", *marks]),
        weights=kind,
        columns=columns,
        rows=rows,
        lanes=lanes,
        glu=glu,
        is_default=is_default,
        code_bytes=inside[-1][0] - inside[0][0] + 16,
        registers=registers,
        spilled_bytes=scale * sum(_width(each) for each in names if _kind(each) in ("LDL", "STL")),
        instructions=scale * len(names),
        cycles={pipe: scale * n for pipe, n in pipe_cycles(names).items()},
    )


def _constant(name: str) -> int:
    """A number that the launches have."""
    found = re.search(rf" {name} = (\d+);", _LAUNCHES.read_text())
    assert found is not None, name
    return int(found[1])


def _kind(name: str) -> str:
    return name.split(".")[0]


def _width(name: str) -> int:
    """Bytes that an access moves for one lane."""
    if matrices := _MATRICES.search(name):
        return 4 * int(matrices[1] or 1)
    sizes = {"64": 8, "128": 16, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
    return next((sizes[part] for part in name.split(".")[1:] if part in sizes), 4)


def pipe_cycles(names: Sequence[str]) -> dict[str, float]:
    """Cycles that each pipe of a scheduler of 7.5 works on a warp's instructions; `shared` is of a multiprocessor."""
    cycles = dict.fromkeys(PIPES, 0.0)
    for name in names:
        kind = _kind(name)
        cycles["issue"] += 1
        if kind in _MEMORY:
            cycles["shared"] += max(1.0, 32 * _width(name) / _SHARED_BYTES_PER_CYCLE)
            continue
        pipe = next((pipe for pipe, costs in _COSTS.items() if kind in costs), None)
        if pipe is None and not kind.startswith("U"):
            cycles["alu"] += 2
        elif pipe not in (None, "none"):
            cycles[pipe] += _COSTS[pipe][kind]
    return cycles


def too_large(loops: Sequence[Loop], limit: int = LARGEST_LOOP) -> list[str]:
    """A line for each kernel that a T4 runs by default and whose loop has more bytes of code than limit."""
    return [
        f"{loop.name}: the loop has {loop.code_bytes} bytes of code, the limit is {limit}"
        for loop in loops
        if loop.is_default and loop.code_bytes > limit
    ]


def table(loops: Sequence[Loop]) -> Table:
    """What is shown of the loops."""
    counts = ("rows", "bytes", "registers", "spills", "instructions", *PIPES)
    rows = [
        [loop.name, "yes" if loop.is_default else "no", *numbers, *(loop.cycles[pipe] for pipe in PIPES), *loop.bound]
        for loop in loops
        for numbers in [(loop.rows, loop.code_bytes, loop.registers, loop.spilled_bytes, loop.instructions)]
    ]
    columns = {"kernel": TEXT, "a T4's": TEXT, **dict.fromkeys(counts, ".0f"), "busiest": ">s", "cycles": ".0f"}
    return Table(columns=columns, rows=rows)
