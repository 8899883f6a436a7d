"""The answer to a question: how probable each of its options is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """The probabilities of a question's options, in their order, which add up to 1; and the numbers that APIs want."""

    probabilities: list[float]
    label_mass: float | None = None
    """the probability that lies on the options at all; only where the question is audited"""
    stage: str | None = None
    """the stage of a cascade that gave the answer"""
    depth: int | None = None
    """the layers after which a learnt head read the hidden state that the answer is of"""
    label_set: tuple[str, ...] | None = None
    """labels that hold a right one with the stated probability; only of a configured prompt that asks for sets"""

    @property
    def extra(self) -> dict[str, object]:
        """Fields of an answer that its API does not define: label mass (by SGLang's name), stage, head, label set."""
        scored_by = None if self.depth is None else "head"
        given = {
            "x_label_mass": self.label_mass,
            "x_stage": self.stage,
            "x_scored_by": scored_by,
            "x_depth": self.depth,
            "x_label_set": self.label_set,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def best(self) -> int:
        """The index of the most probable option, the first of equals."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def choice_confidence(self) -> float:
        """(p - 1/n) / (1 - 1/n) for the largest probability p of n options; 1 for a single option."""
        n = len(self.probabilities)
        return 1.0 if n == 1 else min(max((max(self.probabilities) - 1 / n) / (1 - 1 / n), 0.0), 1.0)

    @property
    def expected_level(self) -> float:
        """The expected index of a level, 0 to n - 1."""
        return sum(index * probability for index, probability in enumerate(self.probabilities))

    @property
    def score_confidence(self) -> float:
        """1 minus the mean distance from the most probable level, divided by that of equally probable levels."""
        n = len(self.probabilities)
        if n == 1:
            return 1.0
        distance = sum(probability * abs(index - self.best) for index, probability in enumerate(self.probabilities))
        even = sum(abs(index - (n - 1) / 2) for index in range(n)) / n
        return max(0.0, 1.0 - distance / even)
