"""The scorings: how a label's tokens become its score. `docs/scoring.md` has the formulas.

A new scoring is a name here with its row in SCORINGS (and in EXACT_SCORINGS), the trie that it reads in
`prompts/trie.py`, and its arithmetic in `score/scorer.py`; commands, records and the JSON Schema take names and
descriptions from this table.
"""

from typing import Final, Literal

Scoring = Literal["tree", "first_token", "joint", "mean"]
TREE: Final = "tree"
FIRST_TOKEN: Final = "first_token"
JOINT: Final = "joint"
MEAN: Final = "mean"

SCORINGS: dict[Scoring, str] = {
    TREE: "log-probability among the labels",
    FIRST_TOKEN: "the logit of the label's first token",
    JOINT: "log-probability in the whole vocabulary",
    MEAN: "log-probability in the whole vocabulary per token",
}
"""with what a label's score is"""
EXACT_SCORINGS: tuple[Scoring, ...] = (JOINT, MEAN)
"""those that need the log-sum-exp over the vocabulary at every label token"""
SCORE_MEANING = "; ".join(f"{name}: {score}" for name, score in SCORINGS.items())
