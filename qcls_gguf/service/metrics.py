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

from ..report.gpu import GpuState, gpu_state
from ..score.result import Result
from .backend import Backend
from .lifecycle import Lifecycle, State

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

    def __init__(self, lifecycle: Lifecycle) -> None:
        """lifecycle: whose state is read when somebody asks."""
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
        self._registry.register(_Collector(self._counted))
        self._registry.register(_Collector(lambda: _at_scrape(lifecycle)))

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
        yield _counter("qcls_clients_gone", "Clients that left before their answer.", self._n_gone)
        yield _gauge("qcls_requests_in_flight", "Requests being served or waiting.", self.n_in_flight)
        for name, what, histogram in (
            ("qcls_queue_seconds", "What a query waited for its turn.", self._queue),
            ("qcls_decode_seconds", "The decodes of a query's turn.", self._decode),
            ("qcls_batch_queries", "Queries of the turn that a query was in.", self._batch),
        ):
            family = HistogramMetricFamily(name, what)
            histogram.add_to(family)
            yield family
        yield _counter("qcls_tokens_new", "Tokens fed to the model by queries.", self._n_new)
        yield _counter("qcls_tokens_cached", "Tokens that queries took from the cache.", self._n_cached)
        yield _by_label("qcls_stage_answers", "Answers to prompts, by stage.", ("stage",), self._stages)


def _by_label(name: str, what: str, labels: Sequence[str], counts: Mapping[tuple[str, ...], int]) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for values, n in counts.items():
        family.add_metric(values, n)
    return family


class _Collector(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering reads nothing."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        yield from self._read()


def _gauge(name: str, what: str, value: float) -> Metric:
    """A value of this moment."""
    return GaugeMetricFamily(name, what, value=value)


def _counter(name: str, what: str, value: float) -> Metric:
    """A count since the start."""
    return CounterMetricFamily(name, what, value=value)


def _at_scrape(lifecycle: Lifecycle) -> Iterator[Metric]:
    """What is read when the metrics are asked for."""
    admission, backend = lifecycle.admission, lifecycle.loaded
    yield _gauge("qcls_ready", "1 while requests are answered.", float(lifecycle.state is State.ready))
    yield _gauge("qcls_admitted_requests", "Requests in the service.", admission.n_requests)
    yield _gauge("qcls_admitted_tokens", "Tokens that they would feed, estimated.", admission.n_tokens)
    wait_s = admission.wait_ms(backend.classifier.turn_ms if backend else 0.0) / 1e3
    yield _gauge("qcls_wait_seconds", "What a request that comes now would wait, estimated.", wait_s)
    yield _counter("qcls_reloads", "Configurations that replaced another.", lifecycle.n_reloads)
    if backend:
        yield from _engine(backend)
    if (state := gpu_state()) is not None:
        yield from _gpu(state)


def _engine(backend: Backend) -> Iterator[Metric]:
    engine = backend.classifier.engine
    cache, (n_reused, n_graphs) = engine.cache, engine.context.graphs()  # while another thread decodes
    yield _gauge("qcls_prefix_cells", "Cells of the KV cache that prefixes occupy.", cache.n_cells)
    yield _gauge("qcls_prefix_cells_most", "Cells that prefixes may occupy.", engine.n_prefix_cells)
    yield _gauge("qcls_prefixes", "Prefixes in the cache.", len(cache))
    yield _gauge("qcls_prefixes_free", "Sequences for more prefixes.", cache.n_free_holders)
    yield _gauge("qcls_sets", "Prompt sets kept beside the configured one.", len(backend.sets))
    yield _counter("qcls_sets_found", "Requests whose prompt set was there.", backend.sets.n_found)
    yield _counter("qcls_sets_made", "Prompt sets made for requests.", backend.sets.n_made)
    yield _counter("qcls_sets_evicted", "Prompt sets that made room for others.", backend.sets.n_evicted)
    yield _counter("qcls_prefixes_found", "Prefixes that were wanted and in the cache.", engine.n_found)
    yield _counter("qcls_prefixes_stored", "Prefixes that were computed, long ones in pieces.", engine.n_stored)
    yield _counter("qcls_prefixes_evicted", "Prefixes that made room for others.", engine.n_evicted)
    if engine.kept_queries:
        what = "Tokens that were not fed, as an earlier query begins with them."
        yield _counter("qcls_kept_query_tokens", what, engine.kept_queries.n_found)
    if backend.results.most:
        yield _gauge("qcls_results", "Answers kept.", len(backend.results))
        yield _counter("qcls_results_found", "Queries whose answer was kept.", backend.results.n_hits)
        yield _counter("qcls_results_missed", "Queries whose answer was not kept.", backend.results.n_misses)
    yield _counter("qcls_graphs_reused", "Decodes that reused a graph.", n_reused)
    yield _gauge("qcls_graphs", "Graphs kept.", n_graphs)


def _gpu(state: GpuState) -> Iterator[Metric]:
    if state.sm_mhz is not None:
        yield _gauge("qcls_gpu_clock_mhz", "Clock of the GPU's multiprocessors.", state.sm_mhz)
    if state.power_w is not None:
        yield _gauge("qcls_gpu_power_watts", "Power that the GPU draws.", state.power_w)
    if state.temperature_c is not None:
        yield _gauge("qcls_gpu_temperature_celsius", "Temperature of the GPU.", state.temperature_c)
    if state.brakes is not None:
        what = "What holds the GPU's clock down now, such as its power limit."
        yield _gauge("qcls_gpu_throttle_reasons", what, len(state.brakes))
