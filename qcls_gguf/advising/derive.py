"""All candidates that a configuration gives, without a model's weights: from texts, and a tokenizer for the labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..config.schema import Config
from ..errors import ConfigError
from ..prompts.compiled import Tokenizer
from .candidate import Candidate
from .joint import joint_candidates
from .shorter import cheaper_scoring, distinct_wordings, query_first, shorter_cue


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What a configuration gives."""

    candidates: tuple[Candidate, ...]
    no_joint: str | None
    """why no text for all prompts can be derived; none where it can"""


def derive(config: Config, tokenizer: Tokenizer) -> Derived:
    """The candidates of a configuration whose prompts have whole texts, those with the same prompts once."""
    no_joint, joint = None, []
    try:
        joint = joint_candidates(config)
    except ConfigError as e:
        no_joint = str(e)
    found = [*joint, *_small_changes(config, tokenizer)]
    if joint:
        found += [_on_top(joint[0], change) for change in _small_changes(joint[0].config, tokenizer)]
    different = {config.prompts: None}
    kept = []
    for candidate in found:
        if candidate.config.prompts not in different:
            different[candidate.config.prompts] = None
            kept.append(candidate)
    return Derived(candidates=tuple(kept), no_joint=no_joint)


def _small_changes(config: Config, tokenizer: Tokenizer) -> Iterator[Candidate]:
    for candidate in (
        shorter_cue(config),
        cheaper_scoring(config, tokenizer),
        distinct_wordings(config, tokenizer),
        query_first(config),
    ):
        if candidate is not None:
            yield candidate


def _on_top(first: Candidate, second: Candidate) -> Candidate:
    return dataclasses.replace(
        second, name=f"{first.name} {second.name}", why=f"as {first.name}, and {second.why}", can_part=True
    )
