"""Questions about a text: what is asked, and the answers to choose from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .forms import Kind

NAMED = "@"
"""what instructions begin with that name a configured prompt"""


class Option(NamedTuple):
    """An answer to choose from."""

    label: str
    """what the model is asked to write, and is scored by"""
    description: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question without its text: equal questions are one prompt."""

    kind: Kind
    instructions: str
    options: tuple[Option, ...]
    audit: bool = False
    """whether its exact scores are wanted"""

    @classmethod
    def predicate(
        cls, instructions: str, yes: str | None = None, no: str | None = None, *, audit: bool = False
    ) -> Question:
        """Is something so? yes, no: what describes these answers."""
        return cls.of("predicate", instructions, (("yes", yes), ("no", no)), audit=audit)

    @classmethod
    def of(
        cls, kind: Kind, instructions: str, options: Iterable[tuple[str, str | None]], *, audit: bool = False
    ) -> Question:
        """A question with its options, or ordered levels: each a label and what describes it."""
        choices = tuple([Option(*each) for each in options])
        return cls(kind=kind, instructions=instructions, options=choices, audit=audit)

    @property
    def configured(self) -> str | None:
        """The configured prompt that it names, or None."""
        text = self.instructions
        return text[1:] if text.startswith(NAMED) and len(text) > 1 and not text[1:2].isspace() else None

    @property
    def n_bytes(self) -> int:
        """The size of its texts."""
        texts = [self.instructions, *(f"{each.label}{each.description or ''}" for each in self.options)]
        return sum(len(text.encode()) for text in texts)
