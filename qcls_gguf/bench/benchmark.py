"""A benchmark: requests to one or more classifiers in turns, then the roofline of each, then the record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from ..classifier import Classifier
from ..config.schema import Config
from ..engine.cores import threads
from ..errors import ConfigError, DecodeError, PlanError
from ..model.placement import device_index
from ..opening import ClassifierOpener
from ..report.environment import environment, peak_rss_bytes, rss_bytes
from ..report.gpu import GpuRun, watched_gpu, why_no_gpu
from ..report.progress import OnProgress, counter
from ..statistics import quantiles, spread
from .classifiers import MeasuredClassifier, QuerySource, classifier_groups, request_ms, started_classifier
from .load import Workload, send_in_turns
from .records import (
    AfterIdle,
    BenchmarkRecord,
    ClassifierRecord,
    MeasuringMethod,
    ProcessMemory,
    Quantiles,
    Tokens,
    WorkloadRecord,
)
from .roofline import DeviceRates, Roofline, decode_weights, probe_device
from .workloads import file_queries, least_tokens, requests_of

_CURVE = tuple(i / 20 for i in range(21))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSettings:
    """What is measured, and how."""

    configs: tuple[Config, ...]
    input: str | None = None
    """a file of queries, or - for standard input; None: queries of query_tokens tokens are made"""
    query_column: str | None = None
    """of a table, the column with the queries"""
    query_tokens: tuple[range, ...] = (range(2, 10),)
    batches: tuple[int, ...] = (1,)
    n_requests: int = 100
    """of each workload in each repetition"""
    n_warm_up: int = 5
    n_repeats: int = 3
    idle_s: float = 0.0
    """length of the silence before a single request; 0: not measured"""


def benchmark(
    settings: BenchmarkSettings,
    opener: ClassifierOpener,
    *,
    on_progress: OnProgress = lambda part, done, total: None,
) -> BenchmarkRecord:
    """Measure, and return the record that `qcls-gguf bench` prints as JSON.

    Raises ConfigError for what cannot be measured, before anything is; and what Classifier raises.
    """
    _check_settings(settings)
    source = QuerySource(
        queries=None if settings.input is None else file_queries(settings.input, settings.query_column),
        lengths=settings.query_tokens,
        first_batch=settings.batches[0],
        largest_batch=max(settings.batches),
    )
    gpu = GpuRun()
    groups: list[list[MeasuredClassifier]] = []
    workloads: list[Workload] = []
    opened = classifier_groups(settings.configs, lambda name, config: started_classifier(name, config, source, opener))
    with closing(opened):
        for group in opened:
            groups.append(group)
            with watched_gpu(gpu) if group[0].classifier.model.n_gpu_layers else nullcontext():
                workloads += _measure(settings, group, on_progress)
    rss, peak = rss_bytes(), peak_rss_bytes()
    classifiers = [measured for group in groups for measured in group]
    rooflines = _rooflines(classifiers)  # now that no classifier holds memory
    first = classifiers[0].classifier
    return BenchmarkRecord(
        environment=environment(first.config, first.model),
        startup_ms=first.startup_ms,
        classifiers=tuple(_classifier_record(each, rooflines[each.name], settings.idle_s) for each in classifiers),
        method=MeasuringMethod(
            order="classifiers in turns" if len(groups) == 1 else "one classifier after the other",
            input=settings.input,
            n_requests=settings.n_requests,
            n_warm_up=settings.n_warm_up,
            n_repeats=settings.n_repeats,
        ),
        workloads=tuple(_workload_record(each, rooflines[each.config], settings.n_repeats) for each in workloads),
        # the system counts the peak in coarser steps
        memory=ProcessMemory(rss_bytes=rss, peak_rss_bytes=None if peak is None else max(peak, rss)),
        gpu=gpu.record(),
        gpu_not_known=why_no_gpu(),
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


def _measure(
    settings: BenchmarkSettings, group: Sequence[MeasuredClassifier], on_progress: OnProgress
) -> list[Workload]:
    """The workloads of a group of classifiers; those of one size run in turns, request by request."""
    sizes = [
        [_workload(settings, measured, index, batch) for measured in group]
        for index in range(len(group[0].query_sets))
        for batch in settings.batches
    ]
    part = "requests" if len(group) > 1 else f"requests, {group[0].name}"
    count = counter(on_progress, part, settings.n_repeats * settings.n_requests * len(group) * len(sizes))
    for _ in range(settings.n_repeats):
        for workloads in sizes:
            for workload in workloads:
                workload.warm_up(settings.n_warm_up)
            send_in_turns(workloads, settings.n_requests, count)
        if settings.idle_s:
            for measured, workload in zip(group, sizes[0], strict=True):
                time.sleep(settings.idle_s)
                measured.after_idle_ms.append(request_ms(measured.classifier, workload.requests[0]))
    return [workload for workloads in sizes for workload in workloads]


def _workload(settings: BenchmarkSettings, measured: MeasuredClassifier, index: int, batch: int) -> Workload:
    queries = measured.query_sets[index]
    requests = requests_of(queries.queries, batch)
    return Workload(
        config=measured.name,
        classifier=measured.classifier,
        queries=queries.name,
        requests=requests,
        least_tokens=_mean_least_tokens(measured.classifier, requests, settings.n_requests),
    )


def _mean_least_tokens(classifier: Classifier, requests: Sequence[Sequence[str]], n_requests: int) -> float:
    """The mean over n_requests requests, which are sent in a cycle."""
    tokenizer, prompts = classifier.engine.model, classifier.prompts

    def fragments(query: str) -> list[list[int]]:
        return [tokenizer.tokenize(p.before + query + p.after, parse_special=False).tolist() for p in prompts]

    by_request = [least_tokens(prompts, map(fragments, request)) for request in requests[:n_requests]]
    return fmean(by_request[i % len(by_request)] for i in range(n_requests))


def _rooflines(classifiers: Sequence[MeasuredClassifier]) -> dict[str, Roofline]:
    """Each classifier's roofline, by name; equal devices and types are probed once."""
    rates: dict[tuple[int, int, int], tuple[DeviceRates | None, str | None]] = {}
    rooflines = {}
    for measured in classifiers:
        model, config = measured.classifier.engine.model, measured.classifier.config
        weights = decode_weights(model, head=measured.exact)
        key = device_index(model.placement), threads(config.runtime).n, weights.ggml_type
        if key not in rates:
            try:
                rates[key] = probe_device(key[0], n_threads=key[1], ggml_type=key[2]), None
            except (DecodeError, PlanError) as e:  # what was measured before is worth more than its roofline
                rates[key] = None, str(e)
        rooflines[measured.name] = Roofline(weights, *rates[key])
    return rooflines


