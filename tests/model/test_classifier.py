"""The public API: threads, closing, refusals, times, counts, and what a result holds."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier, WriteConfig
from oracle import COLOR, PromptSpec

from qcls_gguf import Classifier, ConfigError, Model, PlanError, QclsError, Result, ScoreError, load_config
from qcls_gguf.system.timing import STAGES

PROMPTS = [
    COLOR,
    PromptSpec(
        name="item",
        template="<|im_start|>system\nanalyze the item<|im_end|>\n<|im_start|>user\nquery: {query}<|im_end|>\nlabel:",
        labels=("dress", "jeans", "none"),
        scoring="first_token",
    ),
]
SHARED = [
    PromptSpec(name=name, template=f"<|im_start|>user\nquery: {{query}}<|im_end|>\n{name}:", labels=labels)
    for name, labels in (("color", ("light blue", "light pink", "red", "none")), ("item", ("dress", "jeans", "none")))
]
LARGEST_DIFFERENCE = 0.01
"""of probabilities; the cache rounds to F16"""
QUERIES = ["red dress", "", "jeans for girl", "👗", "红色连衣裙", "tank top " * 5]


@pytest.fixture
def classifier(make_model: MakeModel, open_classifier: OpenClassifier) -> Classifier:
    return open_classifier(make_model(), PROMPTS)


def answers(result: Result) -> Any:
    """What a result says, without its times."""
    return result.results


def test_threads_take_turns(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    classifier = open_classifier(make_model(), PROMPTS, max_batch=1)
    queries = QUERIES * 20
    wanted = [answers(classifier.classify(query)) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(classifier.classify, queries))
    assert [answers(result) for result in results] == wanted
    assert {result.counts.n_queries for result in results} == {1}


def test_threads_that_wait_share_a_decode(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    classifier = open_classifier(make_model(), SHARED)
    queries = QUERIES * 20
    wanted = [classifier.classify(query) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(classifier.classify, queries))
    assert [result.query for result in results] == queries
    for result, alone in zip(results, wanted, strict=True):
        assert_alike(result, alone)
    assert {result.counts.n_queries for result in results} > {1}
    assert max(result.counts.n_queries for result in results) <= 4
    assert any(result.wait_ms > 0 for result in results)
    assert all(result.total_ms == pytest.approx(sum(result.stage_ms.values())) for result in results)


def test_on_a_cpu_prompts_with_prefixes_of_their_own_are_not_merged(classifier: Classifier) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(classifier.classify, QUERIES * 20))
    assert {result.counts.n_queries for result in results} == {1}
    assert any(result.wait_ms > 0 for result in results)


def assert_alike(result: Result, other: Result) -> None:
    """Equal but for what the number of tokens in a decode does to the arithmetic."""
    for answer, wanted in zip(result.results, other.results, strict=True):
        np.testing.assert_allclose(
            [score.probability for score in answer.scores],
            [score.probability for score in wanted.scores],
            rtol=0,
            atol=LARGEST_DIFFERENCE,
        )


def test_batches_and_single_queries_from_threads(classifier: Classifier) -> None:
    wanted = {query: classifier.classify(query) for query in QUERIES}
    batch = [answers(result) for result in classifier.classify_batch(QUERIES)]

    def work(n: int) -> bool:
        if n % 2:
            return [answers(result) for result in classifier.classify_batch(QUERIES)] == batch
        query = QUERIES[n % len(QUERIES)]
        assert_alike(classifier.classify(query), wanted[query])
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(60)))


def test_answers_can_be_pickled_and_classifiers_cannot(classifier: Classifier) -> None:
    result = classifier.classify("red dress")
    assert pickle.loads(pickle.dumps(result)) == copy.deepcopy(result) == result
    for take in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match=r"a Classifier cannot be pickled or copied.* make one in each process"):
            take(classifier)


def test_closing_while_others_classify(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Whoever comes too late gets an error, nobody a crash or a wrong label."""
    classifier = open_classifier(make_model(), PROMPTS)
    wanted = answers(classifier.classify("red dress"))

    def work(n: int) -> bool:
        if n == 30:
            classifier.close()
        try:
            return bool(answers(classifier.classify("red dress")) == wanted)
        except QclsError as e:
            return "closed" in str(e)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(100)))


