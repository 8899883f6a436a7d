"""What the service counts, by Prometheus' conventions.

Requests add to plain numbers, and the metrics are made of them when somebody asks: prometheus_client's own counters
take a lock each, all together a tenth of what a request costs the service.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..score.result import Result

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 32)


class _Histogram:
    """How many values came, by their size."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """bounds: the most that belongs to each bucket, ascending."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: tuple[str, ...] = ()) -> None:
        """Give the family the counts of all values up to each bound."""
        n = 0
        buckets = []
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            n += count
            buckets.append((bound, n))
        family.add_metric(labels, buckets, self._sum)


class Metrics:
    """The counts of one service, and a registry that gives them out. For the thread of the event loop."""

    def __init__(self, at_scrape: Callable[[], Iterable[Metric]]) -> None:
        """at_scrape: what is read only when somebody asks, such as the state of the prefix cache."""
        self.n_in_flight = 0
        """requests being served or waiting"""
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._seconds: dict[str, _Histogram] = {}
        self._refused: Counter[tuple[str, ...]] = Counter()
        self._stages: Counter[tuple[str, ...]] = Counter()
        self._queue = _Histogram(_SECONDS)
        self._decode = _Histogram(_SECONDS)
        self._batch = _Histogram(_SIZES)
        self._n_new = self._n_cached = 0.0
        self._n_gone = 0
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_AtScrape(self._counted))
        self._registry.register(_AtScrape(at_scrape))

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request that is over; route: the path as it is documented."""
        self._requests[route, str(status)] += 1
        if route not in self._seconds:
            self._seconds[route] = _Histogram(_SECONDS)
        self._seconds[route].add(seconds)

    def refused(self, reason: str) -> None:
        """Count a refusal by its reason."""
        self._refused[reason,] += 1

    def gone(self) -> None:
        """Count a client that did not wait for its answer."""
        self._n_gone += 1

    def labelled(self, result: Result) -> None:
        """Count what a query took; a turn's tokens belong to its queries in equal parts."""
        counts = result.counts
        self._queue.add(result.wait_ms / 1e3)
        self._decode.add(result.stage_ms["decode"] / 1e3)
        self._batch.add(counts.n_queries)
        self._n_new += counts.n_tokens_new / counts.n_queries
        self._n_cached += counts.n_tokens_cached / counts.n_queries
        for answer in result.results:
            if answer.stage is not None:  # only with a cascade
                self._stages[answer.stage,] += 1

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counted(self) -> Iterator[Metric]:
        yield _by_label("qcls_requests", "Requests answered.", ("route", "code"), self._requests)
        seconds = HistogramMetricFamily(
            "qcls_request_seconds", "From a request's head to its answer's end.", labels=("route",)
        )
        for route, each in self._seconds.items():
            each.add_to(seconds, (route,))
        yield seconds
        yield _by_label("qcls_refused", "Requests not answered, by reason.", ("reason",), self._refused)
        yield counter("qcls_clients_gone", "Clients that left before their answer.", self._n_gone)
        yield gauge("qcls_requests_in_flight", "Requests being served or waiting.", self.n_in_flight)
        for name, what, histogram in (
            ("qcls_queue_seconds", "What a query waited for its turn.", self._queue),
            ("qcls_decode_seconds", "The decodes of a query's turn.", self._decode),
            ("qcls_batch_queries", "Queries of the turn that a query was in.", self._batch),
        ):
            family = HistogramMetricFamily(name, what)
            histogram.add_to(family)
            yield family
        yield counter("qcls_tokens_new", "Tokens fed to the model by queries.", self._n_new)
        yield counter("qcls_tokens_cached", "Tokens that queries took from the cache.", self._n_cached)
        yield _by_label("qcls_stage_answers", "Answers to prompts, by stage.", ("stage",), self._stages)


def _by_label(name: str, what: str, labels: Sequence[str], counts: Mapping[tuple[str, ...], int]) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for values, n in counts.items():
        family.add_metric(values, n)
    return family


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
