"""Models with recurrent layers beside attention: answers against stock llama.cpp's, and states that never drift."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import cases
from conftest import MakeModel, OpenClassifier, OpenContext, WriteConfig, sees_cuda_gpu
from oracle import Oracle, PromptSpec, decode_sequence
from oracle_prompts import EXACT, QUERIES, compared, make_template, numbered_prompts, random_prompts
from random_hybrids import HYBRIDS as ALL
from random_hybrids import KINDS_OF_STATES as HYBRIDS

from qcls_gguf import Classifier, ConfigError, DecodeError
from qcls_gguf.native.device import TREE_WALK

ROUNDING = 0.1
"""Where weights are quantised; measured: 0.018, since a difference in the last bit may round activations otherwise."""
OTHERS = [name for name in ALL if name not in (*HYBRIDS, "lfm2_window", "qwen35moe", "plamo2")]
STYLES = {"separate": ["separate"], "joint": ["joint"], "mixed": ["query first", "plain", "joint", "separate"]}
ONE_TOKEN = ("red", "dress", "none")


def prompts_of(style: str, *topics: str, labels: tuple[str, ...] = ONE_TOKEN, **more: Any) -> list[PromptSpec]:
    return [PromptSpec(name=topic, template=make_template(style, topic), labels=labels, **more) for topic in topics]


def scores_of(classifier: Classifier, query: str) -> list[list[float]]:
    return [[score.score for score in answer.scores] for answer in classifier.classify(query).results]


@cases(*((name, style) for name in HYBRIDS for style in STYLES), ("lfm2_window", "mixed"), ("qwen35moe", "mixed"))
def test_prompts(name: str, style: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Labels of several tokens among them, alone and several queries at once."""
    rng = np.random.default_rng([len(name), list(STYLES).index(style)])
    path = make_model(name, seed=int(rng.integers(1000)))
    with Oracle(path, **EXACT) as oracle:
        prompts = random_prompts(rng, oracle, STYLES[style], int(rng.integers(2, 6)))
    queries = rng.permutation(QUERIES)[:3].tolist()
    classifier = open_classifier(path, prompts, max_batch=len(queries), n_batch=1000, **EXACT)
    for result in chain(*compared(prompts, classifier, queries, queries[:1])):
        assert all(answer.fast_path for answer in result.results)


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures(name: str, open_classifier: OpenClassifier) -> None:
    """Both styles of prompts with labels of several tokens, two queries at once and then one; and what it repeats."""
    labels = ("light", "light blue", "tank top", "none")
    prompts = prompts_of("separate", "item", "all season", labels=labels) + prompts_of("joint", "user", "color")
    classifier = open_classifier(name, prompts, max_batch=2, **EXACT)
    compared(prompts, classifier, ["red dress for girl", ""], ["红色连衣裙"])
    assert scores_of(classifier, "dark") == scores_of(classifier, "dark")


@pytest.mark.parametrize("weight_type", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("name", ["lfm2", "qwen35", "kimi-linear", "jamba", "gemma3n"])
def test_quantised_weights_in_products_of_several(name: str, weight_type: str, open_classifier: OpenClassifier) -> None:
    """Their layers multiply three-dimensional activations, or by several matrices at once (gemma3n, kimi-linear). The
    bound is one of rounding: what a product rounds activations to depends on its kernel."""
    prompts = prompts_of("separate", "item", "user", "color", labels=("light", "light blue", "none"))
    classifier = open_classifier({"name": name, "weight_type": weight_type}, prompts, max_batch=2, **EXACT)
    compared(prompts, classifier, ["red dress for girl", "dark"], largest=ROUNDING)


@pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [*HYBRIDS, *OTHERS])
def test_a_gpu_answers_as_the_cpu_does(name: str, open_classifier: OpenClassifier) -> None:
    """With the settings that are usual there: flash attention where llama.cpp has it, cells of F16."""
    labels = ("light", "light blue", "tank top", "none")
    prompts = prompts_of("separate", "item", "all season", labels=labels) + prompts_of("joint", "user", "color")
    answers = []
    for layers in (0, "all"):
        classifier = open_classifier(name, prompts, max_batch=2, n_gpu_layers=layers)
        results = [*classifier.classify_batch(["red dress for girl", ""]), classifier.classify("dark")]
        answers.append([[score.probability for answer in each.results for score in answer.scores] for each in results])
    np.testing.assert_allclose(answers[1], answers[0], rtol=0, atol=0.05)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("name", [*HYBRIDS, "jamba", "kimi-linear", "qwen3next"])
