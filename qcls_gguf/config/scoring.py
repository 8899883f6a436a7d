"""The scorings: how a label's tokens become its score. `docs/scoring.md` has the formulas.

A new scoring is a name here with its row in SCORINGS, the trie that it reads in `prompts/trie.py`, and its arithmetic
in `score/scorer.py`; commands, records and the JSON Schema take names and descriptions from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Scoring = Literal["tree", "first_token", "joint", "mean"]
TREE: Final = "tree"
FIRST_TOKEN: Final = "first_token"
JOINT: Final = "joint"
MEAN: Final = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringKind:
    """What is known of a scoring."""

    score: str
    """what a label's score is"""
    is_exact: bool = False
    """whether it needs the log-sum-exp over the vocabulary at every label token"""


SCORINGS: dict[Scoring, ScoringKind] = {
    TREE: ScoringKind(score="log-probability among the labels"),
    FIRST_TOKEN: ScoringKind(score="the logit of the label's first token"),
    JOINT: ScoringKind(score="log-probability in the whole vocabulary", is_exact=True),
    MEAN: ScoringKind(score="log-probability in the whole vocabulary per token", is_exact=True),
}
EXACT_SCORINGS: tuple[Scoring, ...] = tuple(name for name, kind in SCORINGS.items() if kind.is_exact)
SCORE_MEANING = "; ".join(f"{name}: {kind.score}" for name, kind in SCORINGS.items())
