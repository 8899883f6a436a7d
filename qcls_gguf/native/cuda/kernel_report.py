"""What the compiler made of the direct matrix kernels, and what that asks of a multiprocessor of a Tesla T4.

    python qcls_gguf/native/cuda/kernel_report.py OBJECT …
    python qcls_gguf/native/cuda/kernel_report.py --limit 32768 OBJECT …
    python qcls_gguf/native/cuda/kernel_report.py --forecast q4_k_m OBJECT …

OBJECT: an object file or a cubin of mmq_direct_q4_k.cu and its like, with code for --arch (7.5 unless said), as in
build/*/vendor/llama.cpp/ggml/src/ggml-cuda/CMakeFiles/…/mmq_direct_q4_k.cu.o. Reads it with cuobjdump, of the CUDA
toolkit. A row is the loop over K of one kernel, scaled to 256 values of K: code bytes, registers, bytes of spills that
the loop moves, instructions, and cycles of each pipe. docs/kernels.md says what the model assumes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

K_BLOCK = 256
GGML_TYPES = {8: "q8_0", 12: "q4_k", 14: "q6_k"}
_KERNEL = re.compile(r"mul_matINS_5shapeIL9ggml_type(\d+)ELi(\d+)ELNS_10generationE(\d)ELb(\d)EEELb(\d)E")
_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P[T\d]+\s+)?(\S+)([^;]*);")
_RESOURCES = re.compile(r"^\s*Function (\S+):\s*$")
_REGISTERS = re.compile(r"REG:(\d+)")

N_SCHEDULERS = 4
SHARED_BYTES_PER_CYCLE = 64
"""of shared memory and L1 together, a multiprocessor of 7.5; counted as what lands in registers"""
IMMA_VALUES = {"8816": 16 * 8, "16816": 16 * 16, "16832": 32 * 16}
"""values of K times rows of one int8 product"""


def short_from() -> int:
    """Columns from which a device of 7.5 takes the kernels with a short loop, as the launches have it."""
    header = (Path(__file__).parent / "mmq_direct_launch.h").read_text()
    found = re.search(r"LEAST_COLUMNS_OF_SHORT_LOOP = (\d+);", header)
    assert found is not None
    return int(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The loop over K of one kernel. Cycles and instructions are a warp's, for 256 values of K."""

    weights: str
    columns: int
    rows: int
    """of a warp"""
    generation: int
    """0: code for 7.5; 1: for 8.0 and newer"""
    short_loop: bool
    glu: bool
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
    def is_default(self) -> bool:
        """Whether a device that this code is for runs it where no variable says otherwise."""
        return self.short_loop == (self.generation == 0 and self.columns >= short_from())

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
    """The shortest backward jump's range that holds the most int8 products; empty where there is none."""
    best: list[tuple[int, str, str]] = []
    most = 0
    index = {address: i for i, (address, _, _) in enumerate(body)}
    for i, (_, instruction, operands) in enumerate(body):
        target = re.search(r"0x([0-9a-f]+)\s*$", operands.rstrip())
        if instruction.split(".")[0] != "BRA" or target is None or index.get(int(target[1], 16), i) >= i:
            continue
        inside = list(body[index[int(target[1], 16)] : i + 1])
        products = sum(name.startswith("IMMA") for _, name, _ in inside)
        if products > most or (0 < products == most and len(inside) < len(best)):
            best, most = inside, products
    return best


def _width(instruction: str) -> int:
    """Bytes that an access moves for one lane."""
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


def loops(sass: str, registers: dict[str, int]) -> list[Loop]:
    """The kernels of a listing of `cuobjdump -sass`, by type, columns and the rest."""
    found = []
    for name, body in functions(sass.splitlines()):
        kernel = _KERNEL.search(name)
        if kernel is None or not (inside := main_loop(body)):
            continue
        number, columns, generation, short_loop, glu = (int(each) for each in kernel.groups())
        names = [instruction for _, instruction, _ in inside]
        # the rows of a warp follow from the products: those of K_STEP or of K_BLOCK values of K, for 8 columns each
        per_column = sum(IMMA_VALUES[each.split(".")[1]] for each in names if each.startswith("IMMA")) / (columns / 8)
        n_k = K_BLOCK // 2 if short_loop else K_BLOCK
        scale = K_BLOCK / n_k
        found.append(
            Loop(
                weights=GGML_TYPES[number],
                columns=columns,
                rows=round(per_column / n_k),
                generation=generation,
                short_loop=bool(short_loop),
                glu=bool(glu),
                code_bytes=inside[-1][0] - inside[0][0] + 16,
                registers=registers.get(name, 0),
                spilled_bytes=scale * sum(_width(each) for each in names if each.split(".")[0] in ("LDL", "STL")),
                instructions=scale * len(names),
                mix={kind: scale * n for kind, n in Counter(each.split(".")[0] for each in names).most_common()},
                cycles={pipe: scale * n for pipe, n in pipe_cycles(names).items()},
            )
        )
    return sorted(found, key=lambda each: (each.weights, each.glu, each.short_loop, each.columns))


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