def test_one_pass_answers_as_llama_cpps_passes_do(
    name: str, device: str, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of one text and of their own, branches of labels, queries of different lengths, alone and together."""
    if device == "gpu" and not sees_cuda_gpu():
        pytest.skip("needs a CUDA device")
    settings = EXACT | {"n_gpu_layers": "all" if device == "gpu" else 0}
    labels = ("light blue", "light pink", "dark blue", "dark sky blue", "none")
    prompts = prompts_of("joint", "user", "color", "category", labels=labels) + prompts_of("separate", "item")
    prompts[-1] = replace(prompts[-1], template=f"of all season {prompts[-1].template}")
    queries = ["red dress for girl", "", "dark blue jeans", "red dress", "x " * 20]
    plain = open_classifier("qwen3", prompts, max_batch=len(queries), **settings)
    found = []
    for value in ("0", "1"):
        monkeypatch.setenv(TREE_WALK, value)
        classifier = open_classifier(name, prompts, max_batch=len(queries), **settings)
        results = [*classifier.classify_batch(queries), *map(classifier.classify, queries)]
        found.append([[score.score for answer in each.results for score in answer.scores] for each in results])
        usual = [*plain.classify_batch(queries), *map(plain.classify, queries)]
        assert [each.counts for each in results] == [each.counts for each in usual]
    largest = 1e-4 if device == "cpu" else 0.05
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=largest)
    np.testing.assert_allclose(found[1][: len(queries)], found[1][len(queries) :], rtol=0, atol=largest)


@pytest.mark.parametrize(("name", "n_requests"), [("qwen35", 1000), ("lfm2", 50), ("granitehybrid", 50)])
def test_request_1000_is_request_1_to_a_bit(name: str, n_requests: int, open_classifier: OpenClassifier) -> None:
    prompts = prompts_of("separate", "item") + prompts_of("joint", "user", "color", labels=("light", "light blue"))
    classifier = open_classifier(name, prompts)
    queries = ["red dress for girl", "", "dark blue jeans", "x"]
    first = [scores_of(classifier, query) for query in queries]
    for n in range(4, n_requests - 4):
        classifier.classify(queries[n % 4])
    assert [scores_of(classifier, query) for query in queries] == first


def test_prompt_sets_at_run_time(open_classifier: OpenClassifier, write_config: WriteConfig) -> None:
    """A set whose prefixes are stored in pieces comes, goes, and comes again; the configured one stays as it was."""
    configured = prompts_of("separate", "item")
    classifier = open_classifier("qwen35", configured, n_batch=400, **EXACT)
    before = scores_of(classifier, "red dress")
    text, prompts = "the category of an item of all season " * 12, prompts_of("separate", "user", "color")
    long = [replace(prompt, template=f"{text}{prompt.template}") for prompt in prompts]
    for _ in range(2):
        with classifier.prompt_set(write_config("qwen35", long)) as loaded:
            compared(long, loaded, ["red dress"])
            # the attention of these models sums over all cells in use, of which there are more now
            np.testing.assert_allclose(scores_of(classifier, "red dress"), before, rtol=0, atol=1e-5)
    classifier.engine.restore()
    np.testing.assert_allclose(scores_of(classifier, "red dress"), before, rtol=0, atol=1e-5)


def test_the_file_of_prefixes_brings_their_states(write_config: WriteConfig, prefix_files: Path) -> None:
    config = write_config("qwen35", prompts_of("separate", "item", "user"))
    found = []
    for is_from_file in (False, True):
        steps: list[str] = []
        with Classifier.from_config(config, on_step=lambda *step, seen=steps: seen.append(step[1])) as classifier:
            found.append([scores_of(classifier, query) for query in QUERIES[:4]])
        assert any(", from " in step for step in steps) == is_from_file
    assert (found[0], len(list(prefix_files.glob("*.kv")))) == (found[1], 1)


@pytest.mark.parametrize("name", [*HYBRIDS, *OTHERS])
def test_the_size_of_a_state(name: str, open_context: OpenContext) -> None:
    some, more = (open_context(name, n_seq_max=n, **EXACT) for n in (4, 6))
    n_bytes = more.counters().cache_bytes - some.counters().cache_bytes
    assert n_bytes == 2 * some.model.facts.state_bytes > 0
    assert open_context("qwen3").model.facts.state_bytes == 0


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_of_some_sequences(name: str, open_context: OpenContext) -> None:
    """Two of six have room, in any order; they are as in a context with room for all."""
    some, every = (open_context(name, n_seq_max=6, n_state_seqs=n, **EXACT) for n in (2, 0))
    saved = every.counters().cache_bytes - some.counters().cache_bytes
    assert saved == 4 * some.model.facts.state_bytes
    tokens = [[5, 6, 7, 8], [9, 10, 11], [12, 13]]
    for seq, text in ((4, tokens[0]), (1, tokens[1])):
        np.testing.assert_array_equal(decode_sequence(some, text, seq=seq), decode_sequence(every, text, seq=seq))
    with pytest.raises(DecodeError):
        decode_sequence(some, tokens[2], seq=2)
    for context in (some, every):
        context.trim(np.array([4], np.int32), np.zeros(1, np.int32))
    np.testing.assert_array_equal(decode_sequence(some, tokens[2], seq=2), decode_sequence(every, tokens[2], seq=2))


@pytest.mark.parametrize("name", HYBRIDS)
def test_leaves_have_no_states(name: str, open_classifier: OpenClassifier) -> None:
    """Many queries at once take no memory for states, and prompt sets come and go in what the prefixes have."""
    prompts = numbered_prompts(3, "separate")
    few, many = (open_classifier(name, prompts, max_batch=n, n_ctx=2048, n_batch=600, **EXACT) for n in (1, 20))
    assert many.engine.context.n_seq_max > few.engine.context.n_seq_max + 19
    sizes = [each.engine.context.counters().cache_bytes for each in (few, many)]
    assert sizes[0] == sizes[1]
    compared(prompts, many, [*QUERIES[:4], "dark"] * 4)


def test_a_state_is_not_cut_back_in_silence(open_context: OpenContext) -> None:
    context = open_context("qwen35")
    decode_sequence(context, [5, 6, 7, 8])
    zero, two = np.zeros(1, np.int32), np.full(1, 2, np.int32)
    with pytest.raises(DecodeError, match="sequence 0 cannot be trimmed to 2 positions: the model keeps a state"):
        context.trim(zero, two)
    context.trim(zero, zero)


def test_settings_without_kernels_for_recurrent_layers(open_classifier: OpenClassifier) -> None:
    model = {"name": "qwen35", "weight_type": "Q8_0", "head_type": "Q8_0"}
    with pytest.raises(ConfigError, match=r"runtime\.batch_invariant: recurrent layers, .* leave it out, max_batch 1"):
        open_classifier(model, numbered_prompts(2, "joint"), batch_invariant=True)


def test_eight_queries_of_which_some_are_as_long_as_may_be(open_classifier: OpenClassifier) -> None:
    """They do not fit one decode together."""
    prompts = numbered_prompts(2, "separate", "joint")
    longest = " ".join(["dark"] * 41)  # the first word takes the place of the space that an empty query leaves
    classifier = open_classifier("lfm2", prompts, max_query_tokens=40, max_batch=8, n_batch=200, **EXACT)
    queries = [longest, "", "x", longest, *QUERIES[:4]]
    compared(prompts, classifier, queries)
