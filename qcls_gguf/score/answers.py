"""Hidden states to results: each prompt's answer, with its labels by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, repeat
from operator import getitem

from ..config.prompt import PromptConfig
from ..prompts.compiled import Prompt
from .adjustment import Adjustment, Adjustments
from .result import Audit, LabelScore, PromptResult
from .scorer import ExactScores, Float32Array, IndexArray, LabelScores, Scorer


class Answers:
    """Makes the answers of all prompts.

    It works on whole columns, without Python code for each label or prompt: after a decode the CPU caches hold none of
    that code, so running it would be slow.
    """

    def __init__(self, prompts: Sequence[Prompt], settings: Sequence[PromptConfig], scorer: Scorer) -> None:
        self._scorer = scorer
        self.adjustments: Sequence[Adjustment] = [Adjustment()] * len(prompts)
        """The calibration of each prompt's scores."""
        self._adjusting: Adjustments | None = None
        self._prompts = [prompt.name for prompt in prompts]
        self._labels = [prompt.labels for prompt in prompts]
        self._slices = [slice(low, high) for low, high in pairwise(scorer.first)]
        self._all_labels = [label for labels in self._labels for label in labels]
        self._all_n_tokens = [len(tokens) for prompt in prompts for tokens in prompt.label_tokens]
        self._none: list[None] = [None] * len(prompts)
        self._is_exact = [prompt.trie.is_exact for prompt in prompts]
        self._fallbacks = [
            (index, setting.fallback, setting.min_confidence)
            for index, setting in enumerate(settings)
            if setting.fallback is not None and setting.min_confidence is not None
        ]

    def adjust(self, adjustments: Sequence[Adjustment]) -> None:
        """Use these adjustments from now on, one for each prompt."""
        self.adjustments = adjustments
        is_neutral = all(adjustment.is_neutral for adjustment in adjustments)
        self._adjusting = None if is_neutral else Adjustments(adjustments, self._scorer.first)

    def of(self, hidden: Float32Array, row: IndexArray, fast_path: Sequence[bool]) -> list[tuple[PromptResult, ...]]:
        """The answers to each query.

        hidden, row: as Scorer.score takes them; fast_path: for each query, for each prompt. Raises ScoreError.
        """
        scores = self._scorer.score(hidden, row)
        if self._adjusting is not None:
            self._adjusting.apply(scores.score, scores.probability)
        return self._named(scores, fast_path)

    def _named(self, scores: LabelScores, fast_path: Sequence[bool]) -> list[tuple[PromptResult, ...]]:
        n = len(self._prompts)
        answers: list[tuple[PromptResult, ...]] = []
        for score, probability in zip(scores.score.tolist(), scores.probability.tolist(), strict=True):
            query = len(answers)
            label_columns = zip(self._all_labels, score, probability, self._all_n_tokens, strict=True)
            label_scores = tuple(map(tuple.__new__, repeat(LabelScore), label_columns))
            own = list(map(probability.__getitem__, self._slices))
            top = list(map(max, own))
            label = list(map(getitem, self._labels, map(list.index, own, top)))
            audits = self._audits(scores.exact, query, label) if scores.exact else self._none
            abstained = [False] * n
            for prompt, fallback, min_confidence in self._fallbacks:
                if top[prompt] < min_confidence:
                    label[prompt], abstained[prompt] = fallback, True
            fast = fast_path[query * n : (query + 1) * n]
            own_scores = map(label_scores.__getitem__, self._slices)
            columns = zip(self._prompts, label, top, abstained, fast, own_scores, audits, self._none, strict=True)
            answers.append(tuple(map(tuple.__new__, repeat(PromptResult), columns)))
        return answers

    def _audits(self, exact: ExactScores, query: int, winners: Sequence[str]) -> list[Audit | None]:
        """An audit for each prompt whose label trie is exact, None for the others.

        winners: the label of each prompt that its scoring finds most probable.
        """
        joint, mean = exact.joint[query].tolist(), exact.mean[query].tolist()
        label_mass = exact.label_mass[query].tolist()
        columns = zip(self._is_exact, self._slices, label_mass, self._labels, winners, strict=True)
        return [
            _audit(joint[own], mean[own], mass, labels, winner) if is_exact else None
            for is_exact, own, mass, labels, winner in columns
        ]


def _audit(joint: list[float], mean: list[float], label_mass: float, labels: Sequence[str], winner: str) -> Audit:
    joint_label = labels[joint.index(max(joint))]
    return Audit(
        joint=tuple(joint),
        mean=tuple(mean),
        label_mass=label_mass,
        joint_label=joint_label,
        mean_label=labels[mean.index(max(mean))],
        changes=joint_label != winner,
    )
