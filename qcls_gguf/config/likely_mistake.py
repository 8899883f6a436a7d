"""Kinds of likely mistakes in prompts, which a configuration may leave untold, and what is told of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MistakeKind = Literal[
    "control_token",
    "chat_format",
    "beginning",
    "literal_slot",
    "line_break",
    "space",
    "label_ends",
    "labels_alike",
    "label_tokens",
    "untrained",
    "labels_not_named",
    "descriptions",
]
IgnoredKind = Literal["all", MistakeKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyMistake:
    """What is likely wrong with prompts that can be used all the same."""

    kind: MistakeKind
    """by which a configuration may leave it untold: ignore_warnings"""
    prompts: tuple[str, ...]
    """names of the prompts that have it"""
    place: str
    """where it stands in the configuration, for the first of these"""
    what: str
    """what is wrong, and what to do"""

    def __str__(self) -> str:
        return f"{self.place}: {self.what} [{self.kind}]"
