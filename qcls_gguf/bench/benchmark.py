"""A benchmark: requests to one or more classifiers in turns, then the record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from statistics import fmean
from time import perf_counter_ns

import numpy as np

from ..classifier import Classifier
from ..config.schema import Config
from ..data.rows import PLAIN, Reading
from ..errors import ConfigError, PlanError
from ..model.header import GgufHeader, TensorInfo
from ..opening import ClassifierOpener
from ..prompts.prompt_set import read_depths
from ..report.environment import environment, gpu_free_bytes, gpu_state, rss_bytes
from ..statistics import quantiles, spread
from . import records
from .workloads import QuerySet, Workload, file_queries, least_tokens, made_queries, requests_of, send_in_turns


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSettings:
    """What is measured, and how."""

    configs: tuple[Config, ...]
    input: str | None = None
    """a file of queries, or - for standard input; None: queries of query_tokens tokens are made"""
    reading: Reading = PLAIN
    """of that file"""
    query_tokens: tuple[range, ...] = (range(2, 10),)
    """lengths of queries that are made, a set of queries for each range"""
    batches: tuple[int, ...] = (1,)
    n_requests: int = 100
    """of each workload in each repetition"""
    n_warm_up: int = 5
    n_repeats: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A classifier under measurement, and what its start took."""

    name: str
    classifier: Classifier
    query_sets: tuple[QuerySet, ...]
    first_request_ms: float
    memory: records.Memory


def benchmark(settings: BenchmarkSettings, opener: ClassifierOpener) -> records.BenchmarkRecord:
    """Measure, and return the record that `qcls-gguf bench` prints as JSON. All classifiers are open together.

    Raises ConfigError for what cannot be measured, before anything is; and what Classifier raises.
    """
    _check_settings(settings)
    queries = None if settings.input is None else file_queries(settings.input, settings.reading)
    with ExitStack() as stack:
        classifiers = [
            stack.enter_context(_started(name, config, settings, queries, opener))
            for name, config in zip(_names(settings.configs), settings.configs, strict=True)
        ]
        first = classifiers[0].classifier
        gpu_before = gpu_state() if first.model.n_gpu_layers else None
        workloads = _measure(settings, classifiers, opener)
        where = environment(first.config)
    return records.BenchmarkRecord(
        environment=where,
        classifiers=tuple(map(_classifier_record, classifiers)),
        method=records.MeasuringMethod(
            input=settings.input,
            n_requests=settings.n_requests,
            n_warm_up=settings.n_warm_up,
            n_repeats=settings.n_repeats,
        ),
        workloads=tuple(_workload_record(workload, settings.n_repeats) for workload in workloads),
        gpu_before=gpu_before,
    )


def _check_settings(settings: BenchmarkSettings) -> None:
    """Refuse what a configuration does not allow, before anything is loaded. Raises ConfigError."""
    batch, n = max(settings.batches), max(lengths[-1] for lengths in settings.query_tokens)
    for config in settings.configs:
        runtime, place = config.runtime, config.path or "the configuration"
        if batch > runtime.max_batch:
            raise ConfigError(
                f"`batch` {batch}: {place} has runtime.max_batch: {runtime.max_batch}: raise it, or choose a "
                "smaller batch"
            )
        if settings.input is None and n > runtime.max_query_tokens:
            raise ConfigError(
                f"`query_tokens` {n}: {place} has runtime.max_query_tokens: {runtime.max_query_tokens}: raise it, or "
                "choose shorter queries"
            )


def _names(configs: Sequence[Config]) -> list[str]:
    """A name for each configuration: its file's, with a number where that is not the first of the name."""
    stems = [config.path.stem if config.path else "config" for config in configs]
    numbers = [stems[:index].count(stem) for index, stem in enumerate(stems, 1)]
    return [stem if n == 1 else f"{stem} ({n})" for stem, n in zip(stems, numbers, strict=True)]


@contextmanager
def _started(
    name: str, config: Config, settings: BenchmarkSettings, queries: QuerySet | None, opener: ClassifierOpener
) -> Iterator[_Target]:
    """A classifier after its first request, its queries checked; closed in the end. Raises what Classifier raises."""
    free_before, rss_before = gpu_free_bytes(), rss_bytes()
    with opener.open(config) as classifier:
        made = [made_queries(classifier.engine.model, lengths) for lengths in settings.query_tokens]
        query_sets = (queries,) if queries else tuple(made)
        for each in query_sets:
            _check_queries(classifier, each, max(settings.batches))
        begun = perf_counter_ns()
        classifier.classify_batch(query_sets[0].queries[: settings.batches[0]])
        yield _Target(
            name=name,
            classifier=classifier,
            query_sets=query_sets,
            first_request_ms=(perf_counter_ns() - begun) / 1e6,
            memory=records.Memory(
                rss_before_bytes=rss_before,
                rss_after_bytes=rss_bytes(),
                vram_free_before_bytes=free_before,
                vram_free_after_bytes=gpu_free_bytes(),
            ),
        )


def _check_queries(classifier: Classifier, queries: QuerySet, largest_batch: int) -> None:
    if len(queries.queries) < largest_batch:
        raise ConfigError(
            f"{queries.name}: {len(queries.queries)} different queries are too few for `batch` {largest_batch}, whose "
            "queries must differ: give more of them, or a smaller batch"
        )
    for number, query in enumerate(queries.queries, 1):
        try:
            classifier.check(query)
        except PlanError as e:
            raise ConfigError(f"{queries.name}: query {number}: {e}") from None


