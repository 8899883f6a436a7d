"""The variants of the CUDA kernels against each other: one decode of T new tokens, over T, on one loaded model.

Each variant has a context of its own. They take turns decode by decode, so that a drift of the machine hits all alike,
and their hidden states are compared, so that a variant that is fast and wrong shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..engine.capacity import flash_attention, n_threads, whole_cells
from ..engine.engine import Engine
from ..native import NativeContext
from ..native.kernel_steps import STEPS, Variant, switched, variants
from ..plan.tree import Plan, Root
from .forward import N_COUNTED, N_DISCARDED, N_OUTPUTS, line_plan, timed_decode
from .stats import spread, summary

Float32Array = npt.NDArray[np.float32]
_N_LEAVES = 2  # the line, its company
_COMPANY = 8
"""Tokens of another line in the decode that shows what rounding alone does."""


@dataclass(slots=True, kw_only=True)
class Measured:
    """What one variant did with one number of tokens."""

    rounds_ms: list[list[float]] = field(default_factory=list)
    """decodes of each round"""
    differences: list[float] = field(default_factory=list)
    """of its hidden states from stock's, a value a round; may be NaN or infinite"""
    n_cuda_graphs: int = 0
    """CUDA graphs that its counted decodes launched"""

    @property
    def all_ms(self) -> list[float]:
        return [ms for each in self.rounds_ms for ms in each]


@dataclass(slots=True, kw_only=True)
class Size:
    """One number of tokens."""

    variants: dict[str, Measured]
    rounding: float
    """the difference of stock's hidden states from its own with another line of tokens in the decode"""


def compare_variants(
    classifier: Classifier, tokens: Sequence[int], n_rounds: int, on_turn: Callable[[], None]
) -> dict[int, Size]:
    """Decodes of each size behind the first prompt's prefix, by every variant in turns."""
    prefix = classifier.prompts[0].prefix
    root = Root(holder=_N_LEAVES, n_cached=len(prefix))
    with ExitStack() as stack:
        engines = {
            variant.name: stack.enter_context(_engine(classifier, variant, max(tokens))) for variant in variants()
        }
        stock = next(iter(engines.values()))
        plans = {n: line_plan(stock, root, n) for n in tokens}
        found = {}
        for n, plan in plans.items():
            alone = timed_decode(stock, plan, root)[0].hidden.copy()
            in_company = timed_decode(stock, line_plan(stock, root, n, n_company=_COMPANY), root)[0].hidden
            found[n] = Size(
                variants={name: Measured() for name in engines}, rounding=largest_difference(in_company, alone)
            )
        for _ in range(n_rounds):
            for n, size in found.items():
                _round(engines, plans[n], root, size)
                on_turn()
    return found


def _round(engines: dict[str, Engine], plan: Plan, root: Root, size: Size) -> None:
    """A turn of decodes; the first of each are not counted: they build the graph and let CUDA capture it."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    rows: dict[str, Float32Array] = {}
    for turn in range(N_DISCARDED + N_COUNTED):
        for name, engine in engines.items():
            before = engine.context.counters().n_cuda_graphs
            decoded, ms = timed_decode(engine, plan, root)
            rows[name] = decoded.hidden  # the last turn's stay: each engine has its own
            times[name].append(ms)
            if turn >= N_DISCARDED:
                size.variants[name].n_cuda_graphs += engine.context.counters().n_cuda_graphs - before
    stock = next(iter(rows.values()))
    for name, measured in size.variants.items():
        measured.rounds_ms.append(times[name][N_DISCARDED:])
        measured.differences.append(largest_difference(rows[name], stock))


@contextmanager
def _engine(classifier: Classifier, variant: Variant, n_tokens: int) -> Iterator[Engine]:
    """A context with a variant's kernels on the classifier's model, no larger than the sweep needs."""
    model, runtime, prefix = classifier.engine.model, classifier.config.runtime, classifier.prompts[0].prefix
    n_batch = max(n_tokens + _COMPANY, min(len(prefix), classifier.engine.context.n_batch))
    with switched(variant):
        context = NativeContext(
            model.native,
            n_ctx=whole_cells(len(prefix) + n_tokens + _COMPANY + n_batch),
            n_batch=n_batch,
            n_seq_max=_N_LEAVES + 1,  # the prefix has one
            n_outputs_max=max(N_OUTPUTS, _N_LEAVES + 1),
            n_threads=n_threads(runtime),
            flash_attn=flash_attention(runtime, model.n_gpu_layers),
            kv_type=runtime.kv_type,
        )
    with Engine(model, context, n_leaf_seqs=_N_LEAVES) as engine:
        engine.hold([prefix])
        yield engine


def largest_difference(rows: Float32Array, reference: Float32Array) -> float:
    """max over rows of |row - reference| / |reference|, Euclidean; NaN or infinite where a value is not finite."""
    difference = rows.astype(np.float64) - reference
    with np.errstate(all="ignore"):
        return float(np.max(np.linalg.norm(difference, axis=1) / np.linalg.norm(reference.astype(np.float64), axis=1)))


def ab_record(classifier: Classifier, found: dict[int, Size]) -> dict[str, Any]:
    """The comparison as JSON has it."""
    prompt = classifier.prompts[0]
    return {
        "prompt": prompt.name,
        "n_cached": len(prompt.prefix),
        "n_outputs": N_OUTPUTS,
        "steps": [asdict(step) for step in STEPS],
        "variants": [{"name": variant.name, "off": list(variant.off)} for variant in variants()],
        "sizes": [
            {
                "n_tokens": n,
                "rounding": _finite(size.rounding),
                "variants": [_variant_record(name, each, size) for name, each in size.variants.items()],
            }
            for n, size in found.items()
        ],
    }


def _variant_record(name: str, measured: Measured, size: Size) -> dict[str, Any]:
    stock = next(iter(size.variants.values()))
    ms = summary(measured.all_ms)
    p50_rounds = [summary(each)["p50"] for each in measured.rounds_ms]
    stock_rounds = [summary(each)["p50"] for each in stock.rounds_ms]
    ratios = [ours / theirs for ours, theirs in zip(p50_rounds, stock_rounds, strict=True)]
    return {
        "name": name,
        "ms": {quantile: ms[quantile] for quantile in ("min", "p50", "p90")},
        "n_decodes": len(measured.all_ms),
        "cuda_graphs_per_decode": measured.n_cuda_graphs / len(measured.all_ms),
        "spread": spread(p50_rounds),
        "ratio": ms["p50"] / summary(stock.all_ms)["p50"],
        "ratio_range": [min(ratios), max(ratios)],
        "difference": _finite(np.max(measured.differences)),
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
