"""llama.cpp's CUDA kernels, then ours with one more step at a time, in turns: one decode of n new tokens, over n.

Each variant has a context of its own on one loaded model, whose weights are as the file has them; the last, with
weights in lane order, is on a second one. They take turns decode by decode, so that a machine that becomes slower or
faster affects all alike. Their hidden states are compared with those of llama.cpp's kernels, so that a variant that is
fast and wrong is found.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from qcls_gguf import Classifier, Model, ModelError
from qcls_gguf.engine.capacity import whole_cells
from qcls_gguf.engine.engine import Engine
from qcls_gguf.engine.resources import threads
from qcls_gguf.model.placement import flash_attention
from qcls_gguf.native import NativeContext, NativeModel, build_info
from qcls_gguf.native.device import LANE_ORDER, STEPS, STOCK
from qcls_gguf.plan.decodes import DecodeInput, Root, TokenTree
from qcls_gguf.report.document import TEXT, Paragraph, Part, Table

Float32Array = npt.NDArray[np.float32]
N_OUTPUTS = 2
"""hidden states are read for this many of the last new tokens"""
TOKENS = (1, 8, 9, 16, 24, 26, 32, 40, 48, 52, 56, 64, 80, 96, 104, 112, 128, 160)
LANES = "+ lane order"
_N_DISCARDED, _N_COUNTED = 3, 5
"""decodes of a variant in a round; the first build its graph and let CUDA capture it"""
_N_LEAVES = 2
_N_OTHER = 8
"""tokens of the second sequence in the decode that shows what rounding alone does"""


@dataclass(slots=True, kw_only=True)
class VariantSamples:
    """The decodes of one variant with one number of tokens."""

    rounds_ms: list[list[float]] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    """of its hidden states from those of llama.cpp's kernels, by round; may be NaN or infinite"""
    n_cuda_graphs: int = 0
    """CUDA graphs that its counted decodes launched"""

    def medians(self) -> list[float]:
        """The medians of the rounds, in ms."""
        return [median(times) for times in self.rounds_ms]


@dataclass(slots=True, kw_only=True)
class SizeSamples:
    """The decodes of all variants with one number of tokens."""

    n_tokens: int
    rounding: float
    """how far hidden states of llama.cpp's kernels move where a second sequence shares the decode"""
    variants: dict[str, VariantSamples]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The decodes of all sizes."""

    sizes: list[SizeSamples]
    left_out: str | None
    """why lane order is not compared; None where it is"""

    def parts(self) -> list[Part | None]:
        """What is shown of it."""
        rows: list[list[object]] = []
        for size in self.sizes:
            stock = next(iter(size.variants.values())).medians()
            for name, samples in size.variants.items():
                medians = samples.medians()
                ratios = [ours / theirs for ours, theirs in zip(medians, stock, strict=True)]
                times = min(map(min, samples.rounds_ms)), median(medians)
                compared = median(ratios), min(ratios), max(ratios), max(samples.differences), size.rounding
                rows.append([name, size.n_tokens, *times, *compared])
        texts = {"kernels": TEXT, "tokens": "d"}
        numbers = dict.fromkeys(("min ms", "p50 ms", "of stock", "least", "most"), ".3f")
        table = Table(columns={**texts, **numbers, "difference": ".1e", "rounding": ".1e"}, rows=rows)
        return [table, Paragraph(f"lane order is not compared: {self.left_out}") if self.left_out else None]


def variants() -> dict[str, dict[str, str]]:
    """The environments of the variants: `stock`, then with one step more; the last has all but lane order."""
    found = {"stock": STOCK}
    for name, variable in STEPS.items():
        found[f"+ {name}"] = {**list(found.values())[-1], variable: "1"}
    return found


def compare_variants(
    classifier: Classifier, tokens: Sequence[int], n_rounds: int, on_turn: Callable[[], None] = lambda: None
) -> Comparison:
    """Decodes of all sizes after the first prompt's prefix. Raises ModelError where the model has lane order and
    cannot be loaded once more without it.
    """
    model, n_most = classifier.engine.model, max(tokens)
    root = Root(_N_LEAVES, len(classifier.prompts[0].prefix))
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}

        def add(name: str, native: NativeModel, variables: Mapping[str, str]) -> None:
            with patch.dict("os.environ", variables):
                engines[name] = stack.enter_context(_engine(classifier, native, n_most))

        in_file_order = stack.enter_context(_loaded(model, is_lanes=False))
        for name, variables in variants().items():
            add(name, in_file_order, variables)
        left_out = None if runs_code_for_75() else "the card runs no code for 7.5"
        if left_out is None:
            try:
                lanes = stack.enter_context(_loaded(model, is_lanes=True))
            except ModelError as e:  # what can be measured is worth more
                left_out = f"the model could not be loaded a second time: {e}"
            else:
                if lanes.facts.n_lane_ordered:
                    add(LANES, lanes, variables)
                else:
                    left_out = "no matrix on the card is of Q8_0 or Q6_K"
        stock = next(iter(engines.values()))
        plans = {n: sequence_plan(stock, root, n) for n in tokens}
        sizes = []
        for n, plan in plans.items():
            alone = timed_decode(stock, plan)[0].copy()
            beside_other = timed_decode(stock, sequence_plan(stock, root, n, n_other=_N_OTHER))[0]
            rounding = largest_difference(beside_other, alone)
            samples = {name: VariantSamples() for name in engines}
            sizes.append(SizeSamples(n_tokens=n, rounding=rounding, variants=samples))
        for _ in range(n_rounds):
            for size in sizes:
                _round(engines, plans[size.n_tokens], size)
                on_turn()
    return Comparison(sizes=sizes, left_out=left_out)


def runs_code_for_75() -> bool:
    """Whether the first GPU does, which alone has kernels for lane order."""
    built = [int(number) for name in build_info().architectures for number in re.findall(r"^\d+", name)]
    return max([number for number in built if number <= capability()], default=0) == 75


def capability() -> int:
    """The first GPU's compute capability times ten, such as 75 for 7.5; 0 where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return 0
    return int(10 * major + minor)


