"""Label scores to what a caller gets: each prompt's answer, with its labels by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .config import PromptConfig
from .prompt import Prompt
from .request import Unit
from .result import Audit, LabelScore, PromptResult
from .score import ExactScores, LabelScores


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    """What of a prompt's answer is the same for every query; its labels lie at [low, high) of the scores."""

    prompt: str
    labels: tuple[str, ...]
    n_tokens: tuple[int, ...]
    low: int
    high: int
    min_confidence: float
    fallback: str | None


class Answers:
    """Makes the answers of all prompts."""

    def __init__(self, prompts: Sequence[Prompt], settings: Sequence[PromptConfig], first: Sequence[int]) -> None:
        """Prompt p's labels lie at [first[p], first[p + 1]) of the scores."""
        self._labels = [
            _Labels(
                prompt=prompt.name,
                labels=prompt.labels,
                n_tokens=tuple(map(len, prompt.label_tokens)),
                low=low,
                high=high,
                min_confidence=setting.min_confidence or 0.0,
                fallback=setting.fallback,
            )
            for prompt, setting, low, high in zip(prompts, settings, first[:-1], first[1:], strict=True)
        ]

    def of(self, scores: LabelScores, query: int, units: Sequence[Unit]) -> tuple[PromptResult, ...]:
        """The answers to one of the queries that were scored, which has these units."""
        score, probability = scores.score[query].tolist(), scores.probability[query].tolist()
        answers = []
        for index, (each, unit) in enumerate(zip(self._labels, units, strict=True)):
            low, high = each.low, each.high
            own = probability[low:high]
            top = max(own)
            winner = each.labels[own.index(top)]
            abstained = top < each.min_confidence and each.fallback is not None
            answers.append(
                PromptResult(
                    prompt=each.prompt,
                    label=each.fallback if abstained and each.fallback else winner,
                    probability=top,
                    abstained=abstained,
                    fast_path=unit.fast_path,
                    scores=tuple(map(LabelScore, each.labels, score[low:high], own, each.n_tokens)),
                    audit=_audit(scores.exact, query, index, each, winner) if scores.exact else None,
                )
            )
        return tuple(answers)


def _audit(exact: ExactScores, query: int, prompt: int, own: _Labels, answer: str) -> Audit:
    joint, mean = (row[query, own.low : own.high].tolist() for row in (exact.joint, exact.mean))
    joint_label = own.labels[joint.index(max(joint))]
    return Audit(
        joint=tuple(joint),
        mean=tuple(mean),
        label_mass=float(exact.label_mass[query, prompt]),
        joint_label=joint_label,
        mean_label=own.labels[mean.index(max(mean))],
        changes=joint_label != answer,
    )
