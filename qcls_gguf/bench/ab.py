"""The variants of the CUDA kernels against each other: one decode of n new tokens, over n.

Each variant has a context of its own, on one loaded model whose weights are as the file has them; that with weights in
lane order is on a second one. They take turns decode by decode, so that a machine that becomes slower or faster affects
all alike. Their hidden states are compared, so that a variant that is fast and wrong is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..classifier import Classifier
from ..engine.capacity import whole_cells
from ..engine.cores import threads
from ..engine.engine import Engine
from ..model.placement import flash_attention
from ..native import NativeContext, NativeModel
from ..native.kernel_steps import LANE_ORDER, STEPS, Step, Variant, switched, variants
from ..plan.tree import Plan, Root
from .decode_records import KernelStep, KernelVariant, VariantRecord, VariantSize, VariantsRecord
from .forward import N_COUNTED, N_DISCARDED, N_OUTPUTS, sequence_plan, timed_decode
from .lane_order import loaded_in_file_order, loaded_in_lane_order
from .stats import decode_quantiles, quantiles, spread

Float32Array = npt.NDArray[np.float32]
_N_LEAVES = 2  # the measured sequence and the other one
_N_OTHER = 8
"""Tokens of the second sequence in the decode that shows what rounding alone does."""


@dataclass(slots=True, kw_only=True)
class VariantSamples:
    """The decodes of one variant with one number of tokens."""

    rounds_ms: list[list[float]] = field(default_factory=list)
    """milliseconds of the decodes of each round"""
    differences: list[float] = field(default_factory=list)
    """of its hidden states from stock's, a value for each round; may be NaN or infinite"""
    n_cuda_graphs: int = 0
    """CUDA graphs that its counted decodes launched"""

    @property
    def all_ms(self) -> list[float]:
        """Milliseconds of the decodes of all rounds."""
        return [ms for round_ms in self.rounds_ms for ms in round_ms]


@dataclass(slots=True, kw_only=True)
class SizeSamples:
    """The decodes of all variants with one number of tokens."""

    variants: dict[str, VariantSamples]
    rounding: float
    """how far stock's hidden states move where a second sequence shares the decode"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The variants, and their decodes by number of tokens."""

    steps: tuple[Step, ...]
    """that the variants add one by one"""
    left_out: str | None
    """why lane order is none of them; None where it is"""
    sizes: dict[int, SizeSamples]


def compare_variants(
    classifier: Classifier, tokens: Sequence[int], n_rounds: int, on_turn: Callable[[], None]
) -> Comparison:
    """Decodes of each size behind the first prompt's prefix, by every variant in turns. Raises ModelError where the
    model has lane order and cannot be loaded once more without it.
    """
    model, n_most = classifier.engine.model, max(tokens)
    root = Root(holder=_N_LEAVES, n_cached=len(classifier.prompts[0].prefix))
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}

        def add(variant: Variant, native: NativeModel) -> None:
            with switched(variant, steps):
                engines[variant.name] = stack.enter_context(_engine(classifier, native, n_most))

        in_file_order = stack.enter_context(loaded_in_file_order(model))
        steps: tuple[Step, ...] = (*STEPS, LANE_ORDER)
        left_out = None
        *in_turn, with_lanes = variants(steps)
        for variant in in_turn:
            add(variant, in_file_order)
        with switched(with_lanes, steps):
            in_lane_order = stack.enter_context(loaded_in_lane_order(model))
        if isinstance(in_lane_order, str):
            steps, left_out = STEPS, in_lane_order
        else:
            add(with_lanes, in_lane_order)
        stock = next(iter(engines.values()))
        plans = {n: sequence_plan(stock, root, n) for n in tokens}
        samples = {}
        for n, plan in plans.items():
            alone = timed_decode(stock, plan, root)[0].hidden.copy()
            beside_other = timed_decode(stock, sequence_plan(stock, root, n, n_other=_N_OTHER), root)[0].hidden
            samples[n] = SizeSamples(
                variants={name: VariantSamples() for name in engines},
                rounding=largest_difference(beside_other, alone),
            )
        for _ in range(n_rounds):
            for n, size in samples.items():
                _round(engines, plans[n], root, size)
                on_turn()
    return Comparison(steps=steps, left_out=left_out, sizes=samples)


