"""A benchmark: requests to one or more classifiers in turns; its record, which `qcls-gguf bench` prints as JSON."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean
from time import perf_counter_ns

import numpy as np
import psutil
from pydantic import Field

from ..classifier import Classifier
from ..config.schema import Config, RuntimeConfig
from ..errors import ConfigError, PlanError
from ..opening import QUERIES, ClassifierOpener
from ..prompts.prompt_set import read_depths
from ..report.document import TEXT, Document, Paragraph, Table, facts, measured, provenance
from ..report.environment import Environment, environment, free_memory
from ..report.record import Record
from ..score.result import STAGES, Counts, ModelInfo
from ..statistics import quantiles, spread

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
    batch: int = Field(description="queries of a request")
    total_ms: Quantiles = Field(description="time of a request as its caller sees it")
    p50_spread: float | None = Field(description="(largest - smallest) / median of the repetitions' medians, or null")
    stage_ms: dict[str, Quantiles] = Field(description="by stage of a request")
    n_tokens_new: float = Field(description="tokens fed to the model")
    n_tokens_cached: float = Field(description="tokens of the rendered prompts, taken from the cache")
    n_decodes: float = Field(description="decodes")
    graph_reuse_rate: float = Field(description="share of the decodes that reused a graph, 0 to 1")


class Repetitions(Record):
    """How often requests are sent, and of which queries."""

    input: str | None = Field(default=None, description="the file of the queries; null where none were given")
    n_requests: int = Field(default=100, description="of a workload in one repetition")
    n_warm_up: int = Field(default=5, description="requests before them that are not counted")
    n_repeats: int = Field(default=3, description="how often all of it was repeated")


class BenchmarkSettings(Repetitions):
    """What is measured, and how."""

    configs: tuple[Config, ...]
    queries: tuple[str, ...] = QUERIES
    """different ones, as equal queries of a batch would be computed once"""
    batches: tuple[int, ...] = (1,)


class BenchmarkRecord(Repetitions):
    """How long requests take, and where the time goes."""

    environment: Environment = Field(description="when the last request was answered")
    classifiers: tuple[ClassifierRecord, ...]
    workloads: tuple[WorkloadRecord, ...]


@dataclass(slots=True, kw_only=True)
class Workload:
    """Requests of one size to one classifier, sent in a cycle, and what they took: lists with a value a request."""

    config: str
    """the name of the classifier's configuration"""
    classifier: Classifier
    requests: list[list[str]]
    """their queries"""
    total_ms: list[float] = field(default_factory=list)
    """from the call until the answer"""
    stage_ms: dict[str, list[float]] = field(default_factory=lambda: {stage: [] for stage in STAGES})
    counts: list[Counts] = field(default_factory=list)
    n_reused: int = 0
    """decodes that found their graph built"""

    def send(self, number: int) -> None:
        """Send a request by its number, and keep what it took; below 0 it only warms up."""
        context = self.classifier.engine.context
        before, begun = context.counters(), perf_counter_ns()
        results = self.classifier.classify_batch(self.requests[number % len(self.requests)])
        ms = (perf_counter_ns() - begun) / 1e6
        if number < 0:
            return
        self.total_ms.append(ms)
        self.n_reused += context.counters().n_graphs_reused - before.n_graphs_reused
        for stage, ms in results[0].stage_ms.items():
            self.stage_ms[stage].append(ms)
        self.counts.append(results[0].counts)

    def record(self, n_repeats: int) -> WorkloadRecord:
        """What they took, all repetitions together."""
        batch, n_decodes = len(self.requests[0]), sum(counts.n_decodes for counts in self.counts)
        p50_runs: list[float] = np.median(np.reshape(self.total_ms, (n_repeats, -1)), axis=1).tolist()
        return WorkloadRecord(
            name=f"{self.config}, batch {batch}",
            config=self.config,
            batch=batch,
            total_ms=_quantiles(self.total_ms),
            p50_spread=spread(p50_runs),
            stage_ms={stage: _quantiles(values) for stage, values in self.stage_ms.items()},
            n_tokens_new=fmean(counts.n_tokens_new for counts in self.counts),
            n_tokens_cached=fmean(counts.n_tokens_cached for counts in self.counts),
            n_decodes=n_decodes / len(self.counts),
            graph_reuse_rate=self.n_reused / n_decodes,
        )


