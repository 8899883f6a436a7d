"""The record of a benchmark, what `qcls-gguf bench` prints as JSON, and what is shown of it."""

from pydantic import Field

from ..config.schema import RuntimeConfig
from ..report.document import TEXT, Document, Paragraph, Table, facts, measured, provenance
from ..report.environment import Environment
from ..report.record import Record
from ..score.result import STAGES, ModelInfo

_BUILT_IN = (
    "No queries were given: these are about clothes and short. Yours may be longer, and the times then are others."
)


class Quantiles(Record):
    """Quantiles of times, in ms."""

    min: float = Field(description="the smallest")
    p50: float = Field(description="the median")
    p90: float = Field(description="90 % quantile")
    p99: float = Field(description="99 % quantile")


class ClassifierRecord(Record):
    """One configuration: its start, its memory and its first request."""

    name: str = Field(description="the configuration's name, unique in the record")
    config: str | None = Field(description="the configuration's file")
    n_prompts: int = Field(description="prompts that a request answers")
    scoring: tuple[str, ...] = Field(description="the scorings of its prompts, once")
    runtime: RuntimeConfig = Field(description="the configuration's, with the command's options")
    model: ModelInfo
    weight_bytes: int = Field(
        description="weights of the layers that are computed, of experts all; and of the head where it is"
    )
    startup_ms: dict[str, float] = Field(description="by step of the start-up")
    first_request_ms: float = Field(description="time of the first request")
    rss_bytes: int = Field(description="memory of the process after the start and the first request")
    gpu_bytes: int | None = Field(description="what that took of the GPUs' free memory; null where there is none")


class WorkloadRecord(Record):
    """Requests of one size to one configuration, all repetitions together; counts are means of a request."""

    name: str = Field(description="configuration and batch")
    config: str = Field(description="the name of the configuration")
    n_prompts: int = Field(description="prompts that a request answers")
    batch: int = Field(description="queries of a request")
    n_requests: int = Field(description="requests that were timed")
    total_ms: Quantiles = Field(description="time of a request as its caller sees it")
    p50_spread: float | None = Field(description="(largest - smallest) / median of the repetitions' medians, or null")
    stage_ms: dict[str, Quantiles] = Field(description="by stage of a request")
    n_tokens_new: float = Field(description="tokens fed to the model")
    n_tokens_cached: float = Field(description="tokens of the rendered prompts, taken from the cache")
    n_decodes: float = Field(description="decodes")
    graph_reuse_rate: float = Field(description="share of the decodes that reused a graph, 0 to 1")


class BenchmarkRecord(Record):
    """How long requests take, and where the time goes."""

    environment: Environment = Field(description="when the last request was answered")
    classifiers: tuple[ClassifierRecord, ...]
    input: str | None = Field(description="the file of the queries; null where none were given")
    n_requests: int = Field(description="of a workload in one repetition")
    n_warm_up: int = Field(description="requests before them that are not counted")
    n_repeats: int = Field(description="how often all of it was repeated")
    workloads: tuple[WorkloadRecord, ...]


def benchmark_document(record: BenchmarkRecord) -> Document:
    """All that is shown of a record: where and how it was measured, then tables."""
    model, gpu, workloads = record.classifiers[0].model, record.environment.gpu, record.workloads
    sent = f"{record.n_requests} × {record.n_repeats} of a kind, one when the last is answered, configurations in turns"
    conditions = {**provenance(model, record.environment), "requests": sent}
    if model.n_gpu_layers:
        conditions["GPU"] = f"{gpu.sm_mhz} of {gpu.max_sm_mhz} MHz" if gpu else "not known (needs the extra `bench`)"
        if gpu and gpu.throttle_reasons:
            conditions["GPU"] += f", held down by {', '.join(gpu.throttle_reasons)}"
    times = tuple(Quantiles.model_fields)
    tokens = {"new": ".1f", "cached": ".1f", "decodes": ".1f", "graphs reused": ".0%"}
    start = dict.fromkeys(("start-up ms", "first request ms", "weights MB"), measured)
    return Document(
        title=f"Benchmark of {', '.join(classifier.name for classifier in record.classifiers)}",
        parts=[
            facts(conditions),
            None if record.input else Paragraph(_BUILT_IN),
            Table(
                columns={"total ms": TEXT, **dict.fromkeys(times, measured), "spread": ".1%"},
                rows=[
                    [work.name, *(getattr(work.total_ms, name) for name in times), work.p50_spread]
                    for work in workloads
                ],
                note="Spread: the largest less the smallest p50 of the repetitions, by their median.",
            ),
            Table(
                columns={"stages, p50 ms": TEXT, **dict.fromkeys(STAGES, measured)},
                rows=[[work.name, *(work.stage_ms[stage].p50 for stage in STAGES)] for work in workloads],
            ),
            Table(
                columns={"tokens a request": TEXT, **tokens},
                rows=[
                    [work.name, work.n_tokens_new, work.n_tokens_cached, work.n_decodes, work.graph_reuse_rate]
                    for work in workloads
                ],
            ),
            Table(
                columns={"start": TEXT, **start, **dict.fromkeys(("RSS MiB", "GPU memory MiB"), ".0f")},
                rows=[
                    [
                        *(started.name, sum(started.startup_ms.values()), started.first_request_ms),
                        *(started.weight_bytes / 1e6, started.rss_bytes / 2**20),
                        started.gpu_bytes and started.gpu_bytes / 2**20,
                    ]
                    for started in record.classifiers
                ],
                note="Weights: of the layers that are computed.",
            ),
        ],
    )
