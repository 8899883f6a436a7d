"""When a candidate is given up: the chance that a good one is, and that a bad one soon is; counts and intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qcls_gguf import PromptConfig
from qcls_gguf.advising.recommend import n_queries_to_prove
from qcls_gguf.advising.sequential import is_worse, log_evidence
from qcls_gguf.advising.statistics import disagreements, prompt_agreement
from qcls_gguf.advising.trial import Row, Rule, parted_rows, try_candidate
from qcls_gguf.data.labelled import LabelledQuery
from qcls_gguf.statistics import wilson

PROMPT = PromptConfig(name="colour", prompt_template="{query}:", labels=("red", "blue"))
N_RUNS, N_QUERIES = 4000, 1500


def share_dropped(agreement: float, limit: float, level: float) -> float:
    """Of many runs of queries that agree with this chance, those that are ever found clearly worse."""
    other = np.random.default_rng(7).random((N_RUNS, N_QUERIES)) >= agreement
    n = np.arange(1, N_QUERIES + 1)
    evidence = log_evidence(n, other.cumsum(axis=1), limit)
    return float((evidence >= -math.log(level)).any(axis=1).mean())


@pytest.mark.parametrize(("limit", "level"), [(0.98, 0.01), (0.98, 0.05), (0.9, 0.05), (0.5, 0.05)])
def test_a_candidate_at_the_limit_is_dropped_no_more_often_than_stated(limit: float, level: float) -> None:
    """Four standard errors of the simulation are allowed for; a test that always dropped would fail at once."""
    error = math.sqrt(level * (1 - level) / N_RUNS)
    assert share_dropped(limit, limit, level) <= level + 4 * error
    assert share_dropped((1 + limit) / 2, limit, level) <= level


def test_a_candidate_that_is_clearly_worse_is_dropped_soon() -> None:
    assert share_dropped(0.93, 0.98, 0.01) > 0.99
    assert is_worse(12, 6, 0.98, 0.01 / 8)
    assert not is_worse(1, 1, 0.98, 0.01 / 8)


def test_at_a_limit_of_one_the_first_difference_decides() -> None:
    assert not is_worse(10_000, 0, 1.0, 1e-9)
    assert is_worse(10_000, 1, 1.0, 1e-9)


def rows(*red: float | None) -> list[Row]:
    """Answers of two prompts by the probability of their first label; none: scores that are not finite."""
    return [
        None if each is None else {"colour": np.array([each, 1 - each]), "size": np.array([0.9, 0.1])} for each in red
    ]


def test_a_trial_ends_when_too_few_prompts_are_left() -> None:
    original = rows(*[0.9] * 40)
    bad = rows(*[0.1] * 40)
    rule = Rule(limit=0.9, level=0.01, least_prompts=2)
    stopped = try_candidate(iter(bad), original, rule)
    assert stopped.worse == ("colour",)
    assert not stopped.complete
    assert len(stopped.rows) < 10
    goes_on = try_candidate(iter(bad), original, Rule(limit=0.9, level=0.01, least_prompts=1))
    assert goes_on.complete
    assert goes_on.worse == ("colour",)
    good = try_candidate(iter(original), original, rule)
    assert (good.worse, good.complete) == ((), True)


def test_prompts_apart_have_the_originals_answers() -> None:
    mixed = parted_rows(rows(0.9, 0.8, None), rows(0.1, None, 0.2), ["colour"])
    assert mixed[0] is not None
    assert mixed[0]["colour"].tolist() == [0.9, 1 - 0.9]
    assert mixed[1:] == (None, None)


def test_agreement_and_accuracy_of_a_prompt() -> None:
    labels: list[dict[str, tuple[str, ...]]] = [{"colour": ("red",)}, {"colour": ("blue",)}, {}, {"size": ("S",)}]
    queries = [LabelledQuery(line=i, query=f"q{i}", labels=each) for i, each in enumerate(labels)]
    original, tried = rows(0.9, 0.9, 0.9, None), rows(0.8, 0.4, 0.9, 0.9)
    found = prompt_agreement(PROMPT, queries, original, tried, worse=False)
    assert (found.n, found.n_agree, found.n_labelled) == (3, 2, 2)
    assert found.agreement_ci == wilson(2, 3)
    assert found.accuracy == 1.0
    assert found.log_loss == pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2)
    (other,) = disagreements([PROMPT], queries, original, tried)
    assert (other.line, other.accepted) == (1, ("blue",))
    assert other.original == pytest.approx({"red": 0.9, "blue": 0.1})
    assert other.candidate == pytest.approx({"red": 0.4, "blue": 0.6})


def test_how_many_queries_prove_an_agreement() -> None:
    n = n_queries_to_prove(0.99, 0.98)
    assert n is not None
    interval, shorter = wilson(round(0.99 * n), n), wilson(round(0.99 * n * 0.8), round(n * 0.8))
    assert interval is not None
    assert shorter is not None
    assert interval[0] >= 0.98 > shorter[0]
    assert n_queries_to_prove(0.98, 0.98) is None
