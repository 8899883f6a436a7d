"""A benchmark from its classifiers to its record: measure in groups, then probe the device, then put it together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ..config.schema import Config
from ..engine.capacity import n_threads
from ..errors import ConfigError, DecodeError, PlanError
from ..native import devices
from ..native.kernel_steps import why_no_steps
from ..native.sm_slice import slice_device
from ..report.environment import environment
from ..report.gpu import GpuRun, GpuState, gpu_state, watched_gpu, why_no_gpu
from ..report.machine import gpu_free_bytes, peak_rss_bytes, rss_bytes
from ..report.progress import OnProgress, counter
from .ab import Size, ab_record, compare_variants
from .forward import forward_record, forward_tokens, sweep
from .load import Samples
from .measure import Benchmark, Workload, check, measure
from .roofline import Floor, Rates, decode_weights, probe_device
from .stats import quantile_curve, ratio, spread, summary
from .subject import Asked, Subject, groups, started
from .workloads import file_queries


def benchmark(
    wanted: Benchmark,
    *,
    on_step: Callable[[str, str, float], None] | None = None,
    on_load: Callable[[float], None] | None = None,
    on_progress: OnProgress = lambda part, done, total: None,
) -> dict[str, Any]:
    """The record of a benchmark, as `qcls-gguf bench` prints it as JSON.

    Raises ConfigError for what cannot be measured, before anything is; and what Classifier raises.
    """
    if wanted.sms is not None:
        slice_device(wanted.sms)  # before anything asks for a device
    check(wanted)
    asked = Asked(
        given=None if wanted.input is None else file_queries(wanted.input),
        lengths=wanted.query_tokens,
        first_batch=wanted.batches[0],
        largest_batch=max(wanted.batches),
    )

    def open_one(name: str, config: Config) -> AbstractContextManager[Subject]:
        return started(name, config, asked, offline=wanted.offline, on_step=on_step, on_load=on_load)

    before = _gpu_record(gpu_state())
    subjects: list[Subject] = []
    workloads: list[Workload] = []
    forward: dict[int, list[float]] | None = None
    ab: dict[int, Size] | None = None
    n_groups = 0
    during = GpuRun()
    with closing(groups(wanted.configs, open_one)) as each:
        for group in each:
            n_groups += 1
            sizes: tuple[int, ...] = ()
            with_ab = False
            if wanted.forward and forward is None:
                sizes = forward_tokens(group[0].classifier, wanted.forward_tokens)
                with_ab = _compares_variants(wanted, group[0])
            with watched_gpu(during) if group[0].classifier.model.n_gpu_layers else nullcontext():
                workloads += measure(wanted, group, on_progress)
                if sizes:
                    n_rounds = max(1, wanted.n_requests // 10)
                    count = counter(on_progress, "forward", n_rounds * len(sizes))
                    forward = sweep(group[0].classifier, sizes, n_rounds, count)
                if with_ab:
                    count = counter(on_progress, "kernels in turns", n_rounds * len(sizes))
                    ab = compare_variants(group[0].classifier, sizes, n_rounds, count)
            subjects += group
    memory = {"rss_bytes": rss_bytes(), "peak_rss_bytes": peak_rss_bytes()}
    after = _gpu_record(gpu_state())
    floors = _floors(subjects)
    first = subjects[0].classifier
    return {
        "environment": environment(first.parts.config, first.model).to_dict(),
        "startup_ms": first.startup_ms,
        "classifiers": [_subject_record(subject, floors[subject.name], wanted.idle_s) for subject in subjects],
        "method": {
            "loop": "closed" if wanted.rate is None else "open",
            "rate": wanted.rate,
            "order": "one classifier after the other" if n_groups > 1 or wanted.rate else "classifiers in turns",
            "input": wanted.input,
            "n_requests": wanted.n_requests,
            "n_warm_up": wanted.n_warm_up,
            "n_repeats": wanted.n_repeats,
        },
        "workloads": [_workload_record(workload, floors[workload.subject.name], wanted) for workload in workloads],
        "forward": forward and forward_record(first, forward, floors[subjects[0].name]),
        "forward_ab": ab and ab_record(first, ab),
        "memory": memory,
        "gpu": {"before": before, "during": during.to_dict(), "after": after, "not_known": why_no_gpu()},
    }


def _gpu_record(state: GpuState | None) -> dict[str, Any]:
    return {"vram_free_bytes": gpu_free_bytes(), "gpu": state and asdict(state)}


def _compares_variants(wanted: Benchmark, subject: Subject) -> bool:
    """Whether the kernels' variants are to be compared on a classifier. Raises ConfigError where they cannot be."""
    if wanted.ab == "off":
        return False
    why = why_no_steps()
    if why is None and not subject.classifier.model.n_gpu_layers:
        why = "no layer of the model is on the GPU: set runtime.n_gpu_layers to auto or all, or free its memory"
    if why and wanted.ab == "on":
        raise ConfigError(f"`ab`: {why}")
    return why is None


