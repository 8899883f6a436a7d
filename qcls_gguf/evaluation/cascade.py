"""Which stages of a cascade answer, and how often as the last one would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from ..prompts.compiled import Prompt
from .modes import ToProbability
from .passes import RowScores
from .records import CascadeRecord, StageShares

_Answer = tuple[str, bool]
"""the stage that answered, and whether the last one answers the same"""


def cascade_record(
    prompts: Sequence[Prompt],
    cascade: Sequence[RowScores],
    last: Sequence[RowScores],
    to_probability: Sequence[ToProbability],
) -> CascadeRecord:
    """cascade: its answers to the rows; last: the last stage's scores of the same rows, from which to_probability, one
    for each prompt, gives that stage's probabilities."""
    by_prompt: dict[str, list[_Answer]] = {prompt.name: [] for prompt in prompts}
    for answered, alone in zip(cascade, last, strict=True):
        if answered.prompts is None or alone.prompts is None:
            continue
        for prompt, probability in zip(prompts, to_probability, strict=True):
            found = answered.prompts[prompt.name]
            same = found.scores("tree").argmax() == probability(alone.prompts[prompt.name]).argmax()
            by_prompt[prompt.name].append((found.stage or "", bool(same)))
    every = [answer for answers in by_prompt.values() for answer in answers]
    names = list(dict.fromkeys(stage for stage, _ in every))
    of_prompts = {name: _shares(answers, names) for name, answers in by_prompt.items()}
    return CascadeRecord(**dict(_shares(every, names)), prompts=of_prompts)


def _shares(answers: Sequence[_Answer], names: Sequence[str]) -> StageShares:
    counts = Counter(stage for stage, _ in answers)
    return StageShares(
        n=len(answers),
        stages={name: counts[name] / len(answers) for name in names} if answers else {},
        agreement=fmean(same for _, same in answers) if answers else None,
    )
