"""What the service counts, by Prometheus' conventions."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)  # fmt: skip
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..report.gpu import GpuState, gpu_state
from ..score.result import Result
from .backend import Backend
from .lifecycle import Lifecycle, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 32)


class Metrics:
    """The counts of one service, and a registry that gives them out."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        """lifecycle: whose state is read when somebody asks."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = all_ = CollectorRegistry()
        self._requests = Counter("qcls_requests", "Requests answered.", ("route", "code"), registry=all_)
        what = "From a request's head to its answer's end."
        self._seconds = Histogram("qcls_request_seconds", what, ("route",), buckets=_SECONDS, registry=all_)
        self._refused = Counter("qcls_refused", "Requests not answered, by reason.", ("reason",), registry=all_)
        self.gone = Counter("qcls_clients_gone", "Clients that left before their answer.", registry=all_)
        self.in_flight = Gauge("qcls_requests_in_flight", "Requests being served or waiting.", registry=all_)
        what = "What a query waited for its turn."
        self._queue = Histogram("qcls_queue_seconds", what, buckets=_SECONDS, registry=all_)
        what = "The decodes of a query's turn."
        self._decode = Histogram("qcls_decode_seconds", what, buckets=_SECONDS, registry=all_)
        what = "Queries of the turn that a query was in."
        self._batch = Histogram("qcls_batch_queries", what, buckets=_SIZES, registry=all_)
        self._new = Counter("qcls_tokens_new", "Tokens fed to the model by queries.", registry=all_)
        self._cached = Counter("qcls_tokens_cached", "Tokens that queries took from the cache.", registry=all_)
        self._stages = Counter("qcls_stage_answers", "Answers to prompts, by stage.", ("stage",), registry=all_)
        ProcessCollector(registry=all_)
        all_.register(_State(lifecycle))

    def answered(self, route: str, status: int, seconds: float, reason: str) -> None:
        """Count a request that is over. route: the path as it is documented; reason: why it was refused, or empty."""
        if reason:
            self._refused.labels(reason).inc()
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

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
        return generate_latest(self._registry)


class _State(Collector):
    """What is read when somebody asks, such as the state of the prefix cache."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering reads nothing."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        admission, backend = self._lifecycle.admission, self._lifecycle.loaded
        yield _gauge("qcls_ready", "1 while requests are answered.", self._lifecycle.state is State.ready)
        yield _gauge("qcls_admitted_requests", "Requests in the service.", admission.n_requests)
        yield _gauge("qcls_admitted_tokens", "Tokens that they would feed, estimated.", admission.n_tokens)
        wait_s = admission.wait_ms(backend.classifier.turn_ms if backend else 0.0) / 1e3
        yield _gauge("qcls_wait_seconds", "What a request that comes now would wait, estimated.", wait_s)
        yield _counter("qcls_reloads", "Configurations that replaced another.", self._lifecycle.n_reloads)
        if backend:
            yield from _engine(backend)
        if (state := gpu_state()) is not None:
            yield from _gpu(state)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=float(value))


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(name, what, value=value)


def _engine(backend: Backend) -> Iterator[Metric]:
    engine = backend.classifier.engine
    cache, counters = engine.cache, engine.context.counters()  # while another thread decodes
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
    yield _counter("qcls_graphs_reused", "Decodes that reused a graph.", counters.n_graphs_reused)
    yield _gauge("qcls_graphs", "Graphs kept.", counters.n_shapes)


def _gpu(state: GpuState) -> Iterator[Metric]:
    held = None if state.brakes is None else len(state.brakes)
    for name, what, value in (
        ("clock_mhz", "Clock of the GPU's multiprocessors.", state.sm_mhz),
        ("power_watts", "Power that the GPU draws.", state.power_w),
        ("temperature_celsius", "Temperature of the GPU.", state.temperature_c),
        ("throttle_reasons", "What holds the GPU's clock down now, such as its power limit.", held),
    ):
        if value is not None:
            yield _gauge(f"qcls_gpu_{name}", what, value)
