"""The roofline of a decode: the least time it could take on a device, by bandwidth or by arithmetic.

least_s = max(bytes of the weights it reads / measured bytes_per_s, 2 * weights * tokens / measured operations_per_s)

On a GPU, the bandwidth is that of a copy far larger than the caches, counted as read and written, and the operations
are those of a product of 4096 x 4096 weights of the model's dominant type with 512 columns. On a CPU, the bandwidth is
that of reading as much, and the operations are what the instructions of that type's products reach on registers alone;
where those products are llama.cpp's, a product is measured there, too. The best sample counts. Left out: the
attention and its cache, norms, activations, launches, the host's work, and that smaller matrices and fewer columns
multiply more slowly. So it is below what can be reached, with two exceptions: weights that fit the caches may be read
faster than memory, and of layers split between GPU and CPU all count as the GPU's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection

import gguf

from ..classifier import Classifier
from ..engine.cores import threads
from ..errors import DecodeError, PlanError
from ..model.header import GgufHeader, TensorInfo
from ..model.placement import device_index
from ..native.device import Probed, devices, probe
from ..prompts.prompt_set import read_depths
from .records import ProbeMethod, RooflineRecord, SampleTimes

COPY_BYTES = 256 << 20
PROBE_SIDE = 4096
PROBE_COLUMNS = 512
BUDGET_S = 0.5
# The last layer goes on with the rows that are read alone once attention is done (inp_out_ids in src/llama-graph.cpp).
_FOR_ATTENTION = (".attn_q", ".attn_k", ".attn_v")


def roofline_of(
    classifier: Classifier, probe: Callable[[int, int, str], tuple[float, float, ProbeMethod]]
) -> RooflineRecord:
    """The roofline of its prompts' decodes on its device; without rates where that cannot be measured.

    probe: `probe_device`, or the same from memory.
    """
    model, compiled = classifier.engine.model, classifier.configured.compiled
    _, depth = read_depths([compiled], model.facts.n_layer)
    weights = count_weights(model.header, model.file.tensors.values(), head=compiled.exact, depth=depth)
    n_threads = threads(classifier.config.runtime).n
    try:
        rates = probe(device_index(model.placement), n_threads, weights.weight_type)
    except (DecodeError, PlanError) as e:  # what was measured before is worth more than its roofline
        return weights.model_copy(update={"error": str(e)})
    return weights.model_copy(update=dict(zip(("bytes_per_s", "operations_per_s", "method"), rates, strict=True)))


def count_weights(
    header: GgufHeader, tensors: Collection[TensorInfo], *, head: bool = False, depth: int = 0
) -> RooflineRecord:
    """The weights that a decode uses, without rates; tensors: of all parts of the file.

    Experts count by the share of them that a token uses.

    head: whether the decode computes logits. Without a head in the graph neither the head nor the token embeddings
    count, of which single rows are read. depth: the last layer that is computed; 0: all.
    """
    names = {tensor.name for tensor in tensors}
    head_name = "output.weight" if "output.weight" in names else "token_embd.weight"
    n_layer = int(header.scalars.get(f"{header.arch}.block_count", 0))
    last = f"blk.{(depth or n_layer) - 1}."
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
    return RooflineRecord(
        weight_bytes=round(n_bytes),
        n_weights_per_token=round(n_token),
        n_weights_per_row=round(n_row),
        weight_type=gguf.GGMLQuantizationType(by_type.most_common(1)[0][0]).name,
    )


def probe_device(index: int, n_threads: int, weight_type: str) -> tuple[float, float, ProbeMethod]:
    """(bytes_per_s, operations_per_s, how they were measured) of a device by its index in `devices`.

    Takes a few seconds and twice COPY_BYTES of its memory.

    Raises DecodeError where it cannot be measured, for example for want of memory.
    """
    device = list(devices())[index]
    ggml_type = gguf.GGMLQuantizationType[weight_type].value
    is_cpu = device.kind == "CPU"
    if is_cpu:
        memory = probe("read", index, n_threads=n_threads, n_bytes=COPY_BYTES, budget_s=BUDGET_S)
        read_by_one = probe("read", index, n_threads=1, n_bytes=COPY_BYTES, budget_s=BUDGET_S)
    else:
        memory = probe("copy", index, n_threads=n_threads, n_bytes=COPY_BYTES, budget_s=BUDGET_S)
    multiplied = _multiplications(index, (n_threads, 1), ggml_type) if is_cpu else None
    shape = None if multiplied else (PROBE_SIDE, PROBE_SIDE, PROBE_COLUMNS)
    operations = multiplied[0] if multiplied else _product(index, n_threads, ggml_type)
    return (
        (1 if is_cpu else 2) * COPY_BYTES / memory.best_s,
        (2 * math.prod(shape) if shape else 1e9) / operations.best_s,
        ProbeMethod(
            device=device.name,
            n_threads=n_threads,
            memory_bytes=COPY_BYTES,
            memory_ms=_in_ms(memory),
            weight_type=weight_type,
            product_shape=shape,
            operations_ms=_in_ms(operations),
            bytes_per_s_of_one=COPY_BYTES / read_by_one.best_s if is_cpu else None,
            operations_per_s_of_one=1e9 / multiplied[1].best_s if multiplied else None,
        ),
    )


def _multiplications(index: int, n_threads: tuple[int, ...], ggml_type: int) -> list[Probed] | None:
    """10^9 operations on a CPU's registers, by each number of threads; None where the products are llama.cpp's."""
    try:
        return [probe("multiply", index, n_threads=n, ggml_type=ggml_type, budget_s=BUDGET_S) for n in n_threads]
    except DecodeError:
        return None


def _product(index: int, n_threads: int, ggml_type: int) -> Probed:
    return probe(
        "product",
        index,
        n_threads=n_threads,
        ggml_type=ggml_type,
        n_inner=PROBE_SIDE,
        n_rows=PROBE_SIDE,
        n_columns=PROBE_COLUMNS,
        budget_s=BUDGET_S,
    )


def _in_ms(probed: Probed) -> SampleTimes:
    return SampleTimes(best=1e3 * probed.best_s, median=1e3 * probed.median_s)
