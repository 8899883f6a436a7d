"""The roofline of a decode: the least time it could take on a device, by bandwidth or by arithmetic.

least_s = max(bytes of the weights it reads / measured bytes_per_s, 2 * weights * tokens / measured operations_per_s)

The bandwidth is that of a copy far larger than the caches, counted as read and written; the operations are those of a
product of 4096 x 4096 weights of the model's dominant type with 512 columns; of five samples the best. Left out: the
attention and its cache, norms, activations, launches, the host's work, and that smaller matrices and fewer columns
multiply more slowly. So it is below what can be reached, with two exceptions: weights that fit the caches may be read
faster than the copy suggests, and of layers split between GPU and CPU all count as the GPU's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import gguf

from ..classifier import Classifier
from ..model.header import GgufHeader, TensorInfo
from ..native import devices, probe_copy, probe_matmul
from ..prompts.prompt_set import read_depths
from .records import ProbeMethod, RooflineRecord, SampleTimes

COPY_BYTES = 256 << 20
PROBE_SIDE = 4096
PROBE_COLUMNS = 512
BUDGET_S = 0.5
# The last layer goes on with the rows that are read alone once attention is done (inp_out_ids in src/llama-graph.cpp).
_FOR_ATTENTION = (".attn_q", ".attn_k", ".attn_v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What a decode reads and multiplies by. Experts count by the share of them that a token uses."""

    n_bytes: int
    n_per_token: int
    """weights that every token is multiplied by"""
    n_per_row: int
    """weights that only the rows that are read are multiplied by: the last layer's after attention, a head"""
    ggml_type: int
    """the type that most weights have"""

    @property
    def type_name(self) -> str:
        return gguf.GGMLQuantizationType(self.ggml_type).name


def decode_weights(classifier: Classifier) -> Weights:
    """The weights of its model that a decode of its prompts uses."""
    model, compiled = classifier.engine.model, classifier.configured.compiled
    _, depth = read_depths([compiled], model.facts.n_layer)
    return count_weights(model.header, model.tensors.values(), head=compiled.exact, depth=depth)


def count_weights(
    header: GgufHeader, tensors: Collection[TensorInfo], *, head: bool = False, depth: int = 0
) -> Weights:
    """The weights that a decode uses; tensors: of all parts of the file.

    head: whether the decode computes logits. Without a head in the graph neither the head nor the token embeddings
    count, of which single rows are read. depth: the last layer that is computed; 0: all.
    """
    names = {tensor.name for tensor in tensors}
    head_name = "output.weight" if "output.weight" in names else "token_embd.weight"
    n_layer = int(header.scalars.get(f"{header.arch}.block_count", 0))
    last = f"blk.{n_layer - 1}."
    above = tuple(f"blk.{layer}." for layer in range(depth or n_layer, n_layer))
    n_experts = int(header.scalars.get(f"{header.arch}.expert_count", 0)) or 1
    expert_share = int(header.scalars.get(f"{header.arch}.expert_used_count", n_experts)) / n_experts
    n_bytes = n_token = n_row = 0.0
    by_type: Counter[int] = Counter()
    for tensor in tensors:
        is_head = tensor.name == head_name
        if tensor.name.startswith(above):
            continue
        if (is_head and not head) or (not is_head and tensor.name in ("output.weight", "token_embd.weight")):
            continue
        share = expert_share if "_exps." in tensor.name else 1.0
        n_bytes += tensor.n_bytes * share
        if len(tensor.shape) < 2:
            continue
        n_weights = math.prod(tensor.shape) * share
        by_type[tensor.ggml_type] += math.prod(tensor.shape)
        rows_only = tensor.name.startswith(last) and not any(part in tensor.name for part in _FOR_ATTENTION)
        if is_head or rows_only:
            n_row += n_weights
        else:
            n_token += n_weights
    return Weights(
        n_bytes=round(n_bytes),
        n_per_token=round(n_token),
        n_per_row=round(n_row),
        ggml_type=by_type.most_common(1)[0][0],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """The bandwidth and the speed of arithmetic that a device reached."""

    bytes_per_s: float
    operations_per_s: float
    method: ProbeMethod
    """how they were measured"""


def probe_device(index: int, *, n_threads: int, ggml_type: int) -> DeviceRates:
    """Measure a device by its index in `devices`; takes a few seconds and twice COPY_BYTES of its memory.

    Raises DecodeError where it cannot be measured, for example for want of memory.
    """
    copy = probe_copy(index, n_threads=n_threads, n_bytes=COPY_BYTES, budget_s=BUDGET_S)
    product = probe_matmul(
        index,
        n_threads=n_threads,
        ggml_type=ggml_type,
        n_inner=PROBE_SIDE,
        n_rows=PROBE_SIDE,
        n_columns=PROBE_COLUMNS,
        budget_s=BUDGET_S,
    )
    return DeviceRates(
        bytes_per_s=2 * COPY_BYTES / copy.best_s,
        operations_per_s=2 * PROBE_SIDE * PROBE_SIDE * PROBE_COLUMNS / product.best_s,
        method=ProbeMethod(
            device=list(devices())[index].name,
            n_threads=n_threads,
            copy_bytes=COPY_BYTES,
            copy_ms=SampleTimes(best=1e3 * copy.best_s, median=1e3 * copy.median_s),
            matmul_type=gguf.GGMLQuantizationType(ggml_type).name,
            matmul_shape=(PROBE_SIDE, PROBE_SIDE, PROBE_COLUMNS),
            matmul_ms=SampleTimes(best=1e3 * product.best_s, median=1e3 * product.median_s),
        ),
    )


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time of one model's decodes on one device; not known where the device could not be probed."""

    weights: Weights
    rates: DeviceRates | None
    error: str | None = None
    """why there are no rates"""

    def ms(self, *, n_tokens: float, n_rows: float) -> float | None:
        """Milliseconds that a decode of n_tokens tokens takes at least, of which n_rows are read; None if not known."""
        if self.rates is None:
            return None
        n_products = self.weights.n_per_token * n_tokens + self.weights.n_per_row * n_rows
        read_s = self.weights.n_bytes / self.rates.bytes_per_s
        return 1e3 * max(read_s, 2 * n_products / self.rates.operations_per_s)

    def record(self) -> RooflineRecord:
        """The roofline as the benchmark's record has it."""
        rates = self.rates
        return RooflineRecord(
            bytes_per_s=rates.bytes_per_s if rates else None,
            operations_per_s=rates.operations_per_s if rates else None,
            weight_bytes=self.weights.n_bytes,
            n_weights_per_token=self.weights.n_per_token,
            n_weights_per_row=self.weights.n_per_row,
            weight_type=self.weights.type_name,
            method=rates.method if rates else None,
            error=self.error,
        )
