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
