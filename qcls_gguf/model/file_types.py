"""What a model's weights are, in words: the name of their type, and how they lie in a GPU's memory."""

from __future__ import annotations

from ..config.words import counted

_NAMES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
    1024: "GUESSED",
}
"""By the number that `general.file_type` has: the package gguf knows them, too, and takes 60 ms to import."""


def quantization_name(file_type: int | None) -> str:
    """llama.cpp's name for a file's main quantisation, such as Q4_K_M; `unknown` where there is none."""
    return "unknown" if file_type is None else _NAMES.get(file_type, "unknown")


def weights_text(n_lane_ordered: int) -> str:
    """How a model's weights lie in the GPU's memory, in a few words."""
    if not n_lane_ordered:
        return "in the file's order"
    return f"{counted(n_lane_ordered, 'matrix', 'matrices')} in lane order"