def _floors(subjects: Sequence[Subject]) -> dict[str, Floor]:
    """Each classifier's floor; equal devices and types are probed once, when no classifier holds memory."""
    rates: dict[tuple[int, int, int], Rates | str] = {}
    floors = {}
    for subject in subjects:
        model, config = subject.classifier.model, subject.classifier.parts.config
        kinds = ("GPU", "iGPU") if model.n_gpu_layers else ("CPU",)
        index = next(i for i, device in enumerate(devices()) if device.kind in kinds)
        weights = decode_weights(Path(model.path), head=subject.exact)
        key = index, n_threads(config.runtime), weights.ggml_type
        if key not in rates:
            try:
                rates[key] = probe_device(index, n_threads=key[1], ggml_type=weights.ggml_type)
            except (DecodeError, PlanError) as e:  # what was measured before is worth more than its floor
                rates[key] = str(e)
        found = rates[key]
        floors[subject.name] = (
            Floor(weights=weights, rates=None, error=found)
            if isinstance(found, str)
            else Floor(weights=weights, rates=found)
        )
    return floors


def _subject_record(subject: Subject, floor: Floor, idle_s: float) -> dict[str, Any]:
    config = subject.classifier.parts.config
    return {
        "name": subject.name,
        "config": config.path and str(config.path),
        "n_prompts": len(subject.classifier.prompts),
        "scoring": sorted({prompt.scoring for prompt in config.prompts}),
        "runtime": asdict(config.runtime),
        "model": asdict(subject.classifier.model),
        "startup_ms": subject.classifier.startup_ms,
        "first_request_ms": subject.first_request_ms,
        "after_idle": {"idle_s": idle_s, "ms": subject.after_idle_ms} if idle_s else None,
        "memory": subject.memory,
        "floor": floor.to_dict(),
    }


def _workload_record(workload: Workload, floor: Floor, wanted: Benchmark) -> dict[str, Any]:
    samples = Samples()
    for run in workload.runs:
        samples.extend(run)
    subject, counts = workload.subject, samples.counts
    n_rows = fmean(each.n_positions for each in counts)
    service = [
        total - wait for total, wait in zip(samples.total_ms, samples.wait_ms or [0.0] * len(counts), strict=True)
    ]
    floor_ms = floor.ms(n_tokens=workload.least, n_rows=n_rows)
    p50_runs = [summary(run.total_ms)["p50"] for run in workload.runs]
    n_decodes = sum(each.n_decodes for each in counts)
    record: dict[str, Any] = {
        "name": f"{subject.name}, {workload.queries}, batch {workload.batch}",
        "config": subject.name,
        "queries": workload.queries,
        "n_prompts": len(subject.classifier.prompts),
        "batch": workload.batch,
        "n_requests": len(counts),
        "total_ms": summary(samples.total_ms),
        "total_ms_quantiles": quantile_curve(samples.total_ms),
        "p50_runs_ms": p50_runs,
        "p50_spread": spread(p50_runs),
        "stage_ms": {stage: summary(values) for stage, values in samples.stage_ms.items()},
        "tokens": {
            "new": fmean(each.n_tokens_new for each in counts),
            "cached": fmean(each.n_tokens_cached for each in counts),
            "padded": 0.0,  # every shape is exact; README says why
            "least": workload.least,
        },
        "n_positions": n_rows,
        "n_decodes": n_decodes / len(counts),
        "graph_reuse_rate": samples.n_reused / n_decodes,
        "cuda_graphs_per_decode": None if samples.n_cuda_graphs is None else samples.n_cuda_graphs / n_decodes,
        "floor_ms": floor_ms,
        "floor_ratio": ratio(summary(service)["p50"], floor_ms),
    }
    if wanted.rate is not None:
        record |= {
            "rate": wanted.rate,
            "achieved_rate": len(counts) / samples.elapsed_s,
            "utilization": sum(service) / 1e3 / samples.elapsed_s,
            "wait_ms": summary(samples.wait_ms),
            "service_ms": summary(service),
        }
    return record