def _classifier_record(measured: MeasuredClassifier, roofline: Roofline, idle_s: float) -> ClassifierRecord:
    config = measured.classifier.config
    return ClassifierRecord(
        name=measured.name,
        config=str(config.path) if config.path else None,
        n_prompts=len(measured.classifier.prompts),
        scoring=tuple(sorted({prompt.scoring for prompt in config.prompts})),
        runtime=config.runtime,
        model=measured.classifier.model,
        startup_ms=measured.classifier.startup_ms,
        first_request_ms=measured.first_request_ms,
        after_idle=AfterIdle(idle_s=idle_s, ms=tuple(measured.after_idle_ms)) if idle_s else None,
        memory=measured.memory,
        roofline=roofline.record(),
    )


def _quantiles(values: Sequence[float]) -> Quantiles:
    least, p50, p90, p99 = quantiles(values, 0, 0.5, 0.9, 0.99)
    return Quantiles(min=least, p50=p50, p90=p90, p99=p99)


def _workload_record(workload: Workload, roofline: Roofline, n_repeats: int) -> WorkloadRecord:
    samples, counts = workload.samples, workload.samples.counts
    n_rows = fmean(count.n_positions for count in counts)
    roofline_ms = roofline.ms(n_tokens=workload.least_tokens, n_rows=n_rows)
    p50_runs: list[float] = np.median(np.reshape(samples.total_ms, (n_repeats, -1)), axis=1).tolist()
    n_decodes = sum(count.n_decodes for count in counts)
    total_ms = _quantiles(samples.total_ms)
    return WorkloadRecord(
        name=f"{workload.config}, {workload.queries}, batch {workload.batch}",
        config=workload.config,
        queries=workload.queries,
        n_prompts=len(workload.classifier.prompts),
        batch=workload.batch,
        n_requests=len(counts),
        total_ms=total_ms,
        total_ms_quantiles=quantiles(samples.total_ms, *_CURVE),
        p50_runs_ms=tuple(p50_runs),
        p50_spread=spread(p50_runs),
        stage_ms={stage: _quantiles(values) for stage, values in samples.stage_ms.items()},
        tokens=Tokens(
            new=fmean(count.n_tokens_new for count in counts),
            cached=fmean(count.n_tokens_cached for count in counts),
            least=workload.least_tokens,
        ),
        n_positions=n_rows,
        n_decodes=n_decodes / len(counts),
        graph_reuse_rate=samples.n_reused / n_decodes,
        cuda_graphs_per_decode=None if samples.n_cuda_graphs is None else samples.n_cuda_graphs / n_decodes,
        roofline_ms=roofline_ms,
        roofline_ratio=None if roofline_ms is None else total_ms.p50 / roofline_ms,
        stages={name: n / samples.stages.total() for name, n in samples.stages.items()} or None,
    )
