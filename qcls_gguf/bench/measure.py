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
from .least_tokens import least_tokens
from .load import Runner, Samples, closed_loop, open_loop
from .subject import Subject, request_ms
from .workloads import requests_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What is to be measured."""

    configs: tuple[Config, ...]
    input: str | None = None
    """a file of queries; none: queries of query_tokens tokens are made"""
    query_tokens: tuple[range, ...] = (range(2, 10),)
    batches: tuple[int, ...] = (1,)
    rate: float | None = None
    """requests that arrive in a second; none: the next when the answer is there"""
    n_requests: int = 100
    """of each workload in each repetition"""
    n_warm_up: int = 5
    n_repeats: int = 3
    idle_s: float = 0.0
    """silence before a single request; 0: not measured"""
    forward: bool = False
    forward_tokens: tuple[int, ...] | None = None
    ab: Literal["off", "on", "where possible"] = "off"
    """with forward: the variants of the CUDA kernels in turns"""
    sms: int | None = None
    """multiprocessors to compute on; none: the whole device"""
    offline: bool = False


@dataclass(slots=True, kw_only=True)
class Workload:
    """Requests of one size to one classifier, and their samples by repetition."""

    subject: Subject
    queries: str
    batch: int
    requests: list[list[str]]
    least: float
    """tokens that any plan must feed for a request, on average"""
    runs: list[Samples] = field(default_factory=list)


def check(wanted: Benchmark) -> None:
    """Refuse what a configuration does not allow, before anything is loaded. Raises ConfigError."""
    for config in wanted.configs:
        runtime, place = config.runtime, config.path or "the configuration"
        if (batch := max(wanted.batches)) > runtime.max_batch:
            raise ConfigError(
                f"`batch` {batch}: {place} has runtime.max_batch: {runtime.max_batch}: raise it, or choose a "
                "smaller batch"
            )
        if (
            wanted.input is None
            and (n := max(lengths[-1] for lengths in wanted.query_tokens)) > runtime.max_query_tokens
        ):
            raise ConfigError(
                f"`query_tokens` {n}: {place} has runtime.max_query_tokens: {runtime.max_query_tokens}: raise it, or "
                "choose shorter queries"
            )
    if wanted.ab == "on" and (why := why_no_steps()):
        raise ConfigError(f"`ab`: {why}")


def measure(wanted: Benchmark, group: Sequence[Subject], on_progress: OnProgress) -> list[Workload]:
    """The workloads of a group of classifiers; those of one size run in turns, request by request."""
    by_size: list[list[Workload]] = []
    for index in range(len(group[0].sets)):
        for batch in wanted.batches:
            row = []
            for subject in group:
                queries = subject.sets[index]
                requests = requests_of(queries.queries, batch)
                row.append(
                    Workload(
                        subject=subject,
                        queries=queries.name,
                        batch=batch,
                        requests=requests,
                        least=_least(subject.classifier, requests, wanted.n_requests),
                    )
                )
            by_size.append(row)
    part = "requests" if len(group) > 1 else f"requests, {group[0].name}"
    n_all = wanted.n_repeats * wanted.n_requests * len(group) * len(by_size)
    count = counter(on_progress, part, n_all)
    for _ in range(wanted.n_repeats):
        for row in by_size:
            runners = [Runner(workload.subject.classifier, workload.requests) for workload in row]
            if wanted.rate is None:
                for runner in runners:
                    runner.warm_up(wanted.n_warm_up)
                closed_loop(runners, wanted.n_requests, count)
            else:
                for runner in runners:
                    runner.warm_up(wanted.n_warm_up)
                    open_loop(runner, wanted.n_requests, wanted.rate, count)
            for workload, runner in zip(row, runners, strict=True):
                workload.runs.append(runner.samples)
        if wanted.idle_s:
            for workload in by_size[0]:
                time.sleep(wanted.idle_s)
                workload.subject.after_idle_ms.append(request_ms(workload.subject.classifier, workload.requests[0]))
    return [workload for row in by_size for workload in row]


def _least(classifier: Classifier, requests: Sequence[Sequence[str]], n_requests: int) -> float:
    """The mean over the requests as they are sent, in a cycle."""
    tokenizer, prompts = classifier.parts.engine.model, classifier.prompts

    def fragments(query: str) -> list[list[int]]:
        return [tokenizer.tokenize(p.before + query + p.after, parse_special=False).tolist() for p in prompts]

    found = [least_tokens(prompts, map(fragments, request)) for request in requests[:n_requests]]
    return fmean(found[i % len(found)] for i in range(n_requests))
