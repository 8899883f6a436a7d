"""Continuations against stock llama.cpp, which decodes every text by itself."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import MakeModel
from oracle import Oracle, decode_sequence, log_softmax

from qcls_gguf.config.schema import ModelConfig, RuntimeConfig
from qcls_gguf.engine import continuations
from qcls_gguf.engine.continuations import Continuation, ContinuationScorer, TokenScore
from qcls_gguf.errors import PlanError
from qcls_gguf.model import Model

RUNTIME = RuntimeConfig(n_threads=1, n_gpu_layers=0, kv_type="f32")


def some_texts(n_vocab: int) -> list[Continuation]:
    """Documents that begin alike, with choices; whole texts, as `echo` asks for; and nothing to score."""
    rng = np.random.default_rng(7)
    stem = rng.integers(5, n_vocab, 40).tolist()
    texts = []
    for _ in range(8):
        document = [*stem[: rng.integers(1, 41)], *rng.integers(5, n_vocab, rng.integers(0, 20)).tolist()]
        for _ in range(4):
            choice = rng.integers(5, 8, rng.integers(1, 5)).tolist()
            texts.append(Continuation((*document, *choice), len(document)))
    whole = [Continuation(text.tokens, 1) for text in texts[::3]]
    return [*texts, *whole, texts[0], Continuation(tuple(stem), len(stem))]


def stock_scores(path: Path, texts: list[Continuation]) -> list[list[TokenScore]]:
    found = []
    with Oracle(path, kv_type="f32", flash_attn=False) as oracle:
        for tokens, n_given in texts:
            rows = decode_sequence(oracle.context, tokens)
            oracle.context.clear()
            scores = [log_softmax(row.astype(np.float64)) for row in rows]
            follows = zip(scores[n_given - 1 : -1], tokens[n_given:], strict=True)
            found.append([TokenScore(float(row[token]), int(row.argmax()), float(row.max())) for row, token in follows])
    return found


def check(found: list[list[TokenScore]], expected: list[list[TokenScore]], atol: float) -> None:
    assert [len(each) for each in found] == [len(each) for each in expected]
    flat, wanted = ([score for of_text in each for score in of_text] for each in (found, expected))
    np.testing.assert_allclose([each[::2] for each in flat], [each[::2] for each in wanted], rtol=0, atol=atol)
    assert [each.best for each in flat] == [each.best for each in wanted]


@pytest.fixture(params=["qwen3", "gemma2", "lfm2"])
def path(request: pytest.FixtureRequest, make_model: MakeModel) -> Path:
    return make_model(request.param)


@pytest.fixture
def model(path: Path) -> Iterator[Model]:
    with Model.open(ModelConfig(path=path), RUNTIME) as model:
        yield model


@pytest.mark.parametrize("n_leaves", [1, 5, 64])
def test_scores_equal_those_of_each_text_alone(
    path: Path, model: Model, n_leaves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many texts a tree has, in whatever order they come, and whatever was asked before."""
    monkeypatch.setattr(continuations, "_N_LEAVES", n_leaves)
    texts = some_texts(model.facts.n_vocab)
    expected = stock_scores(path, texts)
    n_scored: list[int] = []
    with ContinuationScorer(model, RUNTIME, 100) as scorer:
        check(scorer.scores(texts, n_scored.append), expected, 1e-3)
        assert sum(n_scored) == len(texts)
        check(scorer.scores(texts[::-1]), expected[::-1], 1e-3)
        check([scorer.scores([text])[0] for text in texts], expected, 1e-3)


def test_a_text_as_long_as_the_limit_and_one_that_is_longer(path: Path, model: Model) -> None:
    """Nothing is computed, and the scorer answers on."""
    rng = np.random.default_rng(2)
    tokens = tuple(rng.integers(5, model.facts.n_vocab, 500).tolist())
    texts = [Continuation(tokens, 480), Continuation(tokens[:400], 1)]
    with ContinuationScorer(model, RUNTIME, 500) as scorer:
        for wrong, message in [
            (Continuation((*tokens, 9), 1), "text 1 has 501 tokens, at most 500"),
            (Continuation(tokens[:3], 0), "text 1 of 3 tokens gives 0 of them"),
            (Continuation((), 0), "text 1 of 0 tokens gives 0 of them"),
        ]:
            with pytest.raises(PlanError, match=message):
                scorer.scores([texts[0], wrong])
        with pytest.raises(PlanError, match="token"):
            scorer.scores([Continuation((5, model.facts.n_vocab, 5), 1)])
        check(scorer.scores(texts), stock_scores(path, texts), 1e-3)
