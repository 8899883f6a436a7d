"""Models with recurrent layers under load: many prompts, long batches, several callers, and stages of a cascade."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cascades import write
from conftest import MakeModel, OpenClassifier, WriteConfig
from oracle import Oracle, PromptSpec
from oracle_prompts import EXACT, QUERIES, TEMPLATES, assert_same, make_template, numbered_prompts

from qcls_gguf import Classifier, Result
from qcls_gguf.labelling.batches import BatchLabeller, most_with_states

LARGEST = 5e-5
"""From stock llama.cpp, as in test_hybrids.py."""


def test_64_prompts(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """In a dozen passes; of every kind of template some are compared."""
    path, prompts, query = make_model("qwen35"), numbered_prompts(64, *TEMPLATES), "red dress for girl"
    result = open_classifier(path, prompts, **EXACT).classify(query)
    some = [0, 13, 26, 63]
    with Oracle(path, **EXACT) as oracle:
        chosen = replace(result, results=tuple(result.results[i] for i in some))
        assert_same(oracle, [prompts[i] for i in some], [chosen], [query], LARGEST)
    assert result.counts.n_decodes > 3


def test_eight_queries_of_which_some_are_as_long_as_may_be(
    make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """They do not fit one decode together."""
    path, prompts = make_model("lfm2"), numbered_prompts(2, "separate", "joint")
    longest = " ".join(["dark"] * 41)  # the first word takes the place of the space that an empty query leaves
    with Oracle(path, **EXACT) as oracle:
        classifier = open_classifier(path, prompts, max_query_tokens=40, max_batch=8, n_batch=200, **EXACT)
        queries = [longest, "", "x", longest, *QUERIES[:4]]
        results = classifier.classify_batch(queries)
        assert_same(oracle, prompts, results, queries, LARGEST)
        other = [*queries[4:], *queries[:4]]
        assert classifier.classify_batch(other)[0].counts == results[0].counts  # they are computed by their lengths


def test_several_callers(make_model: MakeModel, open_classifier: OpenClassifier, write_config: WriteConfig) -> None:
    """Their queries share decodes, and each has prompts of its own for a while."""
    path, configured = make_model("qwen35"), numbered_prompts(2, "separate", "joint")
    classifier = open_classifier(path, configured, max_batch=4, **EXACT)
    own = [numbered_prompts(n, "plain", "joint") for n in (1, 2, 3)]
    configs = [write_config(path, prompts, max_batch=4, **EXACT) for prompts in own]
    queries = list(QUERIES[:2])

    def call(index: int) -> tuple[list[Result], list[Result]]:
        first = [classifier.classify(query) for query in queries]
        with classifier.prompt_set(configs[index]) as loaded:
            return first, [loaded.classify(query) for query in queries]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(call, range(3)))
    with Oracle(path, **EXACT) as oracle:
        for prompts, (shared, alone) in zip(own, found, strict=True):
            assert_same(oracle, configured, shared, queries, LARGEST)
            assert_same(oracle, prompts, alone, queries, LARGEST)


def test_a_cascade(tmp_path: Path, make_model: MakeModel, write_config: WriteConfig) -> None:
    """A prompt's answer is the first stage's where that is sure, else the last stage's."""
    names, stages, queries = ("category", "audience"), set(), list(QUERIES[:6])
    paths = []
    for model, style in (("lfm2", "joint"), ("qwen35", "separate")):
        labels = ("red", "light blue", "light pink")
        prompts = [PromptSpec(name=name, template=make_template(style, name), labels=labels) for name in names]
        paths.append(write_config(make_model(model), prompts))
    first, last = (yaml.safe_load(path.read_text()) for path in paths)
    with ExitStack() as stack:
        files = (write(tmp_path, first, dict.fromkeys(names, 0.6), last), *paths)
        both, cheap, dear = (stack.enter_context(Classifier.from_config(path)) for path in files)
        for query, result in zip(queries, both.classify_batch(queries), strict=True):
            apart = (each.classify(query).results for each in (cheap, dear))
            for answer, sure, other in zip(result.results, *apart, strict=True):
                wanted = sure if sure.probability >= 0.6 else other
                assert (answer.prompt, answer.label) == (wanted.prompt, wanted.label)
                assert answer.probability == pytest.approx(wanted.probability, abs=0.01)
                stages.add(answer.stage)
    assert len(stages) == 2


def test_a_table_is_labelled_by_length_in_decodes_whose_states_fit(
    make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    classifier = open_classifier(make_model("lfm2"), numbered_prompts(2, "separate"), max_batch=4)
    words, n = ("dark", "red", "x", "summer dress"), range(1, 5)
    queries = [" ".join([word] * times) for times in n for word in words]
    batches = list(BatchLabeller(classifier.configured, 4).label(queries[::-1]))
    lengths = [len(queries[::-1][place]) for batch in batches for place, _ in batch]
    assert lengths == sorted(lengths)
    prompts = classifier.configured.compiled
    n_leaves = sum(prompt.trie.n_leaves for prompt in classifier.prompts)
    states = (0, 1, (2 << 30) // (5 * n_leaves), 2 << 30)
    assert [most_with_states(prompts, n_bytes) for n_bytes in states] == [32, 32, 5, 1]
