"""What a benchmark measures: its settings, its workloads, and the order of their requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from ..classifier import Classifier
from ..config.schema import Config
from ..errors import ConfigError
from ..native.kernel_steps import why_no_steps
from ..report.progress import OnProgress, counter
from .classifiers import MeasuredClassifier, request_ms
from .least_tokens import least_tokens
from .load import Runner, Samples, closed_loop, open_loop
from .workloads import requests_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSettings:
    """What is measured, and how."""

    configs: tuple[Config, ...]
    input: str | None = None
    """a file of queries, or - for standard input; None: queries of query_tokens tokens are made"""
    query_tokens: tuple[range, ...] = (range(2, 10),)
    batches: tuple[int, ...] = (1,)
    rate: float | None = None
    """requests that arrive in a second; None: the next is sent when the answer is there"""
    n_requests: int = 100
    """of each workload in each repetition"""
    n_warm_up: int = 5
    n_repeats: int = 3
    idle_s: float = 0.0
    """length of the silence before a single request; 0: not measured"""
    forward: bool = False
    """also time single decodes over the number of their tokens"""
    forward_tokens: tuple[int, ...] | None = None
    ab: Literal["off", "on", "where possible"] = "off"
    """with forward, also compare the variants of the CUDA kernels; on: everything is measured with the weights in the
    file's order, so that one loaded model serves llama.cpp's kernels, too
    """


@dataclass(slots=True, kw_only=True)
class Workload:
    """Requests of one size to one classifier, and their samples by repetition."""

    measured: MeasuredClassifier
    queries: str
    batch: int
    requests: list[list[str]]
    least_tokens: float
    """tokens that any plan must feed for a request, on average"""
    runs: list[Samples] = field(default_factory=list)
    """by repetition"""


def check_settings(settings: BenchmarkSettings) -> None:
    """Refuse what a configuration does not allow, before anything is loaded. Raises ConfigError."""
    for config in settings.configs:
        runtime, place = config.runtime, config.path or "the configuration"
        if (batch := max(settings.batches)) > runtime.max_batch:
            raise ConfigError(
                f"`batch` {batch}: {place} has runtime.max_batch: {runtime.max_batch}: raise it, or choose a "
                "smaller batch"
            )
        if (
            settings.input is None
            and (n := max(lengths[-1] for lengths in settings.query_tokens)) > runtime.max_query_tokens
        ):
            raise ConfigError(
                f"`query_tokens` {n}: {place} has runtime.max_query_tokens: {runtime.max_query_tokens}: raise it, or "
                "choose shorter queries"
            )
    if settings.ab == "on" and (why := why_no_steps()):
        raise ConfigError(f"`ab`: {why}")


def measure(
    settings: BenchmarkSettings, group: Sequence[MeasuredClassifier], on_progress: OnProgress
) -> list[Workload]:
    """The workloads of a group of classifiers; those of one size run in turns, request by request."""
    by_size: list[list[Workload]] = []
    for index in range(len(group[0].query_sets)):
        for batch in settings.batches:
            row = []
            for measured in group:
                queries = measured.query_sets[index]
                requests = requests_of(queries.queries, batch)
                row.append(
                    Workload(
                        measured=measured,
                        queries=queries.name,
                        batch=batch,
                        requests=requests,
                        least_tokens=_mean_least_tokens(measured.classifier, requests, settings.n_requests),
                    )
                )
            by_size.append(row)
    part = "requests" if len(group) > 1 else f"requests, {group[0].name}"
    n_all = settings.n_repeats * settings.n_requests * len(group) * len(by_size)
    count = counter(on_progress, part, n_all)
    for _ in range(settings.n_repeats):
        for row in by_size:
            runners = [Runner(workload.measured.classifier, workload.requests) for workload in row]
            if settings.rate is None:
                for runner in runners:
                    runner.warm_up(settings.n_warm_up)
                closed_loop(runners, settings.n_requests, count)
            else:
                for runner in runners:
                    runner.warm_up(settings.n_warm_up)
                    open_loop(runner, settings.n_requests, settings.rate, count)
            for workload, runner in zip(row, runners, strict=True):
                workload.runs.append(runner.samples)
        if settings.idle_s:
            for workload in by_size[0]:
                time.sleep(settings.idle_s)
                workload.measured.after_idle_ms.append(request_ms(workload.measured.classifier, workload.requests[0]))
    return [workload for row in by_size for workload in row]


def _mean_least_tokens(classifier: Classifier, requests: Sequence[Sequence[str]], n_requests: int) -> float:
    """The mean over n_requests requests, which are sent in a cycle."""
    tokenizer, prompts = classifier.engine.model, classifier.prompts

    def fragments(query: str) -> list[list[int]]:
        return [tokenizer.tokenize(p.before + query + p.after, parse_special=False).tolist() for p in prompts]

    by_request = [least_tokens(prompts, map(fragments, request)) for request in requests[:n_requests]]
    return fmean(by_request[i % len(by_request)] for i in range(n_requests))
