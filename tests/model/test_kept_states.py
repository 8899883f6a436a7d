"""Kept queries of models with recurrent layers: answers as without, from states that decodes leave in slots."""

from typing import Any

import numpy as np
import pytest
from conftest import OpenClassifier, OpenContext, WriteConfig
from oracle import COLOR, PromptSpec
from oracle_prompts import EXACT, SEPARATE, STYLES
from random_hybrids import HYBRIDS as RANDOM
from random_hybrids import KINDS_OF_STATES as HYBRIDS

from qcls_gguf import Classifier, ConfigError, DecodeError, PlanError, Result
from qcls_gguf.core.handle import LoadedPrompts
from qcls_gguf.native import NativeContext, sees_cuda_gpu
from qcls_gguf.native.kernel_steps import TREE_WALK

ALL = [name for name in RANDOM if name != "plamo2"]
SESSION = (
    *("red dress for", "red dress for girls", "red dress for girls", "red dress for girls that", "red dress f"),
    *("blue", "blue jeans", "red dress for girls", "", "👗 - red", "👗 - red a", "blue jeans for boys"),
)


def scores(result: Result) -> list[float]:
    return [score.score for answer in result.results for score in answer.scores]


def n_saved(kept: Classifier | LoadedPrompts, plain: Classifier | LoadedPrompts, *queries: str) -> int:
    """Asks both; returns how many tokens were not fed because they are kept.

    The answers are equal to the bit, but where attention sums over all used cells, of which there are more.
    """
    found, wanted = kept.classify_batch(queries), plain.classify_batch(queries)
    answers = list(map(scores, found)), list(map(scores, wanted))
    if kept.core.engine.context.why_no_visible_cells:
        np.testing.assert_allclose(*answers, rtol=0, atol=1e-4, err_msg=str(queries))
    else:
        assert answers[0] == answers[1], queries
    assert found[0].counts.n_decodes == wanted[0].counts.n_decodes
    return wanted[0].counts.n_tokens_new - found[0].counts.n_tokens_new


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ALL)
def test_answers_are_those_of_queries_that_are_not_kept(name: str, style: str, open_classifier: OpenClassifier) -> None:
    """Repeated, typed further, cut, and forgotten in between."""
    plain, kept = (open_classifier(name, STYLES[style], kept_queries=n) for n in (0, 2))
    n_prefixes = len({prompt.prefix for prompt in kept.prompts})
    saved = [n_saved(kept, plain, query) // n_prefixes for query in SESSION]
    assert saved[0] == saved[5] == saved[9] == 0
    assert 0 < saved[1] < saved[2] <= saved[3]
    assert saved[6] == 0  # a query of one word has no state before its last one
    assert saved[10] > 0
    kept.core.run(kept.engine.restore)
    assert n_saved(kept, plain, "👗 - red a") == 0
    assert n_saved(kept, plain, "👗 - red a") > 0


@pytest.mark.parametrize("name", HYBRIDS)
def test_queries_of_a_turn(name: str, open_classifier: OpenClassifier) -> None:
    """Some go on from one slot, some would keep the same state, and there are more than slots."""
    plain, kept = (open_classifier(name, SEPARATE, kept_queries=n, max_batch=6) for n in (0, 2))
    assert n_saved(kept, plain, "red dress for girls", "blue jeans", "red dress for girls") == 0
    assert n_saved(kept, plain, "red dress for girls that", "red dress for girls a", "blue jeans -") > 0
    assert n_saved(kept, plain, "a b c", "a b d", "a b", "x y z", "red dress for girls", "") > 0
    for query in (*SESSION, "a b c", "x y z"):
        n_saved(kept, plain, query)


def test_turns_of_several_decodes(open_classifier: OpenClassifier) -> None:
    small = {"n_batch": 48, "max_query_tokens": 24}
    plain, kept = (open_classifier("qwen35", SEPARATE, **small, kept_queries=n) for n in (0, 2))
    long = "q w e r t z u i o p a s"
    plain.classify(long)
    assert kept.classify(long).counts.n_decodes == 2
    found, wanted = kept.classify(long + " a"), plain.classify(long + " a")
    assert scores(found) == scores(wanted)
    assert found.counts.n_decodes < wanted.counts.n_decodes
    for turn in (["red dress for", "blue", "jeans"], ["red dress for me", "red dress for", "jeans a", "blue"]):
        assert list(map(scores, kept.classify_batch(turn))) == list(map(scores, plain.classify_batch(turn)))


def test_prompt_sets_that_begin_alike(open_classifier: OpenClassifier, write_config: WriteConfig) -> None:
    """One with the same texts goes on from what was kept for the other; a third keeps nothing, and all stay right."""
    plain, kept = (open_classifier("qwen35", SEPARATE[:2], kept_queries=n) for n in (0, 2))
    same = write_config(
        "qwen35", [PromptSpec(name="x", template=COLOR.template, labels=("red", "dark red")), SEPARATE[1]]
    )
    others = write_config("qwen35", SEPARATE[2:])
    with kept.prompt_set(same) as of_kept, plain.prompt_set(same) as of_plain:
        assert n_saved(kept, plain, "red dress for girls") == 0
        assert n_saved(of_kept, of_plain, "red dress for girls") > 0
    with kept.prompt_set(others) as of_kept, plain.prompt_set(others) as of_plain:
        assert n_saved(of_kept, of_plain, "red dress for girls") == 0
        assert n_saved(of_kept, of_plain, "red dress for girls") == 0
    assert n_saved(kept, plain, "red dress for girls that") > 0


@pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ALL)
def test_on_a_gpu(name: str, style: str, open_classifier: OpenClassifier) -> None:
    """Products of F32 matrices may round to 10 bits there, with other numbers of tokens otherwise."""
    settings = EXACT | {"n_gpu_layers": "all", "max_batch": 3}
    plain, kept = (open_classifier(name, STYLES[style], kept_queries=n, **settings) for n in (0, 2))
    for turn in (*([query] for query in SESSION), ["red dress for", "blue jeans -", "a"], ["red dress for girls"] * 2):
        found, wanted = kept.classify_batch(turn), plain.classify_batch(turn)
        np.testing.assert_allclose(
            list(map(scores, found)), list(map(scores, wanted)), rtol=0, atol=0.05, err_msg=str(turn)
        )
    assert kept.engine.kept_queries is not None
    assert kept.engine.kept_queries.n_found > 0


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_of_kept_queries(name: str, open_classifier: OpenClassifier) -> None:
    """One for each prefix of each, and of one more, which is written while the others are read."""
    sizes = {"n_ctx": 2048, "n_batch": 300}
    plain, kept = (open_classifier(name, SEPARATE, kept_queries=n, **sizes) for n in (0, 2))
    n_bytes = [each.engine.context.counters().cache_bytes for each in (plain, kept)]
    assert n_bytes[1] - n_bytes[0] == 3 * 3 * kept.engine.model.facts.state_bytes
    assert kept.engine.context.n_state_seqs == plain.engine.context.n_state_seqs + 9


