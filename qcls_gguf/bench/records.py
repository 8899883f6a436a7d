"""The record of a benchmark, what `qcls-gguf bench` prints as JSON, and what is shown of it."""

from __future__ import annotations

from ..config.schema import RuntimeConfig
from ..report.document import TEXT, Document, Paragraph, Table, facts, measured, provenance
from ..report.environment import Environment, GpuState
from ..report.record import Record
from ..score.result import ModelInfo
from ..system.timing import STAGES

_MADE = (
    "No queries were given: these are made of words about clothes, in the numbers of tokens that the names of the rows "
    "say. Your queries may be longer, and the times then are others."
)


class Quantiles(Record):
    """Quantiles of times, in ms."""

    min: float
    """the smallest"""
    p50: float
    """the median"""
    p90: float
    """90 % quantile"""
    p99: float
    """99 % quantile"""


class Memory(Record):
    """Memory before and after a classifier's start; null where there is no GPU."""

    rss_before_bytes: int
    """memory of the process before the start"""
    rss_after_bytes: int
    """after the start and the first request"""
    vram_free_before_bytes: int | None
    """free memory of all GPUs"""
    vram_free_after_bytes: int | None
    """after the start and the first request"""


class ClassifierRecord(Record):
    """One configuration: its start, its memory and its first request."""

    name: str
    """the configuration's name, unique in the record"""
    config: str | None
    """the configuration's file"""
    n_prompts: int
    """prompts that a request answers"""
    scoring: tuple[str, ...]
    """the scorings of its prompts, once"""
    runtime: RuntimeConfig
    """the configuration's, with the command's options"""
    model: ModelInfo
    weight_bytes: int
    """weights that a decode reads; of experts the share that a token uses"""
    startup_ms: dict[str, float]
    """by step of the start-up"""
    first_request_ms: float
    """time of the first request"""
    memory: Memory


class MeasuringMethod(Record):
    """How the requests were sent."""

    input: str | None
    """the file of the queries; null where queries were made"""
    n_requests: int
    """of a workload in one repetition"""
    n_warm_up: int
    """requests before them that are not counted"""
    n_repeats: int
    """how often all of it was repeated"""


class Tokens(Record):
    """Tokens of a request, on average."""

    new: float
    """tokens fed to the model"""
    cached: float
    """of the rendered prompts, taken from the cache"""
    least: float
    """the least that any plan must feed: the distinct token paths that are not stored"""


class WorkloadRecord(Record):
    """Requests of one size to one configuration, all repetitions together."""

    name: str
    """configuration, queries and batch"""
    config: str
    """the name of the configuration"""
    queries: str
    """the name of the queries"""
    n_prompts: int
    """prompts that a request answers"""
    batch: int
    """queries of a request"""
    n_requests: int
    """requests that were timed"""
    total_ms: Quantiles
    """time of a request as its caller sees it"""
    p50_runs_ms: tuple[float, ...]
    """the medians of the repetitions"""
    p50_spread: float | None
    """(largest - smallest) / median of p50_runs_ms; null for one repetition"""
    stage_ms: dict[str, Quantiles]
    """by stage of a request"""
    tokens: Tokens
    n_positions: float
    """hidden states that a request reads, on average"""
    n_decodes: float
    """decodes of a request, on average"""
    graph_reuse_rate: float
    """share of the decodes that reused a graph, 0 to 1"""
    cuda_graphs_per_decode: float | None
    """CUDA graphs launched by a decode, on average; null in a build without CUDA"""


class BenchmarkRecord(Record):
    """How long requests take, and where the time goes."""

    environment: Environment
    """when the last request was answered"""
    classifiers: tuple[ClassifierRecord, ...]
    method: MeasuringMethod
    workloads: tuple[WorkloadRecord, ...]
    gpu_before: GpuState | None
    """the GPU before the first request; null where it cannot be queried, or computed nothing"""


def benchmark_document(record: BenchmarkRecord) -> Document:
    """All that is shown of a record: where it was measured, then tables."""
    times = dict.fromkeys(("min", "p50", "p90", "p99"), measured)
    return Document(
        title=f"Benchmark of {', '.join(classifier.name for classifier in record.classifiers)}",
        parts=[
            facts(_facts(record)),
            None if record.method.input else Paragraph(_MADE),
            Table(
                columns={"total ms": TEXT, **times, "spread": ".1%"},
                rows=[
                    [workload.name, ms.min, ms.p50, ms.p90, ms.p99, workload.p50_spread]
                    for workload in record.workloads
                    for ms in [workload.total_ms]
                ],
                note="Spread: the largest less the smallest p50 of the repetitions, by their median.",
            ),
            Table(
                columns={"stages, p50 ms": TEXT, **dict.fromkeys(STAGES, measured)},
                rows=[
                    [workload.name, *(workload.stage_ms[stage].p50 for stage in STAGES)]
                    for workload in record.workloads
                ],
            ),
            Table(
                columns={
                    **{"tokens a request": TEXT, "new": ".1f", "least": ".1f", "cached": ".1f", "decodes": ".1f"},
                    "graphs reused": ".0%",
                },
                rows=[
                    [
                        *(workload.name, workload.tokens.new, workload.tokens.least, workload.tokens.cached),
                        *(workload.n_decodes, workload.graph_reuse_rate),
                    ]
                    for workload in record.workloads
                ],
                note="Least: what any plan must feed, the distinct token paths less those stored.",
            ),
            Table(
                columns={
                    **{"start": TEXT, "start-up ms": measured, "first request ms": measured, "weights MB": measured},
                    **{"RSS MiB": ".0f", "GPU memory MiB": ".0f"},
                },
                rows=[_start_row(classifier) for classifier in record.classifiers],
                note="Weights: what a decode reads of them.",
            ),
        ],
    )


def _start_row(classifier: ClassifierRecord) -> list[object]:
    memory = classifier.memory
    before, after = memory.vram_free_before_bytes, memory.vram_free_after_bytes
    return [
        *(classifier.name, sum(classifier.startup_ms.values()), classifier.first_request_ms),
        *(classifier.weight_bytes / 1e6, memory.rss_after_bytes / 2**20),
        None if before is None or after is None else (before - after) / 2**20,
    ]


def _facts(record: BenchmarkRecord) -> dict[str, str]:
    """Where and how it was measured."""
    method, model = record.method, record.classifiers[0].model
    sent = f"{method.n_requests} × {method.n_repeats} of a kind, one when the last is answered, configurations in turns"
    texts = {**provenance(model, record.environment), "requests": sent}
    if model.n_gpu_layers:
        texts["GPU"] = f"before: {_gpu_text(record.gpu_before)}; after: {_gpu_text(record.environment.gpu)}"
    return texts


def _gpu_text(gpu: GpuState | None) -> str:
    if gpu is None:
        return "not known (needs the extra `bench`)"
    held = f", held down by {', '.join(gpu.throttle_reasons)}" if gpu.throttle_reasons else ""
    return f"{gpu.sm_mhz} of {gpu.max_sm_mhz} MHz{held}"
