"""Milliseconds of a decode of Qwen3-8B on a Tesla T4: ours computed from machine code, llama.cpp's from others' rates.

None of it was measured by this project. docs/kernels.md says what is assumed and where the figures come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from qcls_gguf.report.document import TEXT, Table

from .machine_code import K_BLOCK, N_SCHEDULERS, Loop

Range = tuple[float, float]
"""least and most"""

TOKENS = (8, 18, 26, 32, 52, 64, 107, 128, 160)
"""of the decodes of docs/kernels.md"""
N_MULTIPROCESSORS = 40
CLOCKS_GHZ: dict[str, Range] = {"isolated": (1.3, 1.5), "1.36 GHz": (1.36, 1.36), "0.85 GHz": (0.75, 0.85)}
"""of an isolated request on a cool card, and under load by either of the published rates of llama.cpp"""
BUSY: Range = (0.6, 0.9)
"""share of its cycles that the busiest pipe works"""
GB_PER_S = 235.0
LAUNCH_US: Range = (2.0, 4.0)
"""start and end of a launch in a CUDA graph"""
LOAD_CYCLES: Range = (300.0, 600.0)
"""until a load's value is there"""

N_WEIGHTS = {"q4_k_m": {"q4_k": 5.964e9, "q6_k": 0.9814e9}, "q8_0": {"q8_0": 6.9456e9}}
"""of Qwen3-8B's layers"""
BYTES_PER_WEIGHT = {"q4_k": 144 / 256, "q6_k": 210 / 256, "q8_0": 34 / 32}
N_LAYERS = 36
N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_SIZE = 4096, 12288, 32, 8, 128

TOKENS_OF_PROMPT = 13
"""that a decode feeds of each prompt"""
PREFIX_CELLS = 45
CHUNK_CELLS, N_SLICES = 32, 2
"""of a tile of attention: visible_layout.h; each scheduler has a warp of each slice"""
ATTENTION_LOADS = 6
"""one after the other before the first product: number of items, item, tokens, queries, cells, keys and values"""
LAUNCHES_OF_REST = 10
"""of a layer, products among them, attention not"""
QUANTIZED_BYTES = 1216 / (8 * 128)
"""of an activation, with its share of scales and sums: mmq_layout.cuh"""
FROM_MEMORY: Range = (0.5, 1.0)
"""share of the activations between two launches that the cache of 4 MB has lost"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRate:
    """Prompt processing of llama.cpp on a T4, measured by others."""

    tokens_per_s: float
    n_prompt: int
    """tokens of the measured prompt"""
    n_weights: float
    """of the measured model's layers"""

    def ms_a_token(self, start_ms: float, n_weights: float) -> float:
        """The slope of a line that begins at start_ms, for a model of n_weights in its layers:

        (n_prompt / tokens_per_s * n_weights / self.n_weights - start) / n_prompt
        """
        whole_ms = 1e3 * self.n_prompt / self.tokens_per_s * n_weights / self.n_weights
        return (whole_ms - start_ms) / self.n_prompt


QWEN_25_7B = 6.525e9
STOCK_START_MS = {"q4_k_m": 22.0, "q8_0": 36.0}
"""of a decode of few tokens: its weights read once, and launches"""
STOCK_RATES = {
    "q4_k_m": PublishedRate(tokens_per_s=1294.7, n_prompt=512, n_weights=QWEN_25_7B),
    "q8_0": PublishedRate(tokens_per_s=1439.9, n_prompt=512, n_weights=QWEN_25_7B),
}
"""Qwen2.5-7B-Instruct, llama-bench -r 3, July 2026: gwenland-org/gwenland-ai, docs/ArchGLCuda"""


def stock_ms(file: str, n_tokens: int) -> float:
    """Of a decode by llama.cpp's kernels at some 1.36 GHz, of n_tokens rounded up to the kernel's tile."""
    slope = STOCK_RATES[file].ms_a_token(STOCK_START_MS[file], sum(N_WEIGHTS[file].values()))
    return STOCK_START_MS[file] + slope * stock_tile(n_tokens)


def stock_tile(n_tokens: int) -> int:
    """The columns that llama.cpp's kernel computes for so many."""
    tiles = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)
    return next((n for n in tiles if n >= n_tokens), 128 * ceil(n_tokens / 128))


def products_ms(file: str, loops: Sequence[Loop], n_tokens: int) -> dict[str, Range]:
    """Of the products of all layers, by clock; of weights in lane order where their kernels are given, too."""
    run = [loop for loop in loops if loop.weights != "attention" and loop.is_default and not loop.glu]
    by_shape = {(loop.weights, loop.columns): loop for loop in sorted(run, key=lambda loop: loop.lanes)}
    cycles = n_bytes = 0.0
    for weights, n in N_WEIGHTS[file].items():
        widest = max((columns for name, columns in by_shape if name == weights), default=0)
        if not widest:
            raise ValueError(f"none of the objects has kernels of {weights}, of which a {file} file is made")
        n_tiles = ceil(n_tokens / widest)
        loop = by_shape[weights, 8 * ceil(n_tokens / n_tiles / 8)]
        cycles += n_tiles * n / (loop.rows * K_BLOCK) / (N_MULTIPROCESSORS * N_SCHEDULERS) * loop.bound[1]
        n_bytes += n_tiles * n * BYTES_PER_WEIGHT[weights]
    memory = n_bytes / GB_PER_S / 1e6
    return {
        load: (
            max(memory, cycles / (max(BUSY) * max(clocks)) / 1e6),
            max(memory, cycles / (min(BUSY) * min(clocks)) / 1e6),
        )
        for load, clocks in CLOCKS_GHZ.items()
    }