def _round(engines: dict[str, Engine], plan: Plan, root: Root, size: SizeSamples) -> None:
    """One round of decodes in turns; the first of each variant build its graph, and are not counted."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    rows: dict[str, Float32Array] = {}
    for turn in range(N_DISCARDED + N_COUNTED):
        for name, engine in engines.items():
            before = engine.context.counters().n_cuda_graphs
            decoded, ms = timed_decode(engine, plan, root)
            rows[name] = decoded.hidden  # a view of a buffer that the next turn overwrites; the last turn's stay
            times[name].append(ms)
            if turn >= N_DISCARDED:
                size.variants[name].n_cuda_graphs += engine.context.counters().n_cuda_graphs - before
    stock = next(iter(rows.values()))
    for name, measured in size.variants.items():
        measured.rounds_ms.append(times[name][N_DISCARDED:])
        measured.differences.append(largest_difference(rows[name], stock))


@contextmanager
def _engine(classifier: Classifier, native: NativeModel, n_tokens: int) -> Iterator[Engine]:
    """A context on the classifier's model, as it is loaded in `native`, no larger than the sweep needs."""
    model, runtime, prefix = classifier.engine.model, classifier.config.runtime, classifier.prompts[0].prefix
    n_batch = max(n_tokens + _N_OTHER, min(len(prefix), classifier.engine.context.n_batch))
    context = NativeContext(
        native,
        n_ctx=whole_cells(len(prefix) + n_tokens + _N_OTHER + n_batch),
        n_batch=n_batch,
        n_seq_max=_N_LEAVES + 1,  # the prefix has one
        n_outputs_max=max(N_OUTPUTS, _N_LEAVES + 1),
        n_threads=threads(runtime).n,
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


def variants_record(classifier: Classifier, found: Comparison) -> VariantsRecord:
    """The comparison as the benchmark's record has it."""
    prompt = classifier.prompts[0]
    return VariantsRecord(
        prompt=prompt.name,
        n_cached=len(prompt.prefix),
        n_outputs=N_OUTPUTS,
        steps=tuple(KernelStep(name=step.name, variable=step.variable, meaning=step.meaning) for step in found.steps),
        left_out=found.left_out,
        variants=tuple(KernelVariant(name=variant.name, off=variant.off) for variant in variants(found.steps)),
        sizes=tuple(
            VariantSize(
                n_tokens=n,
                rounding=_finite(size.rounding),
                variants=tuple(_variant_record(name, of_variant, size) for name, of_variant in size.variants.items()),
            )
            for n, size in found.sizes.items()
        ),
    )


def _variant_record(name: str, samples: VariantSamples, size: SizeSamples) -> VariantRecord:
    stock = next(iter(size.variants.values()))
    ms = decode_quantiles(samples.all_ms)
    p50_rounds = [quantiles(round_ms).p50 for round_ms in samples.rounds_ms]
    stock_rounds = [quantiles(round_ms).p50 for round_ms in stock.rounds_ms]
    ratios = [ours / theirs for ours, theirs in zip(p50_rounds, stock_rounds, strict=True)]
    return VariantRecord(
        name=name,
        ms=ms,
        n_decodes=len(samples.all_ms),
        cuda_graphs_per_decode=samples.n_cuda_graphs / len(samples.all_ms),
        spread=spread(p50_rounds),
        ratio=ms.p50 / quantiles(stock.all_ms).p50,
        ratio_range=(min(ratios), max(ratios)),
        difference=_finite(np.max(samples.differences)),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
