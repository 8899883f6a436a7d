"""A benchmark from its classifiers to its record: measure the groups, then probe the device, then put it together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from statistics import fmean

from ..config.schema import Config
from ..engine.cores import threads
from ..errors import ConfigError, DecodeError, PlanError
from ..model.placement import device_index
from ..native.kernel_steps import why_no_steps
from ..opening import ClassifierOpener
from ..report.environment import environment
from ..report.gpu import GpuRun, gpu_state, watched_gpu, why_no_gpu
from ..report.machine import gpu_free_bytes, peak_rss_bytes, rss_bytes
from ..report.progress import OnProgress, counter
from .ab import Comparison, compare_variants, variants_record
from .classifiers import MeasuredClassifier, QuerySource, classifier_groups, started_classifier
from .forward import forward_record, forward_tokens, sweep
from .lane_order import why_no_second
from .load import Samples
from .measure import BenchmarkSettings, Workload, check_settings, measure
from .records import (
    AfterIdle,
    BenchmarkRecord,
    ClassifierRecord,
    GpuMoment,
    GpuStates,
    MeasuringMethod,
    OpenLoopWorkload,
    ProcessMemory,
    Tokens,
    WorkloadRecord,
)
from .roofline import DeviceRates, Roofline, decode_weights, probe_device
from .stats import quantile_curve, quantiles, ratio, spread
from .workloads import file_queries


def benchmark(
    settings: BenchmarkSettings,
    opener: ClassifierOpener,
    *,
    on_progress: OnProgress = lambda part, done, total: None,
) -> BenchmarkRecord:
    """Measure, and return the record that `qcls-gguf bench` prints as JSON.

    Raises ConfigError for what cannot be measured, before anything is; and what Classifier raises.
    """
    with opener.models.in_file_order() if settings.forward and settings.ab == "on" else nullcontext():
        return _benchmark(settings, opener, on_progress)


def _benchmark(settings: BenchmarkSettings, opener: ClassifierOpener, on_progress: OnProgress) -> BenchmarkRecord:
    check_settings(settings)
    source = QuerySource(
        queries=None if settings.input is None else file_queries(settings.input),
        lengths=settings.query_tokens,
        first_batch=settings.batches[0],
        largest_batch=max(settings.batches),
    )

    def open_one(name: str, config: Config) -> AbstractContextManager[MeasuredClassifier]:
        return started_classifier(name, config, source, opener)

    before = _gpu_moment()
    measured = _Measured()
    with closing(classifier_groups(settings.configs, open_one)) as groups:
        for group in groups:
            _measure_group(settings, group, measured, on_progress)
    rss, peak = rss_bytes(), peak_rss_bytes()
    # the system counts the peak in coarser steps
    memory = ProcessMemory(rss_bytes=rss, peak_rss_bytes=None if peak is None else max(peak, rss))
    after = _gpu_moment()
    rooflines = _rooflines(measured.classifiers)
    first, roofline = measured.classifiers[0].classifier, rooflines[measured.classifiers[0].name]
    return BenchmarkRecord(
        environment=environment(first.config, first.model),
        startup_ms=first.startup_ms,
        classifiers=tuple(
            _classifier_record(each, rooflines[each.name], settings.idle_s) for each in measured.classifiers
        ),
        method=_method(settings, measured.n_groups),
        workloads=tuple(
            _workload_record(workload, rooflines[workload.measured.name], settings.rate)
            for workload in measured.workloads
        ),
        forward=forward_record(first, measured.forward_ms, roofline) if measured.forward_ms else None,
        forward_ab=variants_record(first, measured.comparison) if measured.comparison else None,
        memory=memory,
        gpu=GpuStates(before=before, during=measured.gpu.record(), after=after, not_known=why_no_gpu()),
    )


@dataclass(slots=True, kw_only=True)
class _Measured:
    """What was measured of the groups so far."""

    n_groups: int = 0
    classifiers: list[MeasuredClassifier] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    forward_ms: dict[int, list[float]] | None = None
    """of decodes of the first classifier, by their tokens"""
    comparison: Comparison | None = None
    """of the kernels, on the first classifier"""
    gpu: GpuRun = field(default_factory=GpuRun)


def _measure_group(
    settings: BenchmarkSettings, group: Sequence[MeasuredClassifier], measured: _Measured, on_progress: OnProgress
) -> None:
    """Measure requests to some classifiers in turns, and with the first of all also bare decodes."""
    first = group[0].classifier
    sizes: tuple[int, ...] = ()
    with_variants = False
    if settings.forward and not measured.n_groups:
        sizes = forward_tokens(first, settings.forward_tokens)
        with_variants = _compares_variants(settings, group[0])
    n_rounds = max(1, settings.n_requests // 10)
    with watched_gpu(measured.gpu) if first.model.n_gpu_layers else nullcontext():
        measured.workloads += measure(settings, group, on_progress)
        if sizes:
            count = counter(on_progress, "forward", n_rounds * len(sizes))
            measured.forward_ms = sweep(first, sizes, n_rounds, count)
        if with_variants:
            count = counter(on_progress, "kernels in turns", n_rounds * len(sizes))
            measured.comparison = compare_variants(first, sizes, n_rounds, count)
    measured.classifiers += group
    measured.n_groups += 1


def _method(settings: BenchmarkSettings, n_groups: int) -> MeasuringMethod:
    return MeasuringMethod(
        loop="closed" if settings.rate is None else "open",
        rate=settings.rate,
        order="one classifier after the other" if n_groups > 1 or settings.rate else "classifiers in turns",
        input=settings.input,
        n_requests=settings.n_requests,
        n_warm_up=settings.n_warm_up,
        n_repeats=settings.n_repeats,
    )


def _gpu_moment() -> GpuMoment:
    return GpuMoment(vram_free_bytes=gpu_free_bytes(), gpu=gpu_state())


def _compares_variants(settings: BenchmarkSettings, measured: MeasuredClassifier) -> bool:
    """Whether the kernels' variants are to be compared on a classifier. Raises ConfigError where they cannot be."""
    if settings.ab == "off":
        return False
    why = why_no_steps()
    if why is None and not measured.classifier.model.n_gpu_layers:
        why = "no layer of the model is on the GPU: set runtime.n_gpu_layers to auto or all, or free its memory"
    if why is None and measured.classifier.model.n_lane_ordered:
        why = why_no_second(measured.classifier.engine.model)
    if why and settings.ab == "on":
        raise ConfigError(f"`ab`: {why}")
    return why is None