def read(path: Path, arch: str) -> list[Loop]:
    """The kernels in a file; raises ValueError where cuobjdump is missing or cannot read it."""
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
    return loops(listings[0], resources(listings[1]))


# --- a Tesla T4 -------------------------------------------------------------------------------------------------------

N_MULTIPROCESSORS = 40
CLOCKS_GHZ = {"isolated": (1.3, 1.5), "sustained": (0.75, 0.85)}
"""docs/kernels.md: where these come from"""
BUSY = (0.6, 0.9)
"""share of its cycles that the busiest pipe works"""
GB_PER_S = 235.0
OTHER_MS = {"isolated": (2.0, 4.0), "sustained": (3.0, 6.0)}
"""attention, norms, quantising and the rest of a decode"""
N_WEIGHTS = {"q4_k_m": {"q4_k": 5.964e9, "q6_k": 0.9814e9}, "q8_0": {"q8_0": 6.9456e9}}
"""of Qwen3-8B's layers"""
BYTES_PER_WEIGHT = {"q4_k": 144 / 256, "q6_k": 210 / 256, "q8_0": 34 / 32}


def forecast_ms(file: str, found: Sequence[Loop], n_tokens: int) -> dict[str, tuple[float, float]]:
    """Least and most milliseconds of a decode of so many tokens, by how long the card has been busy."""
    by_shape = {(each.weights, each.columns): each for each in found if not each.glu and each.is_default}
    cycles, n_bytes = 0.0, 0.0
    for weights, n in N_WEIGHTS[file].items():
        widest = max((columns for name, columns in by_shape if name == weights), default=0)
        if not widest:
            raise ValueError(f"none of the objects has kernels of {weights}, of which a {file} file is made")
        n_tiles = -(-n_tokens // widest)
        columns = -(-n_tokens // n_tiles // 8) * 8
        loop = by_shape[weights, columns]
        warps = n / (loop.rows * K_BLOCK) / (N_MULTIPROCESSORS * N_SCHEDULERS)
        cycles += n_tiles * warps * loop.bound[1]
        n_bytes += n_tiles * n * BYTES_PER_WEIGHT[weights]
    memory = n_bytes / GB_PER_S / 1e6
    return {
        load: (
            max(memory, cycles / (max(BUSY) * max(clocks)) / 1e6) + OTHER_MS[load][0],
            max(memory, cycles / (min(BUSY) * min(clocks)) / 1e6) + OTHER_MS[load][1],
        )
        for load, clocks in CLOCKS_GHZ.items()
    }


def too_large(found: Sequence[Loop], limit: int) -> list[str]:
    """A line for each kernel that runs by default and whose loop has more than limit bytes of code."""
    return [
        f"{each.weights}, {each.columns} columns{', glu' if each.glu else ''}: the loop has {each.code_bytes} bytes of "
        f"code, the limit is {limit}"
        for each in found
        if each.is_default and each.code_bytes > limit
    ]


def _print_table(found: Sequence[Loop]) -> None:
    print(
        "weights cols rows glu short   code  regs spills  instr | issue tensor   fma   alu  half shared | busiest of 4"
    )
    for each in found:
        c = each.cycles
        name, cycles = each.bound
        print(
            f"{each.weights:7} {each.columns:4} {each.rows:4} {'yes' if each.glu else 'no':>3} "
            f"{'yes' if each.short_loop else 'no':>5} {each.code_bytes:6} {each.registers:5} {each.spilled_bytes:6.0f} "
            f"{each.instructions:6.0f} | {c['issue']:5.0f} {c['tensor']:6.0f} {c['fma']:5.0f} {c['alu']:5.0f} "
            f"{c['half']:5.0f} {c['shared']:6.0f} | {name} {cycles:.0f}"
        )


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("object", nargs="+", type=Path)
    parser.add_argument("--arch", default="sm_75")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument(
        "--limit", type=int, metavar="BYTES", help="fail where a kernel that runs by default has more code"
    )
    parser.add_argument("--forecast", choices=N_WEIGHTS, help="milliseconds of a decode on a T4, over the tokens in it")
    arguments = parser.parse_args()
    try:
        found = [loop for path in arguments.object for loop in read(path, arguments.arch)]
        if not found:
            raise ValueError(f"no kernel with code for {arguments.arch} in {', '.join(map(str, arguments.object))}")
        if arguments.forecast:
            for n_tokens in (8, 18, 26, 32, 52, 64, 107, 128, 160):
                times = forecast_ms(arguments.forecast, found, n_tokens)
                print(n_tokens, *(f"{load} {low:.0f}-{high:.0f} ms" for load, (low, high) in times.items()), sep="  ")
        elif arguments.json:
            print(json.dumps([asdict(each) for each in found], indent=1))
        else:
            _print_table(found)
    except ValueError as error:
        print(f"kernel_report: {error}", file=sys.stderr)
        return 1
    too_long = too_large(found, arguments.limit) if arguments.limit else []
    for each in too_long:
        print(f"kernel_report: {each}", file=sys.stderr)
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
