"""Models that a new configuration may name: families that were published for chats, the sizes of each."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Choice(NamedTuple):
    """A model of the hub."""

    repo: str
    quantization: str | None
    """None: what the repository has"""
    size_bytes: int
    """about; what is fetched tells"""
    state_bytes: int = 0
    """of a sequence, where recurrent layers keep a state; about"""


class Family(StrEnum):
    """Families of models that a configuration may be begun with; their chat templates let them answer at once."""

    QWEN3 = "qwen3"
    QWEN35 = "qwen3.5"
    GEMMA4 = "gemma-4"
    GRANITE4 = "granite-4"
    LFM2 = "lfm2"


_QWEN3_8B, _QWEN35_9B, _GEMMA4_E4B = "Qwen/Qwen3-8B-GGUF", "unsloth/Qwen3.5-9B-GGUF", "unsloth/gemma-4-E4B-it-GGUF"
LARGEST_FIRST: dict[Family, tuple[Choice, ...]] = {
    Family.QWEN3: (
        Choice(_QWEN3_8B, "Q8_0", 8_709_518_112),
        Choice(_QWEN3_8B, "Q4_K_M", 5_027_783_488),
        Choice("Qwen/Qwen3-4B-GGUF", "Q4_K_M", 2_500_000_000),
        Choice("Qwen/Qwen3-1.7B-GGUF", None, 1_830_000_000),
        Choice("Qwen/Qwen3-0.6B-GGUF", None, 640_000_000),
    ),
    Family.QWEN35: (
        Choice(_QWEN35_9B, "Q8_0", 9_527_502_048, 52_700_000),
        Choice(_QWEN35_9B, "Q4_K_M", 5_680_522_464, 52_700_000),
        Choice("unsloth/Qwen3.5-4B-GGUF", "Q4_K_M", 2_740_937_888, 52_700_000),
        Choice("unsloth/Qwen3.5-2B-GGUF", "Q4_K_M", 1_280_835_840, 20_200_000),
        Choice("unsloth/Qwen3.5-0.8B-GGUF", "Q8_0", 811_843_840, 20_200_000),
    ),
    Family.GEMMA4: (
        Choice(_GEMMA4_E4B, "Q8_0", 8_200_000_000),
        Choice(_GEMMA4_E4B, "Q4_K_M", 4_977_171_584),
        Choice("unsloth/gemma-4-E2B-it-GGUF", "Q4_K_M", 3_107_000_000),
    ),
    Family.GRANITE4: (
        Choice("ibm-granite/granite-4.0-h-tiny-GGUF", "Q4_K_M", 4_230_976_352, 58_100_000),
        Choice("ibm-granite/granite-4.0-h-1b-GGUF", "Q4_K_M", 901_162_208, 58_100_000),
        Choice("ibm-granite/granite-4.0-h-350m-GGUF", "Q8_0", 366_195_616, 22_600_000),
    ),
    Family.LFM2: (
        Choice("LiquidAI/LFM2-8B-A1B-GGUF", "Q4_K_M", 5_044_779_712),
        Choice("LiquidAI/LFM2-2.6B-GGUF", "Q4_K_M", 1_563_668_704),
        Choice("LiquidAI/LFM2-1.2B-GGUF", "Q4_K_M", 730_893_248),
        Choice("LiquidAI/LFM2-350M-GGUF", "Q8_0", 379_000_000),
    ),
}
"""the models that are chosen from"""
