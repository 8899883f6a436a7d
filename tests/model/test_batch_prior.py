"""`calibrate --queries`: biases from queries without labels, and the answers of the next run."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import printed

from qcls_gguf import Classifier, ConfigError, load_config
from qcls_gguf.learning.batch_prior import BatchPriorRecord, fit_batch_prior
from qcls_gguf.opening import ClassifierOpener

QUERIES = [f"{word} {i}" for i in range(15) for word in ("red dress", "blue jeans", "coat", "girls shirt")]


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """Sixty queries, one that is too long, and a blank line."""
    path = tmp_path / "queries.txt"
    path.write_text("\n".join([*QUERIES, "", "long " * 500]), encoding="utf-8")
    return path


def test_biases_take_away_what_a_prompt_prefers(queries: Path, tmp_path: Path) -> None:
    out = tmp_path / "prior.yaml"
    record = json.loads(
        printed("calibrate", "--config", "mission", "--queries", queries, "--out", out, "--strength", 0.8, "-f", "json")
    )
    assert BatchPriorRecord.model_validate(record).to_dict() == record
    assert (record["n_queries"], record["n_left_out"]) == (60, 1)
    config = load_config("mission")
    with Classifier.from_config(config) as classifier:
        before = classifier.classify_batch(QUERIES)
    with Classifier.from_config(config.changed(calibration=out)) as classifier:
        after = classifier.classify_batch(QUERIES)
    for number, prompt in enumerate(config.prompts):
        p, q = (
            np.array([[score.probability for score in result.results[number].scores] for result in results])
            for results in (before, after)
        )
        fit = record["prompts"][prompt.name]
        bias = np.array([fit["bias"][label] for label in prompt.labels])
        np.testing.assert_allclose(bias, 0.8 * (np.log(p.mean(0)).mean() - np.log(p.mean(0))), atol=2e-3)
        expected = p * np.exp(bias)
        np.testing.assert_allclose(q, expected / expected.sum(axis=1, keepdims=True), atol=1e-4)
        assert q.mean(axis=0).std() < p.mean(axis=0).std(), "labels are more alike on the whole"
        for shares, results in ((fit["before"], before), (fit["after"], after)):
            answered = [result.results[number].label for result in results]
            assert shares == {label: answered.count(label) / 60 for label in prompt.labels}


def test_strength_zero_changes_nothing_and_few_queries_are_refused(queries: Path) -> None:
    config = load_config("mission")
    with ClassifierOpener() as opener:
        record, text = fit_batch_prior(config, str(queries), opener, names=("audience",), strength=0)
        queries.write_text("\n".join(QUERIES[:49]))
        with pytest.raises(ConfigError, match="has 49 queries, a prior needs 50"):
            fit_batch_prior(config, str(queries), opener)
    assert set(record.prompts["audience"].bias.values()) == {0}
    assert list(yaml.safe_load(text)["prompts"]) == ["audience"]