def test_no_states_of_queries_where_passes_are_llama_cpps(
    open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TREE_WALK, "0")
    with pytest.raises(
        ConfigError, match=r"kept_queries: 2, and .* in passes, .*: set it to 0, or leave QCLS_TREE_WALK"
    ):
        open_classifier("lfm2", SEPARATE, kept_queries=2)


def decode(
    context: NativeContext, tokens: list[int], *, start: int, seqs: list[int], keep: list[list[int]], trim: bool = True
) -> None:
    """A chain of tokens in some sequences, which are emptied afterwards."""
    n = len(tokens)
    each: dict[str, Any] = {"trim_seq": np.array(seqs, np.int32), "trim_start": np.zeros(len(seqs), np.int32)}
    context.decode(
        np.array(tokens, np.int32),
        np.arange(start, start + n, dtype=np.int32),
        np.arange(n + 1, dtype=np.int32) * len(seqs),
        np.array(seqs * n, np.int32),
        np.zeros(n, np.bool_),
        np.zeros((0, context.row_size), np.float32),
        **each if trim else {},
        keep=np.array(keep, np.int32).reshape(-1, 4),
    )


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_that_cannot_be_kept(name: str, open_context: OpenContext) -> None:
    """Sequences 0 and 1 are leaves; 2 to 5 may keep states, of which there is room for two."""
    context = open_context(name, n_seq_max=6, n_state_seqs=2, **EXACT)
    tokens = [5, 6, 7, 8]
    with pytest.raises(PlanError, match="keeps cells only of decodes that walk trees and are trimmed"):
        decode(context, tokens, start=0, seqs=[0], keep=[[0, 2, 0, 3]], trim=False)
    with pytest.raises(DecodeError, match="sequence 0 has no token at position 4 whose state could be kept"):
        decode(context, tokens, start=0, seqs=[0], keep=[[0, 2, 0, 5]])
    with pytest.raises(DecodeError, match="sequence 1 has no token at position 2 whose state could be kept"):
        decode(context, tokens, start=0, seqs=[0], keep=[[1, 2, 0, 3]])
    with pytest.raises(
        DecodeError, match="sequence 3 cannot get a state: another sequence gets that of the same token"
    ):
        decode(context, tokens, start=0, seqs=[0], keep=[[0, 2, 0, 3], [0, 3, 0, 3]])
    context.clear()
    decode(context, tokens, start=0, seqs=[0], keep=[[0, 2, 0, 3], [0, 3, 0, 2]])
    with pytest.raises(DecodeError, match="more than 2 sequences with states"):
        decode(context, tokens, start=0, seqs=[0], keep=[[0, 4, 0, 3]])
    context.share(2, 0, 0, 3)
    with pytest.raises(DecodeError, match="sequence 2 shares its state"):
        decode(context, tokens, start=3, seqs=[0], keep=[[0, 2, 0, 5]])
