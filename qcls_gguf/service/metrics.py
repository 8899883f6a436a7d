"""The metrics of the service, by Prometheus' conventions."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..score.result import Result
from .lifecycle import Lifecycle

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 32)
_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily


class Metrics(Collector):
    """The metrics of one service, with their registry."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        """lifecycle: whose state is read when somebody asks."""
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = prometheus.CollectorRegistry()
        registry: Any = {"registry": self._registry}
        seconds = registry | {"buckets": _SECONDS}
        self._requests = prometheus.Counter("qcls_requests", "Requests answered.", ("route", "code"), **registry)
        what = "From a request's head to its answer's end."
        self._seconds = prometheus.Histogram("qcls_request_seconds", what, ("route",), **seconds)
        self._of = cache(lambda route, status: (self._requests.labels(route, status), self._seconds.labels(route)))
        self._refused = prometheus.Counter("qcls_refused", "Requests not answered, by reason.", ("reason",), **registry)
        self.gone = prometheus.Counter("qcls_clients_gone", "Clients that left before their answer.", **registry)
        self.in_flight = prometheus.Gauge("qcls_requests_in_flight", "Requests being served or waiting.", **registry)
        self._queue = prometheus.Histogram("qcls_queue_seconds", "What a query waited for its turn.", **seconds)
        self._decode = prometheus.Histogram("qcls_decode_seconds", "The decodes of a query's turn.", **seconds)
        what = "Queries of the turn that a query was in."
        self._batch = prometheus.Histogram("qcls_batch_queries", what, buckets=_SIZES, **registry)
        self._new = prometheus.Counter("qcls_tokens_new", "Tokens fed to the model by queries.", **registry)
        self._cached = prometheus.Counter("qcls_tokens_cached", "Tokens that queries took from the cache.", **registry)
        prometheus.ProcessCollector(**registry)
        self._lifecycle = lifecycle
        self._registry.register(self)

    def answered(self, route: str, status: int, seconds: float, reason: str) -> None:
        """Count a request that is over. route: the path as it is documented; reason: why it was refused, or empty."""
        if reason:
            self._refused.labels(reason).inc()
        count, histogram = self._of(route, status)
        count.inc()
        histogram.observe(seconds)

    def labelled(self, result: Result) -> None:
        """Count a query's times and tokens; a turn's tokens are divided equally among its queries."""
        counts = result.counts
        self._queue.observe(result.wait_ms / 1e3)
        self._decode.observe(result.stage_ms["decode"] / 1e3)
        self._batch.observe(counts.n_queries)
        self._new.inc(counts.n_tokens_new / counts.n_queries)
        self._cached.inc(counts.n_tokens_cached / counts.n_queries)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return prometheus.generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Metrics that are read only on request, such as the state of the prefix cache."""
        lifecycle, backend = self._lifecycle, self._lifecycle.loaded
        rows: list[tuple[Any, str, str, float]] = [  # (what it is, its name after `qcls_`, its help, its value)
            (_GAUGE, "ready", "1 while requests are answered.", lifecycle.state == "ready"),
            (_GAUGE, "admitted_requests", "Requests in the service.", lifecycle.n_requests),
            (_GAUGE, "admitted_queries", "Queries and questions of these requests.", lifecycle.n_queries),
        ]
        if backend:
            engine, sets = backend.classifier.engine, backend.sets
            rows += [
                (_GAUGE, "prefix_cells", "Cells of the KV cache that prefixes occupy.", engine.cache.n_cells),
                (_GAUGE, "prefix_cells_most", "Cells that prefixes may occupy.", engine.n_prefix_cells),
                (_GAUGE, "prefixes", "Prefixes in the cache.", len(engine.cache)),
                (_COUNTER, "prefixes_found", "Prefixes that were wanted and in the cache.", engine.n_found),
                (_COUNTER, "prefixes_stored", "Prefixes that were computed, long ones in pieces.", engine.n_stored),
                (_COUNTER, "prefixes_evicted", "Prefixes that gave way to others.", engine.n_evicted),
                (_GAUGE, "sets", "Prompt sets kept beside the configured one.", len(sets)),
                (_COUNTER, "sets_made", "Prompt sets made for requests.", sets.n_made),
                (_COUNTER, "sets_evicted", "Prompt sets that gave way to others.", sets.n_evicted),
            ]
        for family, name, what, value in rows:
            yield family(f"qcls_{name}", what, value=float(value))
