"""Texts of configurations, and how they are read, for the tests of the loader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qcls_gguf.config.load import parse_config
from qcls_gguf.config.schema import Config
from qcls_gguf.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
FOLDER = Path("/configs")

PROMPT = """\
prompts:
  - name: category
    prompt_template: "query: {query} label:"
    labels: [dress, tee]
"""

MISSION = """\
# The two prompts of the mission, as its user wrote them. Six more follow later.
prompts:
  - name: category
    prompt_template: |
      <|im_start|>system
      Analyze the category intent. Output exactly one label from [none, dress, jeans, shirt, trench, skirt, tee, hoodie, knit, other]. Use 'none' if no category intent.<|im_end|>
      <|im_start|>user
      query: {query}<|im_end|>
      <|im_start|>assistant
      label:
    label_prefix: " "
    labels: [dress, jeans, shirt, trench, skirt, tee, hoodie, knit, other, none]
  - name: audience
    prompt_template: |
      <|im_start|>system
      Analyze the target user group. Output exactly one label from [none, boy, girl, man, woman, pregnant]. Use 'none' if no audience mentioned.<|im_end|>
      <|im_start|>user
      query: {query}<|im_end|>
      <|im_start|>assistant
      label:
    label_prefix: " "
    labels: [boy, girl, man, woman, pregnant, none]
"""  # noqa: E501


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