def test_the_same_query_gives_the_same_bits(classifier: Classifier) -> None:
    first = [answers(classifier.classify(query)) for query in QUERIES]
    for _ in range(20):
        assert [answers(classifier.classify(query)) for query in QUERIES] == first
        classifier.classify_batch(QUERIES)


def test_two_classifiers_side_by_side(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    one, other = (open_classifier(make_model(seed=seed), PROMPTS) for seed in (0, 1))
    wanted = [answers(c.classify("red dress")) for c in (one, other)]
    assert wanted[0] != wanted[1]
    assert [answers(c.classify("red dress")) for c in (one, other)] == wanted
    one.close()
    assert answers(other.classify("red dress")) == wanted[1]


def test_closing_is_idempotent_and_final(make_model: MakeModel, write_config: WriteConfig) -> None:
    with Classifier.from_config(write_config(make_model(), PROMPTS)) as classifier:
        model = classifier.model
        classifier.close()
        classifier.close()
    classifier.close()
    for _ in range(2):
        with pytest.raises(QclsError, match="closed"):
            classifier.classify("red dress")
        with pytest.raises(QclsError, match="closed"):
            classifier.classify_batch(["red dress"])
    assert classifier.classify_batch([]) == []
    assert classifier.model == model
    assert [prompt.name for prompt in classifier.prompts] == ["color", "item"]


def test_a_queued_decode_changes_no_answer(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a decode is queued, then waited for; that it is done here is all that is made up."""
    wanted = [answers(classifier.classify(query)) for query in QUERIES]
    monkeypatch.setattr(Model, "is_all_on_gpu", True)
    assert [answers(classifier.classify(query)) for query in QUERIES] == wanted


def test_a_classifier_is_made_from_a_configuration() -> None:
    with pytest.raises(ConfigError, match=r"made by Classifier\.from_config, not by Classifier\('mission'\)"):
        Classifier("mission")  # type: ignore[arg-type]


def test_batches_of_nothing_and_of_letters(classifier: Classifier) -> None:
    assert classifier.classify_batch([]) == []
    with pytest.raises(PlanError, match="classify"):
        classifier.classify_batch("red dress")


@pytest.mark.parametrize("query", [None, 7, b"red", ["red"]])
def test_queries_that_are_no_text(query: Any, classifier: Classifier) -> None:
    before = answers(classifier.classify("red dress"))
    for call in (classifier.classify, lambda query: classifier.classify_batch([query])):
        with pytest.raises((PlanError, TypeError)):
            call(query)
    assert answers(classifier.classify("red dress")) == before


def test_a_batch_is_a_list_of_any_length(classifier: Classifier) -> None:
    queries = QUERIES * 7
    results = classifier.classify_batch(tuple(queries))
    assert [result.query for result in results] == queries
    assert {result.counts.n_queries for result in results} == {len(queries)}
    single = {query: classifier.classify(query) for query in QUERIES}
    for result in results:
        assert result.labels == single[result.query].labels
        for answer, other in zip(result.results, single[result.query].results, strict=True):
            assert abs(answer.probability - other.probability) < 0.01


def test_a_batch_may_return_the_errors_of_its_queries(classifier: Classifier) -> None:
    queries = ["red dress", "long " * 500, "", "\ud800", "jeans"]
    found = classifier.classify_batch(queries, errors="return")
    assert [type(each) for each in found] == [Result, PlanError, Result, PlanError, Result]
    for query, each in zip(queries, found, strict=True):
        if isinstance(each, Result):
            assert answers(each) == answers(classifier.classify(query))
        else:
            with pytest.raises(PlanError, match=re.escape(str(each))):
                classifier.classify(query)
    assert classifier.classify_batch([], errors="return") == []
    together = classifier.classify_batch(["red dress", "jeans"], errors="return")
    assert [each.counts.n_queries for each in together if isinstance(each, Result)] == [2, 2]
    with pytest.raises(PlanError, match="'ignore' is not raise or return"):
        classifier.classify_batch(["a"], errors="ignore")  # type: ignore[call-overload]
    classifier.close()
    with pytest.raises(QclsError, match="closed"):
        classifier.classify_batch(["a"], errors="return")


def test_scores_that_are_not_finite_are_the_error_of_their_query(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = classifier.core.answer

    def fails_with_jeans(items: Sequence[Any], *more: Any, **options: Any) -> list[Result]:
        if any("jeans" in query for _, query in items):
            raise ScoreError("not finite")
        return answer(items, *more, **options)

    monkeypatch.setattr(classifier.core, "answer", fails_with_jeans)
    found = classifier.classify_batch(["red dress", "jeans", "long " * 500, "coat"], errors="return")
    assert [type(each) for each in found] == [Result, ScoreError, PlanError, Result]


def test_stages_add_up(classifier: Classifier) -> None:
    for result in [classifier.classify("red dress"), *classifier.classify_batch(QUERIES * 3)]:
        assert tuple(result.stage_ms) == STAGES
        assert sum(result.stage_ms.values()) == result.total_ms
        assert min(result.stage_ms.values()) >= 0
        assert result.stage_ms["decode"] > 0


def test_start_up_is_accounted_for(make_model: MakeModel, write_config: WriteConfig) -> None:
    steps: list[tuple[str, str, float]] = []
    loaded: list[float] = []
    config = load_config(write_config(make_model(), PROMPTS))
    with Classifier.from_config(
        config, on_step=lambda *step: steps.append(step), on_load=lambda fraction: loaded.append(fraction)
    ) as classifier:
        assert list(classifier.startup_ms) == [
            "find model",
            "load model",
            "compile prompts",
            "open context",
            "cache prefixes",
            "hash model",
            "warm-up",
        ]
        assert classifier.startup_ms == {step: ms for step, _, ms in steps}
        assert all(what and ms >= 0 for _, what, ms in steps)
        assert loaded[-1] == 1.0
        classifier.startup_ms.clear()
        assert classifier.startup_ms


def test_an_interrupt_while_loading_reaches_the_caller(make_model: MakeModel, write_config: WriteConfig) -> None:
    """Ctrl-C during a long load is raised in whatever Python code runs then: the function that shows the progress."""

    def stop(_fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Classifier.from_config(write_config(make_model(), PROMPTS), on_load=stop)


def test_a_result_as_plain_values(make_model: MakeModel, classifier: Classifier) -> None:
    result = classifier.classify("红色 dress")
    tree = result.to_dict()
    assert json.loads(json.dumps(tree)) == json.loads(json.dumps(tree, ensure_ascii=False))
    tree = json.loads(json.dumps(tree))
    assert list(tree) == ["query", "total_ms", "stage_ms", "counts", "results", "model", "wait_ms"]
    assert tree["query"] == "红色 dress"
    assert list(tree["stage_ms"]) == ["tokenize", "plan", "batch", "decode", "score", "cleanup"]
    assert sum(tree["stage_ms"].values()) == tree["total_ms"]
    assert {"n_queries", "n_decodes", "n_tokens_new", "n_tokens_cached", "n_positions"} <= tree["counts"].keys()
    assert all(type(value) is int for value in tree["counts"].values())
    assert [list(answer) for answer in tree["results"]] == [
        ["prompt", "label", "probability", "abstained", "fast_path", "scores"]
    ] * 2
    for answer, prompt in zip(tree["results"], PROMPTS, strict=True):
        assert answer["prompt"] == prompt.name
        assert [score["label"] for score in answer["scores"]] == list(prompt.labels)
        for score in answer["scores"]:
            assert list(score) == ["label", "score", "probability", "n_tokens"]
        assert answer["label"] == max(answer["scores"], key=lambda score: score["probability"])["label"]
        assert abs(sum(score["probability"] for score in answer["scores"]) - 1) < 1e-6
    data = make_model().read_bytes()
    assert tree["model"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert tree["model"]["size_bytes"] == len(data)
    assert tree["model"]["path"] == str(make_model())
    assert tree["model"]["backend"]
    assert {"quantization", "llama_cpp_commit", "source_digest", "package_version"} <= tree["model"].keys()


def test_labels_by_prompt(classifier: Classifier) -> None:
    labels = classifier.classify("red dress").labels
    assert list(labels) == ["color", "item"]
    assert labels["color"] in PROMPTS[0].labels
    assert labels["item"] in PROMPTS[1].labels
