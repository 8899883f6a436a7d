"""Configurations that a user wants to be tried beside the derived ones."""

from __future__ import annotations

import dataclasses

from ..config.schema import Config
from ..errors import ConfigError
from .candidate import Candidate, with_prompts


def given_candidate(original: Config, other: Config, name: str) -> Candidate:
    """Another configuration's prompts with the original's model and runtime settings.

    other: with whole texts. Raises ConfigError where it does not ask for the same: prompts of the same names, each with
    the same labels, in any order.
    """
    prompts = {prompt.name: prompt for prompt in other.prompts}
    names = [prompt.name for prompt in original.prompts]
    if sorted(prompts) != sorted(names):
        raise ConfigError(f"{name}: has the prompts {', '.join(prompts)}, not {', '.join(names)}")
    found = []
    for prompt in original.prompts:
        here = prompts[prompt.name]
        if sorted(here.labels) != sorted(prompt.labels):
            raise ConfigError(f"{name}: prompts.{prompt.name} has other labels than the original")
        found.append(
            dataclasses.replace(
                here, prompt_template=here.expanded_template, labels=prompt.labels, label_descriptions=None
            )
        )
    return Candidate(
        name=name, why="a configuration that was given", config=with_prompts(original, found), can_part=True
    )
