"""`qcls-gguf models`: parsing and printing only."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .options import FormatOption, RecordFormat
from .terminal import exit_codes


def models_command(
    format_: FormatOption = RecordFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """List the GGUF models on this machine: the embedded one, those of Ollama's store and of the Hugging Face cache.

    Give the names of Ollama's models as --model, those of the cache as --hf-repo. Nothing is downloaded or changed.
    Ollama's store is at OLLAMA_MODELS, else in the user's or the service's folder.

    JSON is one object; docs/records.md describes its fields.

    \b
    qcls-gguf models
    qcls-gguf run --model ollama:qwen3:8b --query "red dress for girls"
    """
    from ..config.words import printable
    from ..inspection.local_models import models_record, models_table  # see app.py for why here
    from ..model.files import local_models
    from ..report.results import console
    from ..report.tables import terminal_table

    with exit_codes():
        record = models_record(local_models())
        if as_json or format_ is RecordFormat.json:
            print(record.to_json(), flush=True)
            return
        console().print(terminal_table(models_table(record), end=False))
        for model in record.models:
            if model.error is not None:
                print(f"qcls-gguf: {printable(model.name)} cannot be used: {printable(model.error)}", file=sys.stderr)
