"""`/predict` with labels of its own, as Hugging Face's zero-shot classification has them."""

from __future__ import annotations

from collections.abc import Sequence

from ..questions.question import Question
from .deciding import asked_about, decide_all
from .exchange import Exchange
from .refusal import RefusedError
from .served import Served
from .service import Service

_LABELS, _HYPOTHESIS = "parameters.candidate_labels", "parameters.hypothesis_template"
_PLACE = "{}"
_USUAL = "Is the text about {}?"

Labelled = list[tuple[str, float]]
"""labels and how probable each is"""


async def zero_shot(
    service: Service,
    served: Served,
    exchange: Exchange,
    texts: Sequence[str],
    candidate_labels: Sequence[str],
    hypothesis: str | None,
    *,
    multi_label: bool,
) -> list[Labelled]:
    """The labels of each text: one question with all of them as options, or one for each that stands by itself.

    hypothesis: what a label means, with `{}` in its place. Raises RefusedError.
    """
    if hypothesis is not None and (n := hypothesis.count(_PLACE)) != 1:
        what = f"{_HYPOTHESIS}: has {n} {_PLACE} for the label: it needs one"
        raise RefusedError(422, "invalid", what, param=_HYPOTHESIS)
    if multi_label:
        questions = [Question.predicate((hypothesis or _USUAL).replace(_PLACE, label)) for label in candidate_labels]
    else:
        described = ((label, hypothesis and hypothesis.replace(_PLACE, label)) for label in candidate_labels)
        questions = [Question.of("choice", "", described)]
    named = [(_LABELS, question) for question in questions]
    asked = [each for text in texts for each in asked_about(text, named, audit=False)]
    found, _ = await decide_all(service, served, exchange, asked)
    if not multi_label:
        return [list(zip(candidate_labels, each.probabilities, strict=True)) for each in found]
    n = len(candidate_labels)
    return [
        [(label, each.probabilities[0]) for label, each in zip(candidate_labels, found[at : at + n], strict=True)]
        for at in range(0, len(found), n)
    ]
