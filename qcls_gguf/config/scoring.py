"""The scorings: how a label's tokens become its score. `docs/scoring.md` has the formulas."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import ConfigError
from .words import shown

Scoring = Literal["tree", "first_token", "joint", "mean"]
SCORINGS: tuple[Scoring, ...] = ("tree", "first_token", "joint", "mean")
EXACT_SCORINGS: tuple[Scoring, ...] = ("joint", "mean")
"""Those that need the log-sum-exp over the vocabulary at every label token."""


def parse_scoring(value: Any, where: str) -> Scoring:
    """A scoring by its name. Raises ConfigError, which names `where`."""
    for scoring in SCORINGS:
        if value == scoring:
            return scoring
    raise ConfigError(f"{where}: {shown(value)} is not one of {', '.join(SCORINGS)}")
