"""Priors, temperatures and abstention: what the classifier answers with them."""

import json
from pathlib import Path

import numpy as np
import pytest
from calibrations import QUERY, changed, config, fashion, probabilities, softmax, specs
from conftest import MakeModel, WriteConfig

from qcls_gguf import Classifier, ConfigError
from qcls_gguf.config.scoring import SCORINGS, Scoring
from qcls_gguf.report.run_record import RunRecord
from qcls_gguf.score.result import Result

__all__ = ["config", "fashion"]  # fixtures


@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_content_free_query_is_uniform_under_its_own_prior(
    scoring: Scoring, make_model: MakeModel, write_config: WriteConfig
) -> None:
    other: Scoring = "tree" if scoring == "first_token" else scoring
    path = write_config(make_model(), specs(other, scoring), flash_attn=False, kv_type="f32")
    path = changed(path, prior="content_free", content_free_queries=["N/A"])
    with Classifier.from_config(path) as classifier:
        assert list(classifier.startup_ms)[-1] == "priors"
        uniform, dress = classifier.classify("N/A"), classifier.classify(QUERY)
    for answer, of_dress in zip(uniform.results, dress.results, strict=True):
        n = len(answer.scores)
        assert [score.probability for score in answer.scores] == pytest.approx([1 / n] * n, abs=1e-5)
        assert len({score.score for score in answer.scores}) > 1
        assert max(score.probability for score in of_dress.scores) > 1 / n + 1e-4


def test_a_prior_is_of_all_its_queries_and_a_temperature_comes_on_top(config: Path) -> None:
    queries = ["", "N/A", "[MASK]"]
    with Classifier.from_config(config) as classifier:
        assert "priors" not in classifier.startup_ms
        raw = {
            query: {answer.prompt: answer for answer in classifier.classify(query).results}
            for query in [*queries, QUERY]
        }
    path = changed(changed(config, prior="content_free"), prompt="user", temperature=0.5)
    found = probabilities(path)
    for name, temperature in (("item", 1.0), ("user", 0.5)):
        mean = np.mean([softmax([s.score for s in raw[query][name].scores]) for query in queries], axis=0)
        score = np.array([s.score for s in raw[QUERY][name].scores])
        expected = softmax(list((score - np.log(mean)) / temperature))
        assert found[name] == pytest.approx(expected, abs=1e-4)


def test_what_is_not_calibrated_stays_the_same_bits(config: Path) -> None:
    raw = probabilities(config)
    assert probabilities(changed(config, prompt="user", temperature=1.0)) == raw
    found = probabilities(changed(config, prompt="user", temperature=2.0))
    assert found["item"] == raw["item"]
    assert found["user"] != raw["user"]
    assert found["user"] == pytest.approx(softmax([0.5 * np.log(p) for p in raw["user"]]), abs=1e-5)


def test_a_content_free_query_that_cannot_be_labelled_is_named(config: Path) -> None:
    path = changed(config, prompt="user", prior="content_free", content_free_queries=["", "long " * 80])
    with pytest.raises(ConfigError, match=r"^prompts\.user\.content_free_queries: 'long long .*max_query_tokens: 64"):
        Classifier.from_config(path)


def assert_is_record(result: Result) -> None:
    """Assert that what `run` prints of it is what its record describes."""
    plain = result.to_dict()
    assert RunRecord.model_validate(plain).to_dict() == json.loads(json.dumps(plain))


def test_below_its_confidence_a_prompt_abstains(config: Path) -> None:
    """By its calibrated probability, and for each query of a batch on its own."""
    with Classifier.from_config(config) as classifier:
        raw = classifier.classify(QUERY)
    best = raw.results[1]
    path = changed(config, prompt="user", min_confidence=best.probability, fallback="ask a person")
    with Classifier.from_config(path) as classifier:
        assert classifier.classify(QUERY).labels == raw.labels
    path = changed(path, prompt="user", temperature=3.0)
    assert_is_record(raw)
    with Classifier.from_config(path, audit=True) as classifier:
        for result in classifier.classify_batch([QUERY, QUERY]):
            assert_is_record(result)
            kept, answer = result.results
            assert (kept.label, kept.abstained) == (raw.results[0].label, False)
            assert (answer.label, answer.abstained, answer.most_probable) == ("ask a person", True, best.label)
            assert answer.probability == max(score.probability for score in answer.scores) < best.probability
            assert result.labels["user"] == "ask a person"
            first, second = result.to_dict()["results"]
            assert (second["abstained"], second["most_probable"], "audit" in second) == (True, best.label, True)
            assert first["abstained"] is False
            assert "most_probable" not in first
