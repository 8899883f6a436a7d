"""`qcls-gguf serve`: parsing and printing only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from ..errors import ConfigError
from . import options as o
from .terminal import load_bar, needs, print_step, print_warning, say

if TYPE_CHECKING:
    from ..config.schema import Config

_KEY_VARIABLE = "QCLS_API_KEY"


def serve(
    ctx: Context,
    host: Annotated[str, Option("--host", metavar="NAME", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, Option("--port", metavar="N", min=0, max=65535,
        help="The port to listen at; 0: any free one.")] = 8080,
    api_key: Annotated[list[str] | None, Option("--api-key", metavar="KEY",
        help="A key that clients must send; repeatable. Also those of " f"{_KEY_VARIABLE}, between spaces.")] = None,
    grace_s: Annotated[float, Option("--grace", metavar="SECONDS", min=0,
        help="Time to finish requests when told to stop.")] = 30.0,
    timeout_ms: Annotated[int, Option("--timeout", metavar="MS", min=1, max=600_000,
        help="Time limit of requests that set none.")] = 10_000,
    body_bytes: Annotated[int, Option("--max-body", metavar="BYTES", min=1024, max=1 << 30,
        help="Most bytes of a request's body.")] = 4 << 20,
    queries: Annotated[int, Option("--max-queries", metavar="N", min=1, max=1 << 20,
        help="Most queries, or questions, in one request.")] = 400,
    waiting_requests: Annotated[int, Option("--max-requests", metavar="N", min=1, max=1 << 20,
        help="Most requests at once; more get 503.")] = 64,
    quiet: o.Quiet = False, verbose: o.Verbose = False, config: o.ConfigFile = None, model: o.ModelName = None,
    hf_repo: o.Repository = None, offline: o.Offline = False, n_gpu_layers: o.GpuLayers = None,
    n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None, long_queries: o.LongQueries = None,
    scoring: o.ScoringName = None,
) -> None:  # fmt: skip
    """Answer requests over HTTP: this project's own, and those of OpenAI's, TypeSafe's and Hugging Face's clients.

    The service listens at once; /ready answers 200 when the model is loaded. SIGTERM and SIGINT finish the requests
    that have arrived and end the service; SIGHUP reads the configuration again. Needs the extra `serve`. Exit codes are
    those of run.

    \b
    qcls-gguf serve --config my.yaml
    curl localhost:8080/v1/classify -H 'content-type: application/json' -d '{"query": "red dress for girls"}'
    """
    needs("serve", "uvloop", "serve")
    # imported by its own command only, which keeps the start of the others short
    from ..service.lifecycle import Lifecycle, ServiceSettings, check_keys
    from ..service.server import serve as serve_requests

    variable = os.environ.get(_KEY_VARIABLE)
    if variable is not None and not variable.strip():  # as if a compose file passes on an unset variable
        raise ConfigError(f"{_KEY_VARIABLE} is set but empty, so anybody could send requests: give a key, or unset it")
    service = ServiceSettings(
        host=host,
        port=port,
        api_keys=check_keys([*(api_key or ()), *(variable or "").split()]),
        grace_s=grace_s,
        logs_requests=not quiet,
        timeout_ms=timeout_ms,
        body_bytes=body_bytes,
        queries=queries,
        waiting_requests=waiting_requests,
    )

    def settings() -> Config:
        return o.configured(ctx.params)

    first = [settings()]  # read already, so that a mistake in it is reported before anything starts

    def configure() -> Config:
        return first.pop() if first else settings()

    if not (service.is_local or service.api_keys) and not quiet:
        print_warning(f"anybody who can reach {host} may send requests: limit that with --api-key")
    on_step = None if quiet else print_step
    lifecycle = Lifecycle(configure, service, offline=offline, on_step=on_step, on_load=load_bar(quiet))
    serve_requests(lifecycle, lambda address: say(f"serving at {address}"))
