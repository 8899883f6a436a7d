"""The scorings: how a label's tokens become its score. `docs/scoring.md` has the formulas."""

from __future__ import annotations

from typing import Literal

Scoring = Literal["tree", "first_token", "joint", "mean"]
SCORINGS: tuple[Scoring, ...] = ("tree", "first_token", "joint", "mean")
EXACT_SCORINGS: tuple[Scoring, ...] = ("joint", "mean")
"""Those that need the log-sum-exp over the vocabulary at every label token."""
