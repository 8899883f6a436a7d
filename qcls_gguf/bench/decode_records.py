"""The parts of a benchmark's record that are made on request: decodes by tokens, kernels in turns."""

from __future__ import annotations

from ..report.record import Record


class DecodeQuantiles(Record):
    """Quantiles of times, in ms."""

    min: float
    """the smallest"""
    p50: float
    """the median"""
    p90: float
    """90 % quantile"""


class ForwardSize(Record):
    """Decodes of one number of new tokens."""

    n_tokens: int
    """new tokens of a decode"""
    ms: DecodeQuantiles
    """times of a decode"""
    tokens_per_s: float
    """by the median"""
    n_decodes: int
    """decodes that were timed"""
    roofline_ms: float | None
    """the least time of the decode by the roofline; null where the device could not be probed"""
    roofline_ratio: float | None
    """the median divided by roofline_ms"""


class ForwardRecord(Record):
    """One decode over the number of its new tokens, behind a prompt's cached prefix."""

    prompt: str
    """name of the prompt whose prefix is used"""
    n_cached: int
    """its tokens"""
    n_outputs: int
    """hidden states are read for this many of the last new tokens"""
    sizes: tuple[ForwardSize, ...]
    """by number of new tokens"""


class KernelStep(Record):
    """A step of this project's CUDA kernels that can be switched off."""

    name: str
    """a short name"""
    variable: str
    """the environment variable that a context reads, or for lane order a model as it is loaded; 0 switches it off"""
    meaning: str
    """what it does"""


class KernelVariant(Record):
    """A choice of steps that are on."""

    name: str
    """`stock`, or the step that it adds"""
    off: tuple[str, ...]
    """variables of the steps that are off"""


class VariantRecord(Record):
    """Decodes by one variant of the kernels, of one number of new tokens."""

    name: str
    """of the variant"""
    ms: DecodeQuantiles
    """times of a decode"""
    n_decodes: int
    """decodes that were timed"""
    cuda_graphs_per_decode: float
    """CUDA graphs launched by a decode, on average"""
    spread: float | None
    """(largest - smallest) / median of the rounds' medians; null for one round"""
    ratio: float
    """the median divided by that of `stock`"""
    ratio_range: tuple[float, float]
    """least and largest ratio of the rounds"""
    difference: float | None
    """the largest |hidden state - stock's| / |stock's|; null where a value is not finite"""


class VariantSize(Record):
    """All variants with one number of new tokens."""

    n_tokens: int
    """new tokens of a decode"""
    rounding: float | None
    """how far stock's hidden states change when a second sequence shares the decode; null if not finite"""
    variants: tuple[VariantRecord, ...]
    """in the order of `variants`"""


class VariantsRecord(Record):
    """The variants of the CUDA kernels in turns."""

    prompt: str
    """name of the prompt whose prefix precedes the new tokens"""
    n_cached: int
    """tokens of that prefix"""
    n_outputs: int
    """hidden states are read for this many of the last new tokens"""
    steps: tuple[KernelStep, ...]
    left_out: str | None
    """why weights in lane order are not compared; null where they are"""
    variants: tuple[KernelVariant, ...]
    """each has one step more than the one before"""
    sizes: tuple[VariantSize, ...]
    """by number of new tokens"""
