"""Requests of one size to one classifier, sent in turns with those of others, and what they took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

from ..classifier import Classifier
from ..score.result import Counts
from ..system.timing import STAGES


@dataclass(slots=True, kw_only=True)
class Samples:
    """What requests took; each list has a value for every request."""

    total_ms: list[float] = field(default_factory=list)
    """from the call until the answer"""
    stage_ms: dict[str, list[float]] = field(default_factory=lambda: {stage: [] for stage in STAGES})
    counts: list[Counts] = field(default_factory=list)
    n_reused: int = 0
    """decodes that found their graph built"""
    n_cuda_graphs: int | None = None
    """CUDA graphs that were launched; None in a build without CUDA"""
    stages: Counter[str] = field(default_factory=Counter)
    """answers to prompts by the stage of a cascade that gave them; none without a cascade"""


@dataclass(slots=True, kw_only=True)
class Workload:
    """Requests of one size to one classifier, sent in a cycle, and their samples over all repetitions."""

    config: str
    """the name of the classifier's configuration"""
    classifier: Classifier
    queries: str
    """the name of the queries"""
    requests: list[list[str]]
    """the queries of each"""
    least_tokens: float
    """tokens that any plan must feed for a request, on average"""
    samples: Samples = field(default_factory=Samples)

    @property
    def batch(self) -> int:
        """The number of queries in a request."""
        return len(self.requests[0])

    def warm_up(self, n: int) -> None:
        """Send n requests that are not counted."""
        for i in range(n):
            self.classifier.classify_batch(self.requests[i % len(self.requests)])

    def send(self, number: int) -> None:
        """Send a request by its number, from 0, and keep what it took."""
        context, samples = self.classifier.engine.context, self.samples
        before = context.counters()
        begun = perf_counter_ns()
        results = self.classifier.classify_batch(self.requests[number % len(self.requests)])
        samples.total_ms.append((perf_counter_ns() - begun) / 1e6)
        after = context.counters()
        samples.n_reused += after.n_graphs_reused - before.n_graphs_reused
        if after.n_cuda_graphs >= 0:
            samples.n_cuda_graphs = (samples.n_cuda_graphs or 0) + after.n_cuda_graphs - before.n_cuda_graphs
        for stage, ms in results[0].stage_ms.items():
            samples.stage_ms[stage].append(ms)
        samples.counts.append(results[0].counts)
        samples.stages.update(answer.stage for each in results for answer in each.results if answer.stage is not None)


def send_in_turns(workloads: Sequence[Workload], n_requests: int, on_request: Callable[[], None]) -> None:
    """Send n_requests of each workload, in turns, so that a machine that becomes slower or faster affects all alike.

    The next request is sent when the answer to the last one is there.
    """
    for number in range(n_requests):
        for workload in workloads:
            workload.send(number)
            on_request()
