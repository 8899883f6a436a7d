"""`qcls-gguf schema`: printing only."""

from __future__ import annotations

from ..report.json_text import json_text
from .terminal import exit_codes


def schema_text() -> str:
    """The JSON Schema of a configuration, as the command prints it."""
    from ..config.json_schema import config_json_schema  # see app.py for why here

    return json_text(config_json_schema(), indent=2)


def schema_command() -> None:
    """Print the JSON Schema of a configuration file.

    With it an editor completes keys, explains them and marks mistakes. Name it in the first line of a configuration:

    \b
    # yaml-language-server: $schema=config.schema.json
    """
    with exit_codes():
        print(schema_text())
