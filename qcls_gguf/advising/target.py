"""What a request would take on another machine: predicted from its measured decodes, or for a T4 from a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from ..bench.decode_records import ForwardRecord
from ..errors import ConfigError
from ..score.result import ModelInfo
from .plan_tokens import PlannedRequest

T4 = "a Tesla T4, computed"
_T4_TOKENS = (8, 18, 26, 32, 52, 64, 107, 128, 160)
_T4_MS = {
    "Q4_K_M": ((19, 19, 19, 19, 20, 20, 26, 39, 40), (20, 21, 26, 26, 40, 46, 73, 90, 103)),
    "Q8_0": ((32, 33, 33, 33, 33, 34, 35, 35, 67), (34, 34, 34, 35, 40, 44, 64, 86, 93)),
}
"""Qwen3-8B: the least of isolated requests and the most of sustained load, as docs/kernels.md has them"""
_T4_OTHER_MS = ((1.1, 1.2, 1.4, 1.6, 2.0, 2.3, 3.4, 3.9, 4.5), (2.3, 2.7, 3.0, 3.2, 3.9, 4.4, 6.3, 7.3, 8.7))
"""of these what is no product, and does not grow with the weights"""
_N_WEIGHTS_8B = 6.9456e9
"""of its layers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A range of a request's median time, decodes alone."""

    low_ms: float
    high_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Measured decodes of another machine, by the tokens of a decode."""

    path: Path
    device: str
    quantization: str
    description: str
    tokens: tuple[int, ...]
    low_ms: tuple[float, ...]
    """the shortest"""
    high_ms: tuple[float, ...]
    """nine of ten were shorter"""

    def is_of(self, model: ModelInfo) -> bool:
        """Whether it was measured with a model of this shape and quantisation."""
        return (self.quantization, self.description) == (model.quantization, model.description)

    def predict(self, requests: Sequence[PlannedRequest]) -> Prediction:
        """By the decodes measured next to each request's."""
        return _range(requests, self.tokens, self.low_ms, self.high_ms)


def read_target(path: Path) -> Target:
    """The decodes of a benchmark's record with `forward`. Raises ConfigError for anything else."""
    try:
        tree: Any = json.loads(path.read_text(encoding="utf-8"))
        forward = ForwardRecord.model_validate(tree["forward"])
        model = tree["classifiers"][0]["model"]
        names = str(model["device"]), str(model["quantization"]), str(model["description"])
    except OSError as e:
        raise ConfigError(f"`target` {path}: cannot be read: {e.strerror}") from None
    except (ValueError, KeyError, IndexError, TypeError, ValidationError, RecursionError):
        what = "is no record of `qcls-gguf bench` with `forward`: make one on the target, and write it with `out`"
        raise ConfigError(f"`target` {path}: {what}") from None
    sizes = sorted(forward.sizes, key=lambda size: size.n_tokens)
    if not sizes:
        raise ConfigError(f"`target` {path}: has no measured decodes")
    return Target(
        path=path,
        device=names[0],
        quantization=names[1],
        description=names[2],
        tokens=tuple(size.n_tokens for size in sizes),
        low_ms=tuple(size.ms.min for size in sizes),
        high_ms=tuple(size.ms.p90 for size in sizes),
    )


def predict_t4(requests: Sequence[PlannedRequest], quantization: str, n_weights: float) -> Prediction | None:
    """From the table for Qwen3-8B, what grows with the weights scaled to n_weights; None for other quantisations."""
    if quantization not in _T4_MS:
        return None
    share = n_weights / _N_WEIGHTS_8B
    low, high = (
        tuple((ms - other) * share + other for ms, other in zip(row, others, strict=True))
        for row, others in zip(_T4_MS[quantization], _T4_OTHER_MS, strict=True)
    )
    return _range(requests, _T4_TOKENS, low, high)


def _range(
    requests: Sequence[PlannedRequest], tokens: Sequence[int], low_ms: Sequence[float], high_ms: Sequence[float]
) -> Prediction:
    """The medians of the requests: linear between known numbers of tokens, in proportion beyond the last."""

    def ms(n: int, known: Sequence[float]) -> float:
        return float(np.interp(n, tokens, known)) * max(1.0, n / tokens[-1])

    low, high = ([sum(ms(n, known) for n in each.decodes) for each in requests] for known in (low_ms, high_ms))
    return Prediction(low_ms=float(np.median(low)), high_ms=float(np.median(high)))
