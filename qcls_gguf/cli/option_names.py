"""What a message calls by its name in Python, such as `data`, in the words of the command line, such as --data."""

from __future__ import annotations

import re

_OPTIONS = {
    "also": "--also",
    "api_keys": "--api-keys",
    "batch": "--batch",
    "cache": "--cache",
    "cascade": "--cascade",
    "cors_origin": "--cors-origin",
    "data": "--data",
    "force": "--force",
    "format": "--format",
    "header": "--header",
    "hf_folder": "--hf-folder",
    "hf_repo": "--hf-repo",
    "host": "--host",
    "id": "--id",
    "ignore_columns": "--ignore-columns",
    "label_column": "--label-column",
    "labels": "--labels",
    "limit": "--limit",
    "llama_server": "--llama-server",
    "max_wait": "--max-wait",
    "method": "--method",
    "n_folds": "--folds",
    "n_gpu_layers": "--n-gpu-layers",
    "offline": "--offline",
    "ollama": "--ollama",
    "ollama_model": "--ollama-model",
    "other_weights": "--other-weights",
    "out": "--out",
    "overwrite": "--overwrite",
    "port": "--port",
    "prefix": "--prefix",
    "prompt": "--prompt",
    "queries": "--queries",
    "query_column": "--query-column",
    "query_tokens": "--query-tokens",
    "redo_changed": "--redo-changed",
    "resume": "--resume",
    "sample": "--sample",
    "shuffle_labels": "--shuffle-labels",
    "skip_bad": "--skip-bad",
    "spawn_llama_server": "--spawn-llama-server",
    "synthetic": "--synthetic",
    "uds": "--uds",
}
_QUOTED = re.compile(f"`({'|'.join(_OPTIONS)})`")


def with_options(message: str) -> str:
    """The message with options in place of names in backquotes."""
    return _QUOTED.sub(lambda match: _OPTIONS[match[1]], message)