def benchmark(settings: BenchmarkSettings, opener: ClassifierOpener) -> BenchmarkRecord:
    """Measure, and return the record that `qcls-gguf bench` prints as JSON. All classifiers are open together.

    The next request is sent when the answer to the last one is there; the workloads of a size take turns, so that a
    machine that becomes slower or faster affects all alike. Raises ConfigError for what cannot be measured, before
    anything is; and what Classifier raises.
    """
    batch = max(settings.batches)
    for config in settings.configs:
        if batch > config.runtime.max_batch:
            limit = f"{config.path or 'the configuration'} has runtime.max_batch: {config.runtime.max_batch}"
            raise ConfigError(f"`batch` {batch}: {limit}: raise it, or choose a smaller batch")
    if (n := len(settings.queries)) < batch:
        what = f"{n} different queries are too few for `batch` {batch}, whose queries must differ"
        raise ConfigError(f"{settings.input or 'the built-in queries'}: {what}: give more of them, or a smaller batch")
    stems = [config.path.stem if config.path else "config" for config in settings.configs]
    with ExitStack() as stack:
        sizes: dict[int, list[Workload]] = {batch: [] for batch in settings.batches}
        classifiers = list[ClassifierRecord]()
        for index, (stem, config) in enumerate(zip(stems, settings.configs, strict=True), 1):
            n = stems[:index].count(stem)  # a number where it is not the first of the name
            started, workloads = _started(stem if n == 1 else f"{stem} ({n})", config, settings, opener, stack)
            classifiers.append(started)
            for workload in workloads:
                sizes[len(workload.requests[0])].append(workload)
        numbers = range(-settings.n_warm_up, settings.n_requests)
        turns = [(size, number) for _ in range(settings.n_repeats) for size in sizes.values() for number in numbers]
        for size, number in opener.progress("requests", turns):
            for workload in size:
                workload.send(number)
        return BenchmarkRecord(
            **settings.model_dump(include=set(Repetitions.model_fields)),
            environment=environment(settings.configs[0]),
            classifiers=tuple(classifiers),
            workloads=tuple(workload.record(settings.n_repeats) for size in sizes.values() for workload in size),
        )


def _started(
    name: str, config: Config, settings: BenchmarkSettings, opener: ClassifierOpener, stack: ExitStack
) -> tuple[ClassifierRecord, list[Workload]]:
    """A classifier after its first request, closed with the stack, and its workloads. Raises what Classifier raises."""
    before = free_memory()
    classifier = stack.enter_context(opener.open(config))
    model = classifier.engine.model
    _, depth = read_depths([classifier.compiled], model.facts.n_layer)
    *layers, output = model.file.weights
    for number, query in enumerate(settings.queries, 1):
        try:
            classifier.check(query)
        except PlanError as e:
            raise ConfigError(f"{settings.input or 'the built-in queries'}: query {number}: {e}") from None
    begun = perf_counter_ns()
    classifier.classify_batch(settings.queries[: settings.batches[0]])
    first_request_ms, after = (perf_counter_ns() - begun) / 1e6, free_memory()
    record = ClassifierRecord(
        name=name,
        config=str(config.path) if config.path else None,
        n_prompts=len(classifier.prompts),
        scoring=tuple(sorted({prompt.scoring for prompt in classifier.config.prompts})),
        runtime=classifier.config.runtime,
        model=classifier.model,
        weight_bytes=sum(layers[: depth or None]) + (output if classifier.compiled.exact else 0),
        startup_ms=classifier.startup_ms,
        first_request_ms=first_request_ms,
        rss_bytes=int(psutil.Process().memory_info().rss),
        gpu_bytes=before.free_bytes - after.free_bytes if after.on_gpu else None,
    )
    n = len(settings.queries)
    workloads = []
    for batch in settings.batches:  # a cycle of n requests for n queries
        requests = [[settings.queries[(i * batch + j) % n] for j in range(batch)] for i in range(n)]
        workloads.append(Workload(config=name, classifier=classifier, requests=requests))
    return record, workloads


def _quantiles(values: Sequence[float]) -> Quantiles:
    least, p50, p90, p99 = quantiles(values, 0, 0.5, 0.9, 0.99)
    return Quantiles(min=least, p50=p50, p90=p90, p99=p99)


def benchmark_document(record: BenchmarkRecord) -> Document:
    """All that is shown of a record: where and how it was measured, then tables."""
    model, gpu, workloads = record.classifiers[0].model, record.environment.gpu, record.workloads
    sent = f"{record.n_requests} × {record.n_repeats} of a kind, one when the last is answered, configurations in turns"
    conditions = {**provenance(model, record.environment), "requests": sent}
    if model.n_gpu_layers:
        conditions["GPU"] = f"{gpu.sm_mhz} of {gpu.max_sm_mhz} MHz" if gpu else "not known (nvidia-smi says nothing)"
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
