"""What the service counts, by Prometheus' conventions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..score.result import Result

disable_created_metrics()  # type: ignore[no-untyped-call]  # a line for each of ours that says when the service started

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 32)


class Metrics:
    """Counters and histograms of one service, in a registry of their own."""

    def __init__(self, at_scrape: Callable[[], Iterable[Metric]]) -> None:
        """at_scrape: what is read only when somebody asks, such as the state of the prefix cache."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("qcls_requests", "Requests answered.", ("route", "code"), registry=registry)
        self._refused = Counter("qcls_refused", "Requests not answered, by reason.", ("reason",), registry=registry)
        self._seconds = Histogram(
            "qcls_request_seconds", "From a request's head to its answer's end.", ("route",),
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._queue = Histogram(
            "qcls_queue_seconds", "What a query waited for its turn.", buckets=_SECONDS, registry=registry
        )
        self._decode = Histogram(
            "qcls_decode_seconds", "The decodes of a query's turn.", buckets=_SECONDS, registry=registry
        )
        self._batch = Histogram(
            "qcls_batch_queries", "Queries of the turn that a query was in.", buckets=_SIZES, registry=registry
        )
        self._new = Counter("qcls_tokens_new", "Tokens fed to the model by queries.", registry=registry)
        self._cached = Counter("qcls_tokens_cached", "Tokens that queries took from the cache.", registry=registry)
        self._stages = Counter("qcls_stage_answers", "Answers to prompts, by stage.", ("stage",), registry=registry)
        self._gone = Counter("qcls_clients_gone", "Clients that left before their answer.", registry=registry)
        self.in_flight = Gauge("qcls_requests_in_flight", "Requests being served or waiting.", registry=registry)
        self._by_route: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        registry.register(_AtScrape(at_scrape))

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request that is over; route: the path as it is documented."""
        key = route, status
        if key not in self._by_route:
            self._by_route[key] = self._requests.labels(route, str(status)), self._seconds.labels(route)
        counter, histogram = self._by_route[key]
        counter.inc()
        histogram.observe(seconds)

    def refused(self, reason: str) -> None:
        """Count a refusal by its reason."""
        self._refused.labels(reason).inc()

    def gone(self) -> None:
        """Count a client that did not wait for its answer."""
        self._gone.inc()

    def labelled(self, result: Result) -> None:
        """Count what a query took; a turn's tokens belong to its queries in equal parts."""
        counts = result.counts
        self._queue.observe(result.wait_ms / 1e3)
        self._decode.observe(result.stage_ms["decode"] / 1e3)
        self._batch.observe(counts.n_queries)
        self._new.inc(counts.n_tokens_new / counts.n_queries)
        self._cached.inc(counts.n_tokens_cached / counts.n_queries)
        for answer in result.results:
            if answer.stage is not None:  # only with a cascade
                self._stages.labels(answer.stage).inc()

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)


class _AtScrape(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering reads nothing."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        yield from self._read()


def gauge(name: str, what: str, value: float) -> Metric:
    """A value of this moment."""
    return GaugeMetricFamily(name, what, value=value)


def counter(name: str, what: str, value: float) -> Metric:
    """A count since the start."""
    return CounterMetricFamily(name, what, value=value)
