"""Requests and their times, in a closed loop (one after the other) or an open one (at a fixed rate of arrivals)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

from ..classifier import Classifier
from ..score.result import Counts
from ..system.timing import STAGES


@dataclass(slots=True, kw_only=True)
class Samples:
    """What the requests of one workload took; each list has a value for every request."""

    total_ms: list[float] = field(default_factory=list)
    """from the arrival of a request until its answer"""
    wait_ms: list[float] = field(default_factory=list)
    """of that, until the request was begun; empty in a closed loop"""
    stage_ms: dict[str, list[float]] = field(default_factory=lambda: {stage: [] for stage in STAGES})
    counts: list[Counts] = field(default_factory=list)
    elapsed_s: float = 0.0
    """from the first arrival to the last answer; 0 in a closed loop"""
    n_reused: int = 0
    """decodes that found their graph built"""
    n_cuda_graphs: int | None = None
    """CUDA graphs that were launched; None in a build without CUDA"""
    stages: Counter[str] = field(default_factory=Counter)
    """answers to prompts by the stage of a cascade that gave them; none without a cascade"""

    def extend(self, other: Samples) -> None:
        """Add the requests of another repetition."""
        self.total_ms += other.total_ms
        self.wait_ms += other.wait_ms
        for stage, values in self.stage_ms.items():
            values += other.stage_ms[stage]
        self.counts += other.counts
        self.elapsed_s += other.elapsed_s
        self.n_reused += other.n_reused
        self.stages += other.stages
        if other.n_cuda_graphs is not None:
            self.n_cuda_graphs = (self.n_cuda_graphs or 0) + other.n_cuda_graphs


class Runner:
    """Sends requests to a classifier in a cycle, and keeps what they took."""

    def __init__(self, classifier: Classifier, requests: Sequence[Sequence[str]]) -> None:
        self._classifier = classifier
        self._requests = requests
        self._n_sent = 0
        self.samples = Samples()

    def send(self, arrival_ns: int | None = None) -> None:
        """One request; it arrived at arrival_ns on the clock of perf_counter_ns, or arrives now."""
        context = self._classifier.engine.context
        queries = self._requests[self._n_sent % len(self._requests)]
        self._n_sent += 1
        before = context.counters()
        begun = perf_counter_ns()
        results = self._classifier.classify_batch(queries)
        ended = perf_counter_ns()
        result, samples = results[0], self.samples
        samples.stages.update(answer.stage for each in results for answer in each.results if answer.stage is not None)
        after = context.counters()
        samples.n_reused += after.n_graphs_reused - before.n_graphs_reused
        if after.n_cuda_graphs >= 0:
            samples.n_cuda_graphs = (samples.n_cuda_graphs or 0) + after.n_cuda_graphs - before.n_cuda_graphs
        if arrival_ns is not None:
            samples.wait_ms.append((begun - arrival_ns) / 1e6)
        samples.total_ms.append((ended - (begun if arrival_ns is None else arrival_ns)) / 1e6)
        for stage, ms in result.stage_ms.items():
            samples.stage_ms[stage].append(ms)
        samples.counts.append(result.counts)

    def warm_up(self, n: int) -> None:
        """Send n requests that are not counted."""
        for _ in range(n):
            self.send()
        self._n_sent = 0
        self.samples = Samples()


def closed_loop(runners: Sequence[Runner], n_requests: int, on_request: Callable[[], None]) -> None:
    """Send n_requests to each runner, in turns, so that a machine that becomes slower or faster affects all alike."""
    for _ in range(n_requests):
        for runner in runners:
            runner.send()
            on_request()


def open_loop(runner: Runner, n_requests: int, rate: float, on_request: Callable[[], None]) -> None:
    """Send n_requests that arrive at equal intervals, `rate` a second, whether or not the one before is answered.

    They form one queue. A request's time begins when it arrives, so that its wait for others counts.
    """
    start = perf_counter_ns()
    for i in range(n_requests):
        arrival = start + round(i * 1e9 / rate)
        ahead = arrival - perf_counter_ns()
        if ahead > 0:
            time.sleep(ahead / 1e9)
        runner.send(arrival)
        on_request()
    runner.samples.elapsed_s += (perf_counter_ns() - start) / 1e9