def _measure(settings: BenchmarkSettings, classifiers: Sequence[_Target], opener: ClassifierOpener) -> list[Workload]:
    """The workloads of all classifiers; those of one size run in turns, request by request."""
    sizes = [
        [_workload(settings, measured, index, batch) for measured in classifiers]
        for index in range(len(classifiers[0].query_sets))
        for batch in settings.batches
    ]
    n_requests = settings.n_repeats * settings.n_requests * len(classifiers) * len(sizes)
    sent = count(1)
    for _ in range(settings.n_repeats):
        for workloads in sizes:
            for workload in workloads:
                workload.warm_up(settings.n_warm_up)
            send_in_turns(
                workloads, settings.n_requests, lambda: opener.on_progress("requests", next(sent), n_requests)
            )
    return [workload for workloads in sizes for workload in workloads]


def _workload(settings: BenchmarkSettings, measured: _Target, index: int, batch: int) -> Workload:
    queries, classifier = measured.query_sets[index], measured.classifier
    requests, prompts, tokenizer = requests_of(queries.queries, batch), classifier.prompts, classifier.engine.model
    least = [
        least_tokens(prompts, [[prompt.fragment_tokens(tokenizer, query) for prompt in prompts] for query in request])
        for request in requests[: settings.n_requests]
    ]
    return Workload(
        config=measured.name,
        classifier=classifier,
        queries=queries.name,
        requests=requests,
        least_tokens=fmean(least[i % len(least)] for i in range(settings.n_requests)),
    )


def _classifier_record(measured: _Target) -> records.ClassifierRecord:
    config = measured.classifier.config
    return records.ClassifierRecord(
        name=measured.name,
        config=str(config.path) if config.path else None,
        n_prompts=len(measured.classifier.prompts),
        scoring=tuple(sorted({prompt.scoring for prompt in config.prompts})),
        runtime=config.runtime,
        model=measured.classifier.model,
        weight_bytes=_weight_bytes(measured.classifier),
        startup_ms=measured.classifier.startup_ms,
        first_request_ms=measured.first_request_ms,
        memory=measured.memory,
    )


def _weight_bytes(classifier: Classifier) -> int:
    """The bytes of the weights that a decode reads: those of its layers, and the head where logits are computed."""
    model, compiled = classifier.engine.model, classifier.configured.compiled
    return weight_bytes(
        model.header,
        model.file.tensors.values(),
        head=compiled.exact,
        depth=read_depths([compiled], model.facts.n_layer)[1],
    )


def weight_bytes(header: GgufHeader, tensors: Collection[TensorInfo], *, head: bool = False, depth: int = 0) -> int:
    """The bytes of a file's weights that a decode uses; tensors: of all parts of the file.

    Experts count by the share of them that a token uses. head: whether the decode computes logits; without it neither
    the head nor the token embeddings count, of which single rows are read. depth: the last layer computed; 0: all.
    """
    names = {tensor.name for tensor in tensors}
    head_name = "output.weight" if "output.weight" in names else "token_embd.weight"
    n_layer = int(header.scalars.get(f"{header.arch}.block_count", 0))
    n_experts = int(header.scalars.get(f"{header.arch}.expert_count", 0)) or 1
    expert_share = int(header.scalars.get(f"{header.arch}.expert_used_count", n_experts)) / n_experts
    unread = tuple(f"blk.{layer}." for layer in range(depth or n_layer, n_layer))
    unread += tuple({"output.weight", "token_embd.weight"} - {head_name if head else ""})
    n_bytes = sum(
        tensor.n_bytes * (expert_share if "_exps." in tensor.name else 1.0)
        for tensor in tensors
        if not tensor.name.startswith(unread)
    )
    return round(n_bytes)


def _quantiles(values: Sequence[float]) -> records.Quantiles:
    least, p50, p90, p99 = quantiles(values, 0, 0.5, 0.9, 0.99)
    return records.Quantiles(min=least, p50=p50, p90=p90, p99=p99)


def _workload_record(workload: Workload, n_repeats: int) -> records.WorkloadRecord:
    counts, n_reused, n_cuda_graphs = workload.counts, workload.n_reused, workload.n_cuda_graphs
    p50_runs: list[float] = np.median(np.reshape(workload.total_ms, (n_repeats, -1)), axis=1).tolist()
    n_decodes = sum(count.n_decodes for count in counts)
    return records.WorkloadRecord(
        name=f"{workload.config}, {workload.queries}, batch {workload.batch}",
        config=workload.config,
        queries=workload.queries,
        n_prompts=len(workload.classifier.prompts),
        batch=workload.batch,
        n_requests=len(counts),
        total_ms=_quantiles(workload.total_ms),
        p50_runs_ms=tuple(p50_runs),
        p50_spread=spread(p50_runs),
        stage_ms={stage: _quantiles(values) for stage, values in workload.stage_ms.items()},
        tokens=records.Tokens(
            new=fmean(count.n_tokens_new for count in counts),
            cached=fmean(count.n_tokens_cached for count in counts),
            least=workload.least_tokens,
        ),
        n_positions=fmean(count.n_positions for count in counts),
        n_decodes=n_decodes / len(counts),
        graph_reuse_rate=n_reused / n_decodes,
        cuda_graphs_per_decode=None if n_cuda_graphs is None else n_cuda_graphs / n_decodes,
    )
