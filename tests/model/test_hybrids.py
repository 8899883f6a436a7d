"""Models with recurrent layers beside attention: answers against stock llama.cpp's, and states that never drift."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier, OpenContext, WriteConfig
from oracle import Oracle, PromptSpec, decode_sequence
from oracle_prompts import EXACT, QUERIES, TOPICS, assert_same, make_template, random_prompts

from qcls_gguf import Classifier, DecodeError
from qcls_gguf.engine import prefixes
from qcls_gguf.model import Model
from qcls_gguf.model.header import read_header
from qcls_gguf.native import NativeModel, sees_cuda_gpu

LARGEST = 5e-5
"""Between scores, and between log-probabilities. Measured: 6.2e-6, with F32 weights, head and cache."""
ROUNDING = 0.1
"""Where weights are quantised; measured: 0.018, since a difference in the last bit may round activations otherwise."""
HYBRIDS = ("lfm2", "qwen35", "granitehybrid")
"""One of each kind of state: short convolutions, delta nets, Mamba 2."""
OTHERS = (
    "qwen35_more",
    "qwen3next",
    "kimi-linear",
    "bailingmoe3",
    "nemotron_h",
    "nemotron_h_moe",
    "falcon-h1",
    "jamba",
    "lfm2moe",
)
STYLES = {"separate": ["separate"], "joint": ["joint"], "mixed": ["query first", "plain", "joint", "separate"]}
ONE_TOKEN = ("red", "dress", "none")


def prompts_of(style: str, *topics: str, labels: tuple[str, ...] = ONE_TOKEN, **more: Any) -> list[PromptSpec]:
    return [PromptSpec(name=topic, template=make_template(style, topic), labels=labels, **more) for topic in topics]


def scores_of(classifier: Classifier, query: str) -> list[list[float]]:
    return [[score.score for score in answer.scores] for answer in classifier.classify(query).results]


@pytest.mark.parametrize(
    ("name", "style"),
    [*((name, style) for name in HYBRIDS for style in STYLES), ("lfm2_window", "mixed"), ("qwen35moe", "mixed")],
)
def test_random_prompts(name: str, style: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Labels of several tokens among them, alone and several queries at once."""
    rng = np.random.default_rng([len(name), list(STYLES).index(style)])
    path = make_model(name, seed=int(rng.integers(1000)))
    with Oracle(path, **EXACT) as oracle:
        prompts = random_prompts(rng, oracle, STYLES[style], int(rng.integers(2, 6)))
        queries = rng.permutation(QUERIES)[:3].tolist()
        classifier = open_classifier(path, prompts, max_batch=len(queries), n_batch=1000, **EXACT)
        for some in (queries, queries[:1]):
            results = classifier.classify_batch(some)
            assert_same(oracle, prompts, results, some, LARGEST)
            assert all(answer.fast_path for result in results for answer in result.results)


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures(name: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Both styles of prompts with labels of several tokens, two queries at once and then one; and what it repeats."""
    path, labels = make_model(name), ("light", "light blue", "tank top", "none")
    prompts = prompts_of("separate", "item", "all season", labels=labels) + prompts_of("joint", "user", "color")
    with Oracle(path, **EXACT) as oracle:
        classifier = open_classifier(path, prompts, max_batch=2, **EXACT)
        for queries in (["red dress for girl", ""], ["红色连衣裙"]):
            assert_same(oracle, prompts, classifier.classify_batch(queries), queries, LARGEST)
    assert scores_of(classifier, "dark") == scores_of(classifier, "dark")


@pytest.mark.parametrize("weight_type", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("name", ["lfm2", "qwen35", "kimi-linear", "jamba", "gemma3n"])
def test_quantised_weights_in_products_of_several_sequences(
    name: str, weight_type: str, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """Their layers multiply three-dimensional activations, or by several matrices at once (gemma3n, kimi-linear), for
    which processors with AMX have code of their own (patches/0013-amx-batches.patch). The bound is one of rounding:
    what a product rounds activations to depends on its kernel."""
    path, labels = make_model(name, weight_type=weight_type), ("light", "light blue", "none")
    prompts = prompts_of("separate", "item", "user", "color", labels=labels)
    with Oracle(path, **EXACT) as oracle:
        classifier = open_classifier(path, prompts, max_batch=2, **EXACT)
        queries = ["red dress for girl", "dark"]
        for query, result in zip(queries, classifier.classify_batch(queries), strict=True):
            for prompt, answer in zip(prompts, result.results, strict=True):
                scores = oracle.score(prompt, query)[0]
                np.testing.assert_allclose([score.score for score in answer.scores], scores, rtol=0, atol=ROUNDING)


@pytest.mark.skipif(not sees_cuda_gpu(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [*HYBRIDS, *OTHERS])
def test_a_gpu_answers_as_the_cpu_does(name: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """With the settings that are usual there: flash attention where llama.cpp has it, cells of F16."""
    path, labels = make_model(name), ("light", "light blue", "tank top", "none")
    prompts = prompts_of("separate", "item", "all season", labels=labels) + prompts_of("joint", "user", "color")
    answers = []
    for layers in (0, "all"):
        classifier = open_classifier(path, prompts, max_batch=2, n_gpu_layers=layers)
        results = [*classifier.classify_batch(["red dress for girl", ""]), classifier.classify("dark")]
        answers.append([[score.probability for answer in each.results for score in answer.scores] for each in results])
    np.testing.assert_allclose(answers[1], answers[0], rtol=0, atol=0.05)


@pytest.mark.parametrize("name", HYBRIDS)
def test_exact_scorings(name: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Their rows come back in the order of the plan, though llama.cpp computes them in another."""
    path = make_model(name)
    labels = ("light", "light blue", "tank top", "none")
    prompts = prompts_of("separate", "item", "all season", labels=labels, scoring="joint")
    prompts += prompts_of("joint", "user", "color", labels=labels, scoring="mean")
    with Oracle(path, **EXACT) as oracle:
        results = open_classifier(path, prompts, max_batch=2, **EXACT).classify_batch(list(QUERIES[:2]))
        for query, result in zip(QUERIES, results, strict=False):
            for prompt, answer in zip(prompts, result.results, strict=True):
                paths = oracle.joint(prompt, query)
                scores = [sum(path) / (len(path) if prompt.scoring == "mean" else 1) for path in paths]
                np.testing.assert_allclose([score.score for score in answer.scores], scores, rtol=0, atol=LARGEST)
                assert answer.audit is not None
                mass = sum(math.exp(sum(path)) for path in paths)
                assert answer.audit.label_mass == pytest.approx(mass, abs=LARGEST)


@pytest.mark.parametrize("name", HYBRIDS)
def test_separate_prompts_take_one_pass(name: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """All feed as many tokens as the one whose template ends longest behind the query, if that takes few."""
    path = make_model(name)
    prompts = prompts_of("separate", *TOPICS[:4])
    prompts[2] = replace(prompts[2], template=prompts[2].template.replace("label:", ":"))
    classifier, plain = open_classifier(path, prompts, **EXACT), open_classifier(make_model(), prompts, **EXACT)
    n_more = 1  # "label" is a token of this vocabulary
    assert [prompt.n_held_back for prompt in classifier.prompts] == [0, 0, n_more, 0]
    for query in ("red dress for girl", "", "dark " * 9):
        counts, usual = classifier.classify(query).counts, plain.classify(query).counts
        assert counts.n_decodes == 1
        assert counts.n_tokens_new == usual.n_tokens_new + n_more
        assert counts.n_tokens_cached == usual.n_tokens_cached - n_more
    with Oracle(path, **EXACT) as oracle:
        assert_same(oracle, prompts, [classifier.classify("red dress")], ["red dress"], LARGEST)


def test_a_pass_more_where_it_takes_less(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    prompts = prompts_of("separate", *TOPICS[:4])
    prompts[2] = replace(prompts[2], template=prompts[2].template + " the label of it is")
    counts = open_classifier(make_model("qwen35"), prompts).classify("red dress").counts
    assert counts.n_decodes == 2
    assert counts.n_tokens_new == open_classifier(make_model(), prompts).classify("red dress").counts.n_tokens_new


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_token_that_nobody_reads(name: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Behind the shorter query of a batch, so that both take one pass."""
    path, prompts, queries = make_model(name), prompts_of("separate", "item", "user"), ["red dress", "dark dress for"]
    results = open_classifier(path, prompts, **EXACT).classify_batch(queries)
    plain = open_classifier(make_model(), prompts, **EXACT).classify_batch(queries)[0].counts
    assert (results[0].counts.n_decodes, results[0].counts.n_tokens_new) == (1, plain.n_tokens_new + 2)
    with Oracle(path, **EXACT) as oracle:
        assert_same(oracle, prompts, results, queries, LARGEST)


@pytest.mark.parametrize("name", HYBRIDS)
def test_joint_prompts_take_the_query_once(name: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """In a pass of its own, before the passes of what differs between the prompts."""
    classifier = open_classifier(make_model(name), prompts_of("joint", "category", "color", "user"), **EXACT)
    short, long = (classifier.classify(query).counts for query in ("red dress", "red dress for boy girl"))
    assert long.n_tokens_new - short.n_tokens_new == 3
    assert short.n_decodes == long.n_decodes == 2


def test_every_pass_finds_its_graph_built(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """The first pass has no outputs, and would be built anew with each request, and on a GPU not be replayed."""
    labels = ("light blue", "light pink", "none")
    classifier = open_classifier(
        make_model("qwen35"), prompts_of("joint", "category", "color", "user", labels=labels), n_shapes=8
    )
    counters, first = classifier.engine.context.counters, classifier.classify("red dress")
    before = counters().n_graphs_reused
    again = classifier.classify("dark dress")
    assert again.counts.n_decodes == first.counts.n_decodes > 1
    assert counters().n_graphs_reused - before == again.counts.n_decodes


def test_where_a_pass_is_dear_trunks_are_fed_for_each_branch(
    make_model: MakeModel, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: prompts of one text, and labels that share their first token, take one pass."""
    path, queries = make_model("qwen35"), ["red dress", ""]
    labels = ("light blue", "light pink", "dark blue", "dark sky blue", "none")
    joint = prompts_of("joint", "user", "color", labels=labels)
    dear = len(joint) * len(labels) * 20
    with Oracle(path, **EXACT) as oracle:
        usual = open_classifier(path, joint, **EXACT).classify("red dress").counts
        monkeypatch.setattr(Model, "pass_tokens", dear)
        classifier = open_classifier(path, joint, max_batch=2, **EXACT)
        for some in (queries, queries[:1]):
            assert_same(oracle, joint, results := classifier.classify_batch(some), some, LARGEST)
            assert results[0].counts.n_decodes == 1
        assert usual.n_decodes == 3
        assert usual.n_tokens_new < results[0].counts.n_tokens_new < usual.n_tokens_new + 2 * dear


@pytest.mark.parametrize(("name", "n_requests"), [("qwen35", 1000), ("lfm2", 50), ("granitehybrid", 50)])
def test_request_1000_is_request_1_to_a_bit(
    name: str, n_requests: int, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    prompts = prompts_of("separate", "item") + prompts_of("joint", "user", "color", labels=("light", "light blue"))
    classifier = open_classifier(make_model(name), prompts)
    queries = ["red dress for girl", "", "dark blue jeans", "x"]
    first = [scores_of(classifier, query) for query in queries]
    for n in range(4, n_requests - 4):
        classifier.classify(queries[n % 4])
    assert [scores_of(classifier, query) for query in queries] == first


BREAKING = PromptSpec(
    name="dark",
    template="<|im_start|>user\nanalyze the intent of dar{query}<|im_end|>\n<|im_start|>assistant\nthe label of it is:",
    labels=("light blue", "light pink", "none"),
)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_query_that_breaks_the_cached_prefix(
    name: str, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """`dar` + `k` is another token: the whole prompt is fed, since a state cannot be cut back.

    The other prompt is shorter behind the query, so that nothing of the broken one is held back.
    """
    path = make_model(name)
    prompts = [BREAKING, *prompts_of("separate", "item")]
    with Oracle(path, **EXACT) as oracle:
        classifier = open_classifier(path, prompts, max_batch=3, **EXACT)
        usual = scores_of(classifier, "red dress")
        for queries in (["k blue"], ["red", "k blue", "k"]):
            results = classifier.classify_batch(queries)
            assert_same(oracle, prompts, results, queries, LARGEST)
            for query, result in zip(queries, results, strict=True):
                assert [answer.fast_path for answer in result.results] == [not query.startswith("k"), True]
        assert scores_of(classifier, "red dress") == usual


@pytest.mark.parametrize("template", ["query: {query}", "<|im_start|>{query}", "{query}"])
def test_a_template_that_ends_in_its_slot(
    template: str, make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    path = make_model("qwen35")
    prompts = [PromptSpec(name="a", template=template, labels=ONE_TOKEN), *prompts_of("joint", "item")]
    with Oracle(path, **EXACT) as oracle:
        classifier = open_classifier(path, prompts, **EXACT)
        for query in ("red dress", "x", "  "):
            assert_same(oracle, prompts, [classifier.classify(query)], [query], LARGEST)


def test_prompt_sets_at_run_time(
    make_model: MakeModel, open_classifier: OpenClassifier, write_config: WriteConfig
) -> None:
    """A set whose prefixes are stored in pieces comes, goes, and comes again; the configured one stays as it was."""
    path = make_model("qwen35")
    configured = prompts_of("separate", "item")
    classifier = open_classifier(path, configured, n_batch=400, **EXACT)
    before = scores_of(classifier, "red dress")
    long = [
        replace(prompt, template=f"{'the category of an item of all season ' * 12}{prompt.template}")
        for prompt in prompts_of("separate", "user", "color")
    ]
    with Oracle(path, **EXACT) as oracle:
        for _ in range(2):
            with classifier.prompt_set(write_config(path, long)) as loaded:
                results = [loaded.classify("red dress")]
                assert_same(oracle, long, results, ["red dress"], LARGEST)
                # the attention of these models sums over all cells in use, of which there are more now
                np.testing.assert_allclose(scores_of(classifier, "red dress"), before, rtol=0, atol=1e-5)
    classifier.engine.restore()
    np.testing.assert_allclose(scores_of(classifier, "red dress"), before, rtol=0, atol=1e-5)


def test_the_file_of_prefixes_brings_their_states(
    make_model: MakeModel, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(prefixes, "WORTH_MS", 0.0)
    config = write_config(make_model("qwen35"), prompts_of("separate", "item", "user"))
    found = []
    for is_from_file in (False, True):
        steps: list[str] = []
        with Classifier.from_config(config, on_step=lambda *step, seen=steps: seen.append(step[1])) as classifier:
            found.append([scores_of(classifier, query) for query in QUERIES[:4]])
        assert any(", from " in step for step in steps) == is_from_file
    assert found[0] == found[1]


@pytest.mark.parametrize("name", [*HYBRIDS, *OTHERS])
def test_the_size_of_a_state(name: str, make_model: MakeModel, open_context: OpenContext) -> None:
    with NativeModel(make_model(name)) as model:
        some, more = (open_context(model, n_seq_max=n, **EXACT).counters().cache_bytes for n in (4, 6))
        assert more - some == 2 * model.facts.state_bytes > 0
    assert read_header(make_model(name)).may_have_states
    with NativeModel(make_model()) as model:
        assert model.facts.state_bytes == 0
    assert not read_header(make_model()).may_have_states


def test_a_state_is_not_cut_back_in_silence(make_model: MakeModel, open_context: OpenContext) -> None:
    with NativeModel(make_model("qwen35")) as model:
        context = open_context(model)
        decode_sequence(context, [5, 6, 7, 8])
        zero, two = np.zeros(1, np.int32), np.full(1, 2, np.int32)
        with pytest.raises(DecodeError, match="sequence 0 cannot be trimmed to 2 positions: the model keeps a state"):
            context.trim(zero, two)
        context.trim(zero, zero)
        context.close()
