"""What is tried in place of a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..config.prompt import PromptConfig
from ..config.schema import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Another configuration for the same prompts, in their order and with their names."""

    name: str
    why: str
    """what is different, and what that saves: a sentence"""
    config: Config
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """by prompt: labels of the original configuration by those that stand for them here, where these differ"""
    is_parted: bool = False
    """whether it has some of the original's own prompts"""
    can_part: bool = False
    """whether prompts that lose by it can keep their own text while the others take this one"""

    def original(self, prompt: str, label: str) -> str:
        """The original configuration's word for a label."""
        return self.renamed.get(prompt, {}).get(label, label)


def with_prompts(config: Config, prompts: Sequence[PromptConfig]) -> Config:
    """The configuration with other prompts, and without the calibration, which was fitted to the old ones."""
    return dataclasses.replace(config, prompts=tuple(prompts), calibration=None, cascade=None)


def with_template(prompt: PromptConfig, text: str) -> PromptConfig:
    """The prompt with another whole text."""
    return dataclasses.replace(prompt, prompt_template=text)
