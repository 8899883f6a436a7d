"""`qcls-gguf serve`: parsing and printing only."""

from __future__ import annotations

import importlib.util
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from .options import (
    ConfigOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    RepoOption,
    ScoringOption,
    StateCacheOption,
    ThreadsOption,
    settings,
)
from .terminal import exit_codes, load_bar, print_step, print_warning, say

_NEEDED = ("h11", "orjson", "prometheus_client", "starlette", "uvicorn", "uvloop")
_KEY_VARIABLE = "QCLS_API_KEY"


class LogFormat(StrEnum):
    """How requests are logged."""

    text = "text"
    json = "json"
    none = "none"


def serve_command(
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    no_state_cache: StateCacheOption = False,
    n_gpu_layers: LayersOption = None,
    scoring: ScoringOption = None,
    threads: ThreadsOption = None,
    host: Annotated[str, typer.Option("--host", metavar="NAME", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="The port to listen at; 0: any free one.")
    ] = 8080,
    uds: Annotated[
        Path | None, typer.Option("--uds", metavar="FILE", help="Listen at a Unix domain socket instead.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key", metavar="KEY", help=f"A key that clients must send; repeatable. Also from {_KEY_VARIABLE}."
        ),
    ] = None,
    api_keys: Annotated[
        Path | None, typer.Option("--api-keys", metavar="FILE", help="A file with more keys, one a line.")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option("--questions", metavar="FILE", help="How questions become prompts: a YAML file.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option("--cors-origin", metavar="URL", help="Allow web pages of this origin to ask; repeatable."),
    ] = None,
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout", min=1, max=600_000, metavar="MS", help="Time limit of requests that do not set their own."
        ),
    ] = 10_000,
    max_body: Annotated[
        int,
        typer.Option(
            "--max-body", min=1024, max=1 << 30, metavar="BYTES", help="Most bytes of a request's body, decompressed."
        ),
    ] = 4 << 20,
    max_queries: Annotated[
        int, typer.Option("--max-queries", min=1, max=1 << 20, metavar="N", help="Most queries in one request.")
    ] = 256,
    max_questions: Annotated[
        int, typer.Option("--max-questions", min=1, max=1 << 16, metavar="N", help="Most questions in one request.")
    ] = 400,
    max_options: Annotated[
        int,
        typer.Option("--max-options", min=1, max=1 << 16, metavar="N", help="Most options or levels of one question."),
    ] = 255,
    max_question_bytes: Annotated[
        int,
        typer.Option(
            "--max-question-bytes", min=1, max=1 << 30, metavar="BYTES", help="Most bytes of a question's texts."
        ),
    ] = 32_768,
    max_wait: Annotated[
        str | None,
        typer.Option(
            "--max-wait",
            metavar="MS|Nx",
            help="Refuse with 503 requests that would wait longer; Nx: longer than N requests take.",
        ),
    ] = None,
    max_requests: Annotated[
        int,
        typer.Option("--max-requests", min=1, max=1 << 20, metavar="N", help="Most requests at a time; more get 503."),
    ] = 64,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens", min=1, max=1 << 30, metavar="N", help="Most tokens of all requests at a time; more get 503."
        ),
    ] = 16_384,
    keep_results: Annotated[
        int,
        typer.Option(
            "--keep-results",
            min=0,
            max=1 << 24,
            metavar="N",
            help="How many answers to keep and reuse for equal queries.",
        ),
    ] = 0,
    grace: Annotated[
        float, typer.Option("--grace", min=0, metavar="SECONDS", help="Time to finish requests when told to stop.")
    ] = 30.0,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Format of the log, which has a line for each request.")
    ] = LogFormat.text,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the start-up.")] = False,
) -> None:
    """Answer requests over HTTP: this project's own, and those of OpenAI's, vLLM's, TEI's and Hugging Face's clients.

    The service listens at once; /ready answers 200 when the model is loaded. SIGTERM and SIGINT finish the requests
    that have arrived and end the service; SIGHUP reads the configuration again. Needs the extra `serve`. Exit codes are
    those of run.

    \b
    qcls-gguf serve --config my.yaml
    curl localhost:8080/v1/classify -H 'content-type: application/json' -d '{"query": "red dress for girls"}'
    """
    with exit_codes():
        if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
            raise ConfigError(f"serve needs {', '.join(missing)}: pip install 'qcls-gguf[serve]'")
        # imported by its own command only, which keeps the start of the others short
        from ..config.schema import Config
        from ..questions.forms import FormSettings, read_forms
        from ..service.server import serve
        from ..service.settings import RequestLimits, ServiceSettings, check_keys, check_origins, read_keys, read_wait

        keys = api_key or []
        if (key := os.environ.get(_KEY_VARIABLE)) is not None:
            if not key.strip():  # such as of a variable that a compose file passes on and nobody has set
                raise ConfigError(
                    f"{_KEY_VARIABLE} is set and empty, so that anybody could ask: give a key, or unset it"
                )
            keys = [*keys, key]
        if api_keys is not None:
            keys = [*keys, *read_keys(api_keys)]
        chosen = ServiceSettings(
            host=host,
            port=port,
            uds=uds,
            api_keys=check_keys(keys),
            cors_origins=check_origins(cors_origin or []),
            grace_s=grace,
            n_results=keep_results,
            log_format=log_format.value,
            forms=FormSettings() if questions is None else read_forms(questions),
            limits=RequestLimits(
                body_bytes=max_body,
                queries=max_queries,
                questions=max_questions,
                options=max_options,
                question_bytes=max_question_bytes,
                timeout_ms=timeout,
                longest_wait=None if max_wait is None else read_wait(max_wait),
                waiting_requests=max_requests,
                waiting_tokens=max_tokens,
            ),
        )
        configured = settings(config, model, hf_repo, n_gpu_layers, threads, scoring, no_state_cache=no_state_cache)
        first = [configured]  # read already, so that a mistake in it is told before anything starts

        def configure() -> Config:
            if first:
                return first.pop()
            return settings(config, model, hf_repo, n_gpu_layers, threads, scoring, no_state_cache=no_state_cache)

        if not (chosen.is_local or chosen.api_keys) and not quiet:
            print_warning(f"whoever reaches {host} may ask: --api-key limits that")
        serve(
            chosen,
            configure,
            offline=offline,
            on_step=None if quiet else print_step,
            on_load=load_bar(quiet),
            on_ready=lambda address: say(f"serving at {address}"),
        )
