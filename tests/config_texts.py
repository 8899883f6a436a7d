"""Texts of configurations, and how they are read, for the tests of the loader."""

import re
from pathlib import Path

import pytest

from qcls_gguf import Config, ConfigError
from qcls_gguf.config.load import parse_config

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
FOLDER = Path("/configs")

PROMPT = """\
prompts:
  - name: category
    prompt_template: "query: {query} label:"
    labels: [dress, tee]
"""

MISSION = (CONFIGS[0].parent / "mission.yaml").read_text(encoding="utf-8")


def parse(text: str) -> Config:
    return parse_config(text, folder=FOLDER)


def with_labels(labels: str) -> str:
    return PROMPT.replace("[dress, tee]", labels)


def with_prompt_line(line: str) -> str:
    return f"{PROMPT}    {line}\n"


def refused(text: str, message: str) -> None:
    """The text is refused with a message that begins so, after its line."""
    with pytest.raises(ConfigError, match=rf"^(line \d+: )?{re.escape(message)}"):
        parse(text)
