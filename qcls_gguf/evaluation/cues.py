"""Tries answer cues on labelled rows, with and without a prior, in one request per row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np

from ..config.prompt import Prior
from ..config.schema import Config, raw_config
from ..config.scoring import TREE
from ..config.template import NAME_SLOT, expand
from ..config.words import shown
from ..data.labelled import LabelledColumns, LabelledQuery, read_labelled
from ..errors import ConfigError
from ..opening import ClassifierOpener
from ..statistics import accepted_probability, log_losses, mean, paired_difference, wilson
from .passes import answered_scores, refused_queries, score_tables, truth_of
from .records import CueTrial

CUES = ("{name}:", "label:", "Answer:", "")
"""What is tried beside the configured cues; after the empty one labels have no prefix."""
MAX_ROWS = 200


def try_cues(
    config: Config, rows: Sequence[LabelledQuery], opener: ClassifierOpener
) -> dict[str, tuple[CueTrial, ...]]:
    """Each prompt of system and user texts with each cue and prior: first as configured, then as in CUES.

    All in the scoring `tree`, without temperatures and calibrations. Prompts that fewer than two rows are labelled for
    are left out. Raises ConfigError if no prompt has a cue, and what Classifier raises.
    """
    chats = tuple(prompt for prompt in config.prompts if prompt.is_chat)
    if not chats:
        raise ConfigError("`cues`: no prompt has system or user texts, and only these have an answer_cue")
    variants = [chats]
    for cue, prior in product(CUES, get_args(Prior)):
        prefix = " " if cue else ""
        variants.append(
            tuple(dataclasses.replace(each, answer_cue=cue, label_prefix=prefix, prior=prior) for each in chats)
        )
    trial = []
    for number, prompts in enumerate(variants):
        rendered = opener.rendered(dataclasses.replace(config, prompts=prompts))
        for whole, raw in zip(rendered.prompts, raw_config(rendered, TREE).prompts, strict=True):
            text = expand(whole.template, {NAME_SLOT: whole.name})  # before the name changes
            prior = {"prior": whole.prior, "content_free_queries": whole.content_free_queries}
            trial.append(dataclasses.replace(raw, name=f"{number} {whole.name}", prompt_template=text, **prior))
    changed = dataclasses.replace(raw_config(config, TREE), prompts=tuple(trial), ignore_warnings=("all",))
    with opener.open(changed, quiet=True) as classifier:
        refused = {row.line for row in refused_queries(classifier, rows)}
        rows = [row for row in rows if row.line not in refused]
        scores = [answered_scores(classifier.classify(row.query)) for row in opener.each("try cues", rows)]
        tables, compiled = score_tables(classifier.prompts, scores), classifier.prompts
    found = {}
    for i, prompt in enumerate(chats):
        truth = truth_of(dataclasses.replace(compiled[i], settings=prompt), rows)
        n = len(truth.index)
        if n < 2:
            continue
        tried: list[CueTrial] = []
        by_cue = [tables[f"{number} {prompt.name}"].probability(TREE)[truth.index] for number in range(len(variants))]
        rights = [truth.accepted[np.arange(n), p.argmax(axis=1)].astype(np.float64) for p in by_cue]
        for prompts, p, right in zip(variants, by_cue, rights, strict=True):
            cue, prefix, prior = prompts[i].cue, prompts[i].label_prefix, prompts[i].prior
            if tried and (cue, prefix, prior) == (prompt.cue, prompt.label_prefix, prompt.prior):
                continue
            gain, standard_error = paired_difference(right, rights[0])
            tried.append(
                CueTrial(
                    answer_cue=cue,
                    label_prefix=prefix,
                    prior=prior,
                    n_rows=n,
                    accuracy=float(right.mean()),
                    accuracy_ci=wilson(int(right.sum()), n),
                    log_loss=mean(log_losses(accepted_probability(p, truth.accepted))),
                    gain=gain,
                    standard_error=standard_error,
                )
            )
        found[prompt.name] = tuple(tried)
    return found


def cue_for_rows(
    config: Config, path: Path, columns: LabelledColumns, opener: ClassifierOpener
) -> tuple[str, Prior, str]:
    """`best_cue` of a file's rows, of many rows about MAX_ROWS. Raises what `try_cues` and `read_labelled` raise."""
    data = read_labelled(path, {prompt.name: prompt.labels for prompt in config.prompts}, columns)
    return best_cue(try_cues(config, data.rows[:: math.ceil(len(data.rows) / MAX_ROWS) or 1], opener))


def best_cue(tried: Mapping[str, Sequence[CueTrial]]) -> tuple[str, Prior, str]:
    """(cue, prior, accuracies in words): which labels best over prompts that are configured alike.

    Others than the configured ones are best only if their mean gain is larger than the standard error of that mean.
    """
    ways: dict[tuple[str, Prior], list[CueTrial]] = {}
    for each in (cue for cues in tried.values() for cue in cues):
        ways.setdefault((each.answer_cue, each.prior), []).append(each)
    gains = {way: float(np.mean([each.gain for each in found])) for way, found in ways.items()}
    errors = {way: math.hypot(*(each.standard_error for each in found)) / len(found) for way, found in ways.items()}
    best = max(ways, key=lambda way: gains[way] if gains[way] > errors[way] else 0)
    accuracies = [
        f"{shown(cue)}{' with the prior' * (prior != 'none')} {np.mean([each.accuracy for each in found]):.1%}"
        for (cue, prior), found in ways.items()
    ]
    n_rows = max(cues[0].n_rows for cues in tried.values())
    return *best, f"accuracy on {n_rows} rows: {', '.join(accuracies)}".replace("%", " %")
