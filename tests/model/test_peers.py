"""`joint` and `mean` against CAPPr's definition of a completion's probability, on the embedded model.

CAPPr (github.com/kddubey/cappr) tokenises prompt and completion apart: a completion is tokenised with one space before
it (`end_of_prompt`), so that the prompt's last token always ends at the prompt's end. A completion's likelihood is the
exponential of the mean of the log-probabilities that the whole vocabulary gives its tokens after the prompt; another
aggregation may be named, of which the sum is tested here. Likelihoods are divided by their sum.

It has no end-of-label token: here a label that another one begins with is a completion with that token after it.
"""

from collections.abc import Callable, Iterator
from statistics import fmean

import numpy as np
import pytest
from conftest import ROOT
from oracle import Oracle

from qcls_gguf import Classifier, Config, load_config
from qcls_gguf.config.prompt import PromptConfig
from qcls_gguf.config.resources import embedded_model
from qcls_gguf.config.scoring import Scoring
from qcls_gguf.score.result import PromptResult

QUERIES = ("red summer dress for girls", "宽松羊毛混纺大衣", "light pink wool blend coat, on sale", "")
LARGEST = 1e-3  # measured: 2.8e-6
AGGREGATIONS: dict[Scoring, Callable[[list[float]], float]] = {"joint": sum, "mean": fmean}


@pytest.fixture(scope="module", params=["fashion-8.yaml", "fashion-8-joint.yaml"])
def config(request: pytest.FixtureRequest) -> Config:
    """A shipped configuration with an F32 cache and without flash attention."""
    config = load_config(ROOT / "configs" / request.param)
    return config.changed(runtime=config.runtime.changed(n_threads=1, flash_attn=False, kv_type="f32"))


@pytest.fixture(scope="module")
def oracle(config: Config) -> Iterator[Oracle]:
    with Oracle(config.model.path or embedded_model(), kv_type="f32", flash_attn=False) as oracle:
        yield oracle


def completions(oracle: Oracle, prompt: PromptConfig) -> list[list[int]]:
    """Each label's tokens by CAPPr's rule, with the end-of-label token where another label begins with it."""
    tokens = [oracle.model.tokenize(" " + label, parse_special=False).tolist() for label in prompt.labels]
    end = oracle.special["<|im_end|>"]
    return [
        [*own, end] if any(other != own and other[: len(own)] == own for other in tokens) else own for own in tokens
    ]


def test_joint_and_mean_are_the_probabilities_of_cappr(
    config: Config, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With llama.cpp's attention, as the oracle has it: ours rounds otherwise, by 1.2e-3 at most."""
    monkeypatch.setenv("QCLS_VISIBLE_CELLS", "0")
    answers: dict[Scoring, list[tuple[PromptResult, ...]]] = {}
    for scoring in AGGREGATIONS:
        prompts = tuple(prompt.changed(scoring=scoring) for prompt in config.prompts)
        with Classifier.from_config(config.changed(prompts=prompts)) as classifier:
            answers[scoring] = [classifier.classify(query).results for query in QUERIES]
    lengths = set()
    for i, query in enumerate(QUERIES):
        for p, prompt in enumerate(config.prompts):
            start = oracle.rendered(prompt.expanded_template, query)
            paths = completions(oracle, prompt)
            lengths |= {len(path) for path in paths}
            logs = oracle.log_probabilities(start, paths)
            for scoring, aggregation in AGGREGATIONS.items():
                likelihood = np.exp([aggregation(each) for each in logs])
                scores = answers[scoring][i][p].scores
                found = [each.probability for each in scores]
                np.testing.assert_allclose(found, likelihood / likelihood.sum(), rtol=0, atol=LARGEST)
                np.testing.assert_allclose(np.exp([each.score for each in scores]), likelihood, rtol=0, atol=LARGEST)
    assert lengths == {1, 2}