def _loaded(model: Model, *, is_lanes: bool) -> AbstractContextManager[NativeModel]:
    """The model in lane order, or in the file's: as it is open, or loaded once more and closed in the end."""
    if (model.facts.n_lane_ordered > 0) == is_lanes:
        return nullcontext(model.native)
    with patch.dict("os.environ", {LANE_ORDER: str(int(is_lanes))}):
        return NativeModel(model.path, n_gpu_layers=model.n_gpu_layers, share=model.placement.gpu_layers)


def _round(engines: Mapping[str, Engine], plan: DecodeInput, size: SizeSamples) -> None:
    """One round of decodes in turns."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    rows: dict[str, Float32Array] = {}
    for turn in range(_N_DISCARDED + _N_COUNTED):
        for name, engine in engines.items():
            before = engine.context.counters().n_cuda_graphs
            # the rows are a view of a buffer that the next turn overwrites; the last turn's stay
            rows[name], ms = timed_decode(engine, plan)
            if turn >= _N_DISCARDED:
                times[name].append(ms)
                size.variants[name].n_cuda_graphs += engine.context.counters().n_cuda_graphs - before
    stock = next(iter(rows.values()))
    for name, samples in size.variants.items():
        samples.rounds_ms.append(times[name])
        samples.differences.append(largest_difference(rows[name], stock))


@contextmanager
def _engine(classifier: Classifier, native: NativeModel, n_tokens: int) -> Iterator[Engine]:
    """A context on the classifier's model, as it is loaded in `native`, no larger than the sizes need."""
    model, runtime, prefix = classifier.engine.model, classifier.config.runtime, classifier.prompts[0].prefix
    n_batch = max(n_tokens + _N_OTHER, min(len(prefix), classifier.engine.context.n_batch))
    context = NativeContext(
        native,
        n_ctx=whole_cells(len(prefix) + n_tokens + _N_OTHER + n_batch),
        n_batch=n_batch,
        n_seq_max=_N_LEAVES + 1,  # the prefix has one
        n_outputs_max=max(N_OUTPUTS, _N_LEAVES + 1),
        n_threads=threads(runtime)[0],
        flash_attn=flash_attention(runtime, model.n_gpu_layers),
        kv_type=runtime.kv_type,
    )
    with Engine(model, context, n_leaf_seqs=_N_LEAVES) as engine:
        engine.hold([prefix])
        yield engine


def hidden_states(classifier: Classifier, n_tokens: int, n_other: int = 0, *, prompt: int = 0) -> Float32Array:
    """(N_OUTPUTS, n_embd) after a prompt's prefix and n_tokens new tokens; n_other as in sequence_plan."""
    held = classifier.held[prompt]
    root = Root(held.holder, len(held.tokens))
    plan = sequence_plan(classifier.engine, root, n_tokens, n_other)
    return timed_decode(classifier.engine, plan)[0].copy()


def sequence_plan(engine: Engine, root: Root, n_tokens: int, n_other: int = 0) -> DecodeInput:
    """One sequence of n_tokens new tokens, the last few of which are read.

    n_other: tokens of a second sequence in the same decode, none of which is read.
    """
    text = engine.model.tokenize(" red dress for girls in summer", parse_special=False).tolist()
    tree = TokenTree()
    start = node = tree.add_root(root)
    for i in range(n_tokens):
        node = tree.add_path(node, [text[i % len(text)]])
        if i >= n_tokens - min(N_OUTPUTS, engine.context.n_outputs_max):
            tree.read(node)
    if n_other:
        tree.add_path(start, [text[-1 - i % len(text)] for i in range(n_other)])
    return tree.finish()


def timed_decode(engine: Engine, plan: DecodeInput) -> tuple[Float32Array, float]:
    """The rows of a decode; its milliseconds do not include the trimming after it."""
    begun = perf_counter_ns()
    rows, _, trim_us = engine.decode(plan)
    return rows, (perf_counter_ns() - begun) / 1e6 - trim_us / 1e3


def largest_difference(rows: Float32Array, reference: Float32Array) -> float:
    """max over rows of |row - reference| / |reference|, Euclidean; NaN or infinite where a value is not finite."""
    difference = rows.astype(np.float64) - reference
    with np.errstate(all="ignore"):
        return float(np.max(np.linalg.norm(difference, axis=1) / np.linalg.norm(reference.astype(np.float64), axis=1)))
