"""`qcls-gguf serve`: parsing and printing only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .options import ScoredModelOptions, command, option, settings_of
from .terminal import load_bar, needs, print_step, print_warning, say

if TYPE_CHECKING:
    from ..config.schema import Config

_KEY_VARIABLE = "QCLS_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Where the service listens, whom it answers, and how."""

    host: str = option("--host NAME", "The address to listen at.", "127.0.0.1")
    port: int = option("--port N", "The port to listen at; 0: any free one.", 8080, low=0, high=65535)
    api_key: tuple[str, ...] = option(
        "--api-key KEY", f"A key that clients must send; repeatable. Also those of {_KEY_VARIABLE}, between spaces."
    )
    questions: Path | None = option("--questions FILE", "How questions become prompts: a YAML file.")
    grace_s: float = option("--grace SECONDS", "Time to finish requests when told to stop.", 30.0, low=0)
    quiet: bool = option("--quiet", "Print neither the start-up nor a line for each request.", False)

    def keys(self) -> list[str]:
        """The keys of the options and of the environment. Raises ConfigError."""
        variable = os.environ.get(_KEY_VARIABLE)
        if variable is not None and not variable.strip():  # as if a compose file passes on an unset variable
            raise ConfigError(
                f"{_KEY_VARIABLE} is set but empty, so anybody could send requests: give a key, or unset it"
            )
        return [*self.api_key, *(variable or "").split()]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """What requests may ask for."""

    timeout_ms: int = option("--timeout MS", "Time limit of requests that set none.", 10_000, low=1, high=600_000)
    body_bytes: int = option("--max-body BYTES", "Most bytes of a request's body.", 4 << 20, low=1024, high=1 << 30)
    queries: int = option("--max-queries N", "Most queries, or questions, in one request.", 400, low=1, high=1 << 20)
    waiting_requests: int = option("--max-requests N", "Most requests at once; more get 503.", 64, low=1, high=1 << 20)


@command
def serve_command(model: ScoredModelOptions, chosen: ServiceOptions, limits: LimitOptions) -> None:
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
    from ..questions.forms import FormSettings, read_forms
    from ..service.lifecycle import Lifecycle
    from ..service.server import serve
    from ..service.settings import RequestLimits, ServiceSettings, check_keys

    service = settings_of(
        ServiceSettings,
        chosen,
        api_keys=check_keys(chosen.keys()),
        logs_requests=not chosen.quiet,
        forms=FormSettings() if chosen.questions is None else read_forms(chosen.questions),
        limits=settings_of(RequestLimits, limits),
    )
    first = [model.settings()]  # read already, so that a mistake in it is reported before anything starts

    def configure() -> Config:
        return first.pop() if first else model.settings()

    if not (service.is_local or service.api_keys) and not chosen.quiet:
        print_warning(f"anybody who can reach {chosen.host} may send requests: limit that with --api-key")
    on_step = None if chosen.quiet else print_step
    lifecycle = Lifecycle(configure, service, offline=model.offline, on_step=on_step, on_load=load_bar(chosen.quiet))
    serve(lifecycle, lambda address: say(f"serving at {address}"))
