"""`joint` and `mean` against CAPPr's definition of a completion's probability, on the embedded model.

CAPPr (github.com/kddubey/cappr) tokenises prompt and completion apart: a completion is tokenised with one space before
it (`end_of_prompt`), so that the prompt's last token always ends at the prompt's end. A completion's likelihood is the
exponential of the mean of the log-probabilities that the whole vocabulary gives its tokens after the prompt; another
aggregation may be named, of which the sum is tested here. Likelihoods are divided by their sum.

It has no end-of-label token: here a label that another one begins with is a completion with that token after it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from oracle import Oracle, log_softmax

from qcls_gguf import Classifier, Config, load_config
from qcls_gguf.config.prompt import PromptConfig
from qcls_gguf.config.resources import embedded_model
from qcls_gguf.config.scoring import EXACT_SCORINGS, Scoring
from qcls_gguf.score.result import PromptResult

ROOT = Path(__file__).parents[2]
QUERIES = ("red summer dress for girls", "宽松羊毛混纺大衣", "light pink wool blend coat, on sale", "")
LARGEST = 1e-3  # measured: 2.8e-6
FloatArray = npt.NDArray[np.float64]


@pytest.fixture(scope="module", params=["fashion-8.yaml", "fashion-8-joint.yaml"])
def config(request: pytest.FixtureRequest) -> Config:
    """A shipped configuration with an F32 cache and without flash attention."""
    config = load_config(ROOT / "configs" / request.param)
    return replace(config, runtime=replace(config.runtime, n_threads=1, flash_attn=False, kv_type="f32"))


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


def log_probabilities(oracle: Oracle, start: Sequence[int], paths: Sequence[Sequence[int]]) -> list[list[float]]:
    """log p of each token of each completion after a prompt's tokens, from stock logits over the whole vocabulary."""
    logits: dict[tuple[int, ...], FloatArray] = {}
    found = []
    for path in paths:
        *fed, _ = path
        if tuple(fed) not in logits:
            logits[tuple(fed)] = oracle.logits([*start, *fed])[len(start) - 1 :]
        rows = logits[tuple(fed)]
        found.append([float(log_softmax(row)[token]) for row, token in zip(rows, path, strict=True)])
    return found


def test_joint_and_mean_are_the_probabilities_of_cappr(
    config: Config, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With llama.cpp's attention, as the oracle has it: ours rounds otherwise, by 1.2e-3 at most."""
    monkeypatch.setenv("QCLS_VISIBLE_CELLS", "0")
    answers: dict[Scoring, list[tuple[PromptResult, ...]]] = {}
    for scoring in EXACT_SCORINGS:
        prompts = tuple(replace(prompt, scoring=scoring) for prompt in config.prompts)
        with Classifier.from_config(replace(config, prompts=prompts)) as classifier:
            answers[scoring] = [classifier.classify(query).results for query in QUERIES]
    lengths = set()
    for i, query in enumerate(QUERIES):
        for p, prompt in enumerate(config.prompts):
            start = oracle.rendered(prompt.expanded_template, query)
            paths = completions(oracle, prompt)
            lengths |= {len(path) for path in paths}
            logs = log_probabilities(oracle, start, paths)
            likelihoods: dict[Scoring, list[float]] = {
                "joint": [sum(each) for each in logs],
                "mean": [sum(each) / len(each) for each in logs],
            }
            for scoring in EXACT_SCORINGS:
                likelihood = likelihoods[scoring]
                probability = np.array([score.probability for score in answers[scoring][i][p].scores])
                np.testing.assert_allclose(
                    probability, np.exp(likelihood) / np.exp(likelihood).sum(), rtol=0, atol=LARGEST
                )
                scores = [score.score for score in answers[scoring][i][p].scores]
                np.testing.assert_allclose(np.exp(scores), np.exp(likelihood), rtol=0, atol=LARGEST)
    assert lengths == {1, 2}