def attention_ms(loops: Sequence[Loop], n_tokens: int) -> dict[str, Range]:
    """Of the attention of all layers: prompts of TOKENS_OF_PROMPT tokens, each after PREFIX_CELLS cells of its own.

    A multiprocessor computes one block, of 8 warps, at a time: a prompt and a kv head.
    """
    loop = next((each for each in loops if (each.weights, each.columns) == ("attention", HEAD_SIZE)), None)
    if loop is None:
        raise ValueError(f"none of the objects has attention for heads of {HEAD_SIZE}: give attend.cu's too")
    busiest = loop.bound[1]
    n_prompts = ceil(n_tokens / TOKENS_OF_PROMPT)
    n_cells = PREFIX_CELLS + min(TOKENS_OF_PROMPT, n_tokens)
    n_steps = ceil(n_cells / CHUNK_CELLS / N_SLICES)
    n_turns = ceil(n_prompts * N_HEAD_KV / N_MULTIPROCESSORS)
    n_bytes = 2 * 2 * n_prompts * n_cells * N_HEAD_KV * HEAD_SIZE
    q_and_out_bytes = 2 * 4 * n_tokens * N_HEAD * HEAD_SIZE

    def layers_ms(ghz: float, busy: float, wait: float, launch: float, from_memory: float) -> float:
        cycles = n_turns * (ATTENTION_LOADS * wait + n_steps * N_SLICES * busiest / busy)
        memory = (n_bytes + from_memory * q_and_out_bytes) / GB_PER_S / 1e3
        return N_LAYERS * (launch + max(cycles / ghz / 1e3, memory)) / 1e3

    return {
        load: (
            layers_ms(max(ghz), max(BUSY), min(LOAD_CYCLES), min(LAUNCH_US), min(FROM_MEMORY)),
            layers_ms(min(ghz), min(BUSY), max(LOAD_CYCLES), max(LAUNCH_US), max(FROM_MEMORY)),
        )
        for load, ghz in CLOCKS_GHZ.items()
    }


def rest_ms(n_tokens: int) -> Range:
    """Of norms, rope and quantising, by the activations that they move, and of starting all launches of the layers."""
    norms = 2 * N_EMBD * (3 * 4 + QUANTIZED_BYTES)  # two summands and a sum, then quantised
    kv = 2 * N_HEAD_KV * HEAD_SIZE
    rope = 4 * (2 * N_HEAD * HEAD_SIZE + kv) + 2 * kv  # Q in and out, K and V in, and to the cache as halves
    quantizing = (N_HEAD * HEAD_SIZE + N_FF) * (4 + QUANTIZED_BYTES)
    us = (norms + rope + quantizing) * n_tokens / GB_PER_S / 1e3
    low, high = (
        N_LAYERS * (LAUNCHES_OF_REST * launch + share * us) / 1e3
        for launch, share in zip(LAUNCH_US, FROM_MEMORY, strict=True)
    )
    return low, high


def forecast_ms(file: str, loops: Sequence[Loop], n_tokens: int) -> dict[str, tuple[Range, Range, Range]]:
    """Of a decode of n_tokens, by clock: products, attention, the rest. ValueError where a kernel is missing."""
    products, attention = products_ms(file, loops, n_tokens), attention_ms(loops, n_tokens)
    return {load: (products[load], attention[load], rest_ms(n_tokens)) for load in CLOCKS_GHZ}


def table(loops: Sequence[Loop]) -> Table:
    """The forecasts of the files whose kernels are given, and llama.cpp's beside them. Raises ValueError for none."""
    has = {loop.weights for loop in loops}
    files = [file for file, weights in N_WEIGHTS.items() if weights.keys() <= has]
    rows: list[list[object]] = []
    for file in files:
        for n in TOKENS:
            for load, ranges in forecast_ms(file, loops, n).items():
                whole = sum(low for low, _ in ranges), sum(high for _, high in ranges)
                texts = [f"{low:.1f}–{high:.1f}" for low, high in (*ranges, whole)]
                rows.append([file, load, n, *texts, stock_ms(file, n) if load == "1.36 GHz" else None])
    numbers = dict.fromkeys(("products", "attention", "the rest", "all, ms"), ">s")
    return Table(columns={"file": TEXT, "clock": TEXT, "tokens": "d", **numbers, "llama.cpp, ms": ".0f"}, rows=rows)
