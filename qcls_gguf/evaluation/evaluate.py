"""An evaluation from its data to its record: rows → answers → probabilities by mode → statistics."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import numpy as np

from ..config.fitted import headed, read_calibration
from ..config.prompt import CONTENT_FREE_QUERIES
from ..config.schema import Config
from ..config.scoring import TREE
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns, LabelledQuery
from ..errors import ConfigError
from ..opening import ClassifierOpener
from ..report.environment import environment
from ..score.adjustment import log_prior
from ..statistics import BoolArray, binomial_cdf
from .metrics import LEVEL, check_statements, joint_statistics, prompt_statistics, worst_rows
from .passes import answer_rows, probabilities_of, raw_scores, read_rows, truth_of, usable_rows
from .records import EvaluationRecord, PromptStatistics, data_record

_LEAST_TRIED, _MOST_TRIED = 40, 200
_MOST_S = 120.0


def evaluate(
    config: Config,
    path: Path,
    opener: ClassifierOpener,
    *,
    columns: LabelledColumns = PLAIN_COLUMNS,
    skip_bad: bool = False,
    check_error: bool = False,
) -> EvaluationRecord:
    """Evaluate, and return the record that `qcls-gguf eval` prints as JSON.

    path: labelled queries, see read_labelled; skip_bad: leave out rows that cannot be used, instead of refusing them;
    check_error: check what the calibration states.
    Raises ConfigError for data that cannot be used, before anything is computed; and what Classifier raises.
    """
    headed(config)  # a file that is missing is told before the model is loaded
    if check_error and config.calibration is None:
        raise _no_statements()
    data = read_rows(config, path, columns, skip_bad=skip_bad)
    with opener.open(config) as classifier:
        calibration = read_calibration(classifier.config)
        if check_error and (calibration is None or calibration.stated is None):
            raise _no_statements()
        answered = answer_rows(classifier, data, opener, skip_bad=skip_bad)
        rows, model = answered.rows, classifier.model
        truths = [truth_of(prompt, rows) for prompt in classifier.prompts]
    answers = [list(of_prompt) for of_prompt in zip(*answered.answers, strict=True)]
    p = [probabilities_of(of_prompt) for of_prompt in answers]
    found = [prompt_statistics(*of_prompt) for of_prompt in zip(truths, p, answers, strict=True)]
    return EvaluationRecord(
        data=data_record(data, len(rows), answered.bad),
        config=config,
        model=model,
        warnings=opener.warnings,
        environment=environment(config),
        together=joint_statistics(found),
        prompts={statistics.prompt: statistics for statistics, _ in found},
        worst=tuple(worst_rows(p, truths, rows)),
        non_finite=tuple(answered.non_finite),
        check=check_statements(calibration, rows, answered.answers, truths) if check_error and calibration else None,
    )


def _no_statements() -> ConfigError:
    what = "the configuration names no calibration that states an error rate"
    return ConfigError(f"`check_error`: {what}: make one with `qcls-gguf calibrate` and `target_error`")


class PriorTrial(NamedTuple):
    """One prompt on labelled rows, without a prior and with the content-free one."""

    statistics: PromptStatistics
    """without"""
    with_prior: float
    """the accuracy with it"""
    helps: bool
    """whether more rows are right with it than chance explains (sign test, 5 %), and no label all but disappears"""
    right: BoolArray
    """(n,) which rows are, in the order in which they were asked"""
    lost: str | None
    """a label that gets less than a hundredth of its share of the answers with it, and more without"""


def try_prior(
    config: Config, path: Path, opener: ClassifierOpener, columns: LabelledColumns = PLAIN_COLUMNS
) -> dict[str, PriorTrial]:
    """Whether the content-free prior helps, by prompt; of prompts without a prior, on up to 200 rows, for two minutes.

    Prompts with fewer than 40 rows are left out. Raises ConfigError for rows that cannot be used, and what Classifier
    raises.
    """
    data = read_rows(config, path, columns, skip_bad=True)
    chosen = np.random.default_rng(0).permutation(len(data.rows))[:_MOST_TRIED].tolist()
    answers, began = [], monotonic()
    with opener.open(config, quiet=True) as classifier:
        usable, _ = usable_rows(data, classifier, skip_bad=True)
        is_usable = {row.line for row in usable}
        empty = [classifier.classify(query).results for query in CONTENT_FREE_QUERIES]
        rows: list[LabelledQuery] = []
        for row in opener.progress("try the rows", [data.rows[place] for place in chosen]):
            if row.line in is_usable and monotonic() < began + _MOST_S:
                answers.append(classifier.classify(row.query).results)
                rows.append(row)
        prompts = classifier.prompts
    trials = {}
    for number, prompt in enumerate(prompts):
        truth = truth_of(prompt, rows)
        if len(truth.index) < _LEAST_TRIED:
            continue
        of_prompt = [results[number] for results in answers]
        prior = log_prior(raw_scores([results[number] for results in empty])[TREE])
        scores = raw_scores(of_prompt)[TREE][truth.index]
        places = np.arange(len(scores))
        before, after = scores.argmax(axis=1), (scores - prior).argmax(axis=1)
        was_right, is_right = truth.accepted[places, before], truth.accepted[places, after]
        n_better, n_worse = int((is_right & ~was_right).sum()), int((was_right & ~is_right).sum())
        counts = [np.bincount(labels, minlength=len(prompt.labels)) for labels in (truth.first, before, after)]
        lost = [label for label, n, was, is_now in zip(prompt.labels, *counts, strict=True) if is_now < n / 100 <= was]
        helps = not lost and binomial_cdf(n_worse, n_better + n_worse, 0.5) <= LEVEL
        trials[prompt.name] = PriorTrial(
            statistics=prompt_statistics(truth, probabilities_of(of_prompt), of_prompt)[0],
            with_prior=float(is_right.mean()),
            helps=helps,
            right=is_right if helps else was_right,
            lost=lost[0] if lost else None,
        )
    return trials


def answers_more(new: Mapping[str, PriorTrial], old: Mapping[str, PriorTrial]) -> bool:
    """Whether more rows are right in new trials than chance explains (sign test, 5 %), over all prompts."""
    pairs = list(
        chain.from_iterable(zip(new[name].right, old[name].right, strict=False) for name in new if name in old)
    )
    n_better, n_worse = pairs.count((True, False)), pairs.count((False, True))
    return binomial_cdf(n_worse, n_better + n_worse, 0.5) <= LEVEL
