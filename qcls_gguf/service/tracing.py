"""A span of OpenTelemetry for each request, where its API is installed and something collects spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bodies import Scope
from .exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.trace import Span

try:
    from opentelemetry import propagate, trace
except ImportError:
    is_installed = False
else:
    is_installed = True

_NAME = "qcls_gguf.service"


class Tracer:
    """Begins and ends spans."""

    def __init__(self) -> None:
        """Spans are made where a provider is set when the service is built; else requests pay nothing for them."""
        self._tracer = None
        if is_installed and not isinstance(provider := trace.get_tracer_provider(), trace.ProxyTracerProvider):
            self._tracer = provider.get_tracer(_NAME)

    @property
    def is_on(self) -> bool:
        """Whether spans are made."""
        return self._tracer is not None

    def begin(self, scope: Scope) -> Span | None:
        """The span of a request, below that of the client where its headers name one."""
        if self._tracer is None:
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        return self._tracer.start_span(
            f"{scope['method']} {scope['path']}",
            propagate.extract(headers),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
        )

    @staticmethod
    def end(span: Span | None, exchange: Exchange, status: int) -> None:
        """End a span, with the route, the status, and the milliseconds of the stages."""
        if span is None:
            return
        span.set_attributes({
            "http.route": exchange.route, "http.response.status_code": status,
            "qcls.request_id": exchange.request_id, "qcls.queries": exchange.n_queries,
            "qcls.tokens": exchange.n_tokens,
            **{f"qcls.{stage}_ms": ms for stage, ms in (exchange.times or {}).items()},
        })  # fmt: skip
        if exchange.reason:
            span.set_attribute("error.type", exchange.reason)
        if status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        span.end()
