"""Part of the usual tests: a small real model labels real reviews far better than chance.

`make test` fetches model and texts (100 MB, once) into build/real; without a network the test is skipped, and the
reason is shown at the end. `make test QCLS_REAL=0` fetches nothing, and neither does pytest by itself.
"""

import os
import subprocess

import pytest

from qcls_gguf import Classifier

from . import sweep
from .texts import Task, config_of, film_reviews, model_file


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """The reviews; fetched, with the model, where that is wanted."""
    monkeypatch.setenv("QCLS_REAL", os.environ.get("QCLS_REAL", "0"))
    try:
        model_file()
        return film_reviews()
    except (FileNotFoundError, subprocess.CalledProcessError) as e:
        pytest.skip(f"no real model: {e}: `make test` fetches it where there is a network")


def test_reviews_are_labelled_far_above_chance(task: Task) -> None:
    """Asked in two ways with the default cue and `prior: content_free`: measured 75.5 and 80.5 % of 200 reviews.

    The answer `positive` is right for 57.0 %.
    """
    prompts = [sweep.prompts(task, each)[0].changed(name=each, prior="content_free") for each in sweep.WORDINGS]
    rows = task.rows[: sweep.N_ROWS]
    with Classifier.from_config(config_of(prompts)) as classifier:
        results = [classifier.classify(text) for text, _ in rows]
    for wording in sweep.WORDINGS:
        n_right = sum(result.labels[wording] == label for result, (_, label) in zip(results, rows, strict=True))
        assert n_right > 0.68 * len(rows), wording
