"""Compares the answers of candidates with the present configuration's, and recommends one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import numpy as np

from ..classifier import Classifier
from ..config.load import config_tree
from ..config.prompt import PromptConfig
from ..config.resources import SCHEMA_LINE
from ..config.schema import Config
from ..config.words import counted
from ..config.yaml_values import yaml_text
from ..data.labelled import LabelledQuery
from ..report.document import measured, percent
from ..statistics import wilson
from .answers import Answers
from .candidates import Candidate
from .records import CandidateRecord, CascadeFit, ChangedAnswer, PromptAgreement

STAGE_FILE = "first-stage.yaml"
_N_CHANGED = 10
_COMMENT_CELLS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A candidate that is open."""

    candidate: Candidate
    classifier: Classifier
    cascade: CascadeFit | None = None


def compared_record(
    contender: Contender, answers: Answers, present: Answers, rows: Sequence[LabelledQuery], limit: float
) -> CandidateRecord:
    """The record of a candidate that answered the rows. present: the present configuration's answers to them."""
    candidate = contender.candidate
    prompts = {prompt.name: _agreement(prompt, answers, present, rows) for prompt in candidate.config.prompts}
    accuracies = [each.accuracy for each in prompts.values() if each.accuracy is not None]
    p50, present_p50 = float(np.median(answers.ms)), float(np.median(present.ms))
    found = CandidateRecord(
        name=candidate.name,
        why=candidate.why,
        model=contender.classifier.model,
        n_tokens=float(answers.n_tokens.mean()),
        mean_ms=float(answers.ms.mean()),
        p50_ms=p50,
        time_share=p50 / present_p50,
        prompts=prompts,
        least_agreement=min(each.agreement for each in prompts.values()),
        meets_limit=all(each.agreement >= limit for each in prompts.values()),
        is_proven=all(each.agreement_ci[0] >= limit for each in prompts.values()),
        accuracy=float(np.mean(accuracies)) if accuracies else None,
        changed=tuple(
            row for prompt in candidate.config.prompts for row in _changed(prompt, answers, present, rows)[:_N_CHANGED]
        ),
        cascade=contender.cascade,
        yaml=None,
    )
    if answers is present:
        return found
    text = written(
        candidate.config,
        f"Derived by `qcls-gguf advise`: {candidate.name}.",
        f"What is different: {candidate.why}.",
        f"On {counted(len(rows), 'row')} {_figures(found)}. The median request took {measured(p50)} ms instead of "
        f"{measured(present_p50)}, and fed {answers.n_tokens.mean():.1f} tokens instead of "
        f"{present.n_tokens.mean():.1f}.",
    )
    return found.model_copy(update={"yaml": text})


def written(config: Config, *comments: str) -> str:
    """A configuration as a file, with sentences above it; a cascade's first stage is in the same folder."""
    lines = [line for comment in comments for line in wrap(comment, _COMMENT_CELLS)]
    text = SCHEMA_LINE + "".join(f"# {line}\n" for line in lines) + yaml_text(config_tree(config))
    return text.replace(f"config: {Path(STAGE_FILE).absolute()}", f"config: {STAGE_FILE}")


def _agreement(
    prompt: PromptConfig, answers: Answers, present: Answers, rows: Sequence[LabelledQuery]
) -> PromptAgreement:
    winners = answers.winners(prompt.name)
    n_agree = int((winners == present.winners(prompt.name)).sum())
    right = [
        prompt.labels[winner] in row.labels[prompt.name]
        for row, winner in zip(rows, winners.tolist(), strict=True)
        if prompt.name in row.labels
    ]
    return PromptAgreement(
        agreement=n_agree / len(rows),
        agreement_ci=wilson(n_agree, len(rows)) or (0.0, 1.0),
        accuracy=sum(right) / len(right) if right else None,
    )


def _changed(
    prompt: PromptConfig, answers: Answers, present: Answers, rows: Sequence[LabelledQuery]
) -> list[ChangedAnswer]:
    before, after = present.winners(prompt.name), answers.winners(prompt.name)
    sure_before, sure_after = present.sureness(prompt.name), answers.sureness(prompt.name)
    return [
        ChangedAnswer(
            prompt=prompt.name,
            line=rows[index].line,
            query=rows[index].query,
            present=prompt.labels[before[index]],
            present_probability=float(sure_before[index]),
            candidate=prompt.labels[after[index]],
            candidate_probability=float(sure_after[index]),
            accepted=rows[index].labels.get(prompt.name),
        )
        for index in np.flatnonzero(before != after).tolist()
    ]


def _figures(each: CandidateRecord) -> str:
    """How far it agrees, in words."""
    name, worst = min(each.prompts.items(), key=lambda pair: pair[1].agreement)
    low, high = worst.agreement_ci
    return (
        f"it answers {percent(worst.agreement)} (95 % interval {percent(low)} to {percent(high)}) as the present "
        f"configuration in the prompt that differs most ({name})"
    )


def recommendation(compared: Sequence[CandidateRecord], limit: float) -> tuple[CandidateRecord | None, str]:
    """The fastest candidate (by the median request) that meets the limit in every prompt, and why.

    None if no such candidate is faster than the present configuration. compared: the present configuration first.
    """
    meeting = [each for each in compared[1:] if each.meets_limit]
    best = min(meeting, key=lambda each: each.time_share, default=None)
    if best is None or best.time_share >= 1:
        what = "that keeps {} of the answers is faster" if meeting else "keeps {} of the answers in every prompt"
        what = what if compared[1:] else "could be derived, and none was given"
        return None, f"keep the present configuration: no candidate {what.format(percent(limit))}"
    sure = (
        "every prompt's interval lies above the limit"
        if best.is_proven
        else "not yet proven, since some prompt's interval begins below the limit: more rows would tell"
    )
    return best, (
        f"take {best.name}, the fastest that keeps {percent(limit)} of the answers in every prompt: a request takes "
        f"{best.time_share:.2f} of the present time and feeds {best.n_tokens:.1f} tokens instead of "
        f"{compared[0].n_tokens:.1f}; {_figures(best)}; {sure}"
    )
