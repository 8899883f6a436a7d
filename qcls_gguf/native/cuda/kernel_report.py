"""What the compiler made of this project's kernels, and what that asks of a multiprocessor of a Tesla T4.

    python -m qcls_gguf.native.cuda.kernel_report OBJECT …
    python -m qcls_gguf.native.cuda.kernel_report --limit 32768 OBJECT …
    python -m qcls_gguf.native.cuda.kernel_report --forecast q4_k_m [--coarse] OBJECT …

OBJECT: an object file or a cubin of mmq_direct_q4_k.cu and its like, or of attend.cu, with code for --arch (7.5 unless
said), as in build/*/vendor/llama.cpp/ggml/src/ggml-cuda/CMakeFiles/…/mmq_direct_q4_k.cu.o. Reads it with cuobjdump, of
the CUDA toolkit. A row is the main loop of one kernel: of products scaled to 256 values of K, of attention for 32 cells
and 16 rows. It has code bytes, registers, bytes of spills that the loop moves, instructions, and cycles of each pipe.
docs/kernels.md says what the model assumes. A forecast is of weights in lane order where mmq_direct_q8_0_lanes.cu's and
its like's objects are given too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .kernel_loops import AttentionLoop, ProductLoop, read, too_large
from .t4_forecast import N_WEIGHTS, TOKENS, forecast_ms


def _print_table(found: Sequence[ProductLoop | AttentionLoop]) -> None:
    print(
        f"{'kernel':37} rows short   code  regs spills  instr | issue tensor   fma   alu  half  conv shared "
        "| busiest of 4"
    )
    for each in found:
        rows, short = (each.rows, each.short_loop) if isinstance(each, ProductLoop) else (16, False)
        c = each.cycles
        name, cycles = each.bound
        print(
            f"{each.name:37} {rows:4} {'yes' if short else 'no':>5} {each.code_bytes:6} {each.registers:5} "
            f"{each.spilled_bytes:6.0f} {each.instructions:6.0f} | {c['issue']:5.0f} {c['tensor']:6.0f} "
            f"{c['fma']:5.0f} {c['alu']:5.0f} {c['half']:5.0f} {c['convert']:5.0f} {c['shared']:6.0f} "
            f"| {name} {cycles:.0f}"
        )


def _print_forecast(file: str, found: Sequence[ProductLoop | AttentionLoop], coarse: bool) -> None:
    print("tokens  load       products    attention   the rest    all, ms")
    for n_tokens in TOKENS:
        for load, parts in forecast_ms(file, found, n_tokens, coarse).items():
            whole = sum(low for low, _ in parts), sum(high for _, high in parts)
            texts = [f"{low:.1f}-{high:.1f}" for low, high in parts]
            print(f"{n_tokens:6}  {load:9}", *(f"{text:11}" for text in texts), f"{whole[0]:.0f}-{whole[1]:.0f}")


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("object", nargs="+", type=Path)
    parser.add_argument("--arch", default="sm_75")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="BYTES",
        help="fail where a kernel that a T4 runs, by default or with coarse scales, has more code",
    )
    parser.add_argument("--forecast", choices=N_WEIGHTS, help="milliseconds of a decode on a T4, over the tokens in it")
    parser.add_argument("--coarse", action="store_true", help="a forecast with coarse scales of activations")
    arguments = parser.parse_args()
    try:
        found = [loop for path in arguments.object for loop in read(path, arguments.arch)]
        if not found:
            raise ValueError(f"no kernel with code for {arguments.arch} in {', '.join(map(str, arguments.object))}")
        if arguments.forecast:
            _print_forecast(arguments.forecast, found, arguments.coarse)
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
