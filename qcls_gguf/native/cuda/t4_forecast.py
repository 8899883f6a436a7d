"""Milliseconds of a decode of Qwen3-8B on a Tesla T4, computed from loops in machine code for 7.5; none of it measured.

docs/kernels.md says what is assumed, and where the figures come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from .kernel_loops import K_BLOCK, AttentionLoop, ProductLoop
from .sass import N_SCHEDULERS

Range = tuple[float, float]
"""least and most"""

TOKENS = (8, 18, 26, 32, 52, 64, 107, 128, 160)
"""of the decodes of docs/kernels.md"""
N_MULTIPROCESSORS = 40
CLOCKS_GHZ: dict[str, Range] = {"isolated": (1.3, 1.5), "sustained": (0.75, 0.85)}
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
TILE_ROWS = 64
CHUNK_CELLS = 32
"""both of visible_layout.h"""
N_SLICES = 2
"""of a tile's chunks; each scheduler has a warp of each"""
ATTENTION_LOADS = 6
"""one after the other before the first product: number of items, item, tokens, queries, cells, keys and values"""

LAUNCHES_OF_REST = 10
"""of a layer, products among them, attention not"""
QUANTIZED_BYTES = 1216 / (8 * 128)
"""of an activation, with its share of scales and sums: mmq_layout.cuh"""
FROM_MEMORY: Range = (0.5, 1.0)
"""share of the activations between two launches that the cache of 4 MB has lost"""


def products_ms(file: str, found: Sequence[ProductLoop], n_tokens: int, coarse: bool = False) -> dict[str, Range]:
    """Of the products of all layers, by how long the card has been busy; coarse: with coarse scales of activations."""
    run = [each for each in found if not each.glu and (each.is_default or (coarse and each.is_chosen))]
    # of a type whose kernels for lane order, or for coarse scales, are given, too, those count
    run.sort(key=lambda each: (each.lanes, each.coarse))
    by_shape = {(each.weights, each.columns): each for each in run}
    cycles, n_bytes = 0.0, 0.0
    for weights, n in N_WEIGHTS[file].items():
        widest = max((columns for name, columns in by_shape if name == weights), default=0)
        if not widest:
            raise ValueError(f"none of the objects has kernels of {weights}, of which a {file} file is made")
        n_tiles = ceil(n_tokens / widest)
        columns = 8 * ceil(n_tokens / n_tiles / 8)
        loop = by_shape[weights, columns]
        warps = n / (loop.rows * K_BLOCK) / (N_MULTIPROCESSORS * N_SCHEDULERS)
        cycles += n_tiles * warps * loop.bound[1]
        n_bytes += n_tiles * n * BYTES_PER_WEIGHT[weights]
    memory = n_bytes / GB_PER_S / 1e6
    return {
        load: (
            max(memory, cycles / (max(BUSY) * max(clocks)) / 1e6),
            max(memory, cycles / (min(BUSY) * min(clocks)) / 1e6),
        )
        for load, clocks in CLOCKS_GHZ.items()
    }


def attention_ms(found: Sequence[AttentionLoop], n_tokens: int) -> dict[str, Range]:
    """Of the attention of all layers: prompts of TOKENS_OF_PROMPT tokens, each behind PREFIX_CELLS cells of its own.

    A multiprocessor computes one block, of 8 warps, at a time: a prompt and a kv head.
    """
    loop = next((each for each in found if each.head_size == HEAD_SIZE), None)
    if loop is None:
        raise ValueError(
            f"none of the objects has a kernel of attention for heads of {HEAD_SIZE}: give attend.cu's too"
        )
    n_prompts = ceil(n_tokens / TOKENS_OF_PROMPT)
    n_cells = PREFIX_CELLS + min(TOKENS_OF_PROMPT, n_tokens)
    assert min(TOKENS_OF_PROMPT, n_tokens) * N_HEAD // N_HEAD_KV <= TILE_ROWS  # a tile holds a prompt
    n_steps = ceil(n_cells / CHUNK_CELLS / N_SLICES)
    n_turns = ceil(n_prompts * N_HEAD_KV / N_MULTIPROCESSORS)
    n_bytes = 2 * 2 * n_prompts * n_cells * N_HEAD_KV * HEAD_SIZE
    q_and_out_bytes = 2 * 4 * n_tokens * N_HEAD * HEAD_SIZE

    def layer_us(ghz: float, busy: float, wait: float, launch: float, from_memory: float) -> float:
        cycles = n_turns * (ATTENTION_LOADS * wait + n_steps * N_SLICES * loop.bound[1] / busy)
        memory = (n_bytes + from_memory * q_and_out_bytes) / GB_PER_S / 1e3
        return launch + max(cycles / ghz / 1e3, memory)

    return {
        load: (
            N_LAYERS * layer_us(max(ghz), max(BUSY), min(LOAD_CYCLES), min(LAUNCH_US), min(FROM_MEMORY)) / 1e3,
            N_LAYERS * layer_us(min(ghz), min(BUSY), max(LOAD_CYCLES), max(LAUNCH_US), max(FROM_MEMORY)) / 1e3,
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


def forecast_ms(
    file: str, found: Sequence[ProductLoop | AttentionLoop], n_tokens: int, coarse: bool = False
) -> dict[str, tuple[Range, Range, Range]]:
    """Of a decode of n_tokens, by how long the card has been busy: products, attention, the rest; coarse: with coarse
    scales of activations. ValueError where a kernel is missing.
    """
    products = products_ms(file, [each for each in found if isinstance(each, ProductLoop)], n_tokens, coarse)
    attention = attention_ms([each for each in found if isinstance(each, AttentionLoop)], n_tokens)
    return {load: (products[load], attention[load], rest_ms(n_tokens)) for load in CLOCKS_GHZ}