def _rooflines(classifiers: Sequence[MeasuredClassifier]) -> dict[str, Roofline]:
    """Each classifier's roofline, by name; equal devices and types are probed once, when no classifier holds memory."""
    rates: dict[tuple[int, int, int], DeviceRates | str] = {}
    rooflines = {}
    for measured in classifiers:
        model, config = measured.classifier.engine.model, measured.classifier.config
        index = device_index(model.placement)
        weights = decode_weights(model, head=measured.exact)
        key = index, threads(config.runtime).n, weights.ggml_type
        if key not in rates:
            try:
                rates[key] = probe_device(index, n_threads=key[1], ggml_type=weights.ggml_type)
            except (DecodeError, PlanError) as e:  # what was measured before is worth more than its roofline
                rates[key] = str(e)
        reached = rates[key]
        rooflines[measured.name] = (
            Roofline(weights=weights, rates=None, error=reached)
            if isinstance(reached, str)
            else Roofline(weights=weights, rates=reached)
        )
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


def _workload_record(workload: Workload, roofline: Roofline, rate: float | None) -> WorkloadRecord:
    samples = Samples()
    for run in workload.runs:
        samples.extend(run)
    measured, counts = workload.measured, samples.counts
    n_rows = fmean(count.n_positions for count in counts)
    service_ms = [
        total - wait for total, wait in zip(samples.total_ms, samples.wait_ms or [0.0] * len(counts), strict=True)
    ]
    roofline_ms = roofline.ms(n_tokens=workload.least_tokens, n_rows=n_rows)
    p50_runs = [quantiles(run.total_ms).p50 for run in workload.runs]
    n_decodes = sum(count.n_decodes for count in counts)
    record = WorkloadRecord(
        name=f"{measured.name}, {workload.queries}, batch {workload.batch}",
        config=measured.name,
        queries=workload.queries,
        n_prompts=len(measured.classifier.prompts),
        batch=workload.batch,
        n_requests=len(counts),
        total_ms=quantiles(samples.total_ms),
        total_ms_quantiles=tuple(quantile_curve(samples.total_ms)),
        p50_runs_ms=tuple(p50_runs),
        p50_spread=spread(p50_runs),
        stage_ms={stage: quantiles(values) for stage, values in samples.stage_ms.items()},
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
        roofline_ratio=ratio(quantiles(service_ms).p50, roofline_ms),
        stages={name: n / samples.stages.total() for name, n in samples.stages.items()} or None,
    )
    if rate is None:
        return record
    return OpenLoopWorkload(
        **dict(record),
        rate=rate,
        achieved_rate=len(counts) / samples.elapsed_s,
        utilization=sum(service_ms) / 1e3 / samples.elapsed_s,
        wait_ms=quantiles(samples.wait_ms),
        service_ms=quantiles(service_ms),
    )
