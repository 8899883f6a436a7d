"""`label_orders`: scores averaged over listings of the labels, against classifiers that have one listing each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from commands import write_rows
from conftest import MakeModel
from oracle import softmax

from qcls_gguf import Classifier, Config, ConfigError, ModelConfig, PromptConfig, RuntimeConfig
from qcls_gguf.compare.run import ComparisonSettings, compare
from qcls_gguf.config.calibration_file import prompt_hash
from qcls_gguf.config.heads_file import Head, heads_content
from qcls_gguf.evaluation.evaluate import EvaluationSettings, evaluate
from qcls_gguf.inspection.inspect import inspect_classifier
from qcls_gguf.learning.learn import LearnSettings, learn
from qcls_gguf.opening import ClassifierOpener
from qcls_gguf.score.result import Result

START, END = "<|im_start|>", "<|im_end|>"
BEFORE = f"{START}user\n{{name}} of [{{labels}}]: {{query}}{END}\n{START}assistant\nlabel:"
AFTER = f"{START}user\n{{query}} is a {{name}} of\n{{labels_described}}{END}\n{START}assistant\nlabel:"
QUERIES = ("red dress", "", "红色 shirt for a boy", "red", "a light blue jumper")
LABELS = ("light blue", "light pink", "red", "none")
COLOUR = PromptConfig(name="colour", prompt_template=BEFORE, labels=LABELS, label_orders=4)
PLAIN = PromptConfig(name="plain", prompt_template=f"{START}{{query}}{END}label:", labels=("boy", "girl"))
SEVERAL = (
    COLOUR,
    PLAIN,
    PromptConfig(
        name="item",
        prompt_template=AFTER,
        labels={"dress": "for a party", "coat": None, "tank top": None, "none": "of these"},
        label_orders=2,
        scoring="first_token",
        temperature=2.0,
        prior="content_free",
    ),
)
Open = Callable[..., Classifier]


@pytest.fixture(scope="module")
def open_one(make_model: MakeModel) -> Open:
    def open_it(
        prompts: Sequence[PromptConfig], model: str = "qwen3", audit: bool = False, **runtime: Any
    ) -> Classifier:
        return Classifier.from_config(configuration(make_model(model), prompts, **runtime), audit=audit)

    return open_it


def configuration(path: Path, prompts: Sequence[PromptConfig], **runtime: Any) -> Config:
    settings = RuntimeConfig(n_threads=1, n_gpu_layers=0, max_query_tokens=64, state_cache=False, **runtime)
    return Config(model=ModelConfig(path=path), prompts=tuple(prompts), runtime=settings)


def turned(prompt: PromptConfig) -> list[PromptConfig]:
    """The prompt with its labels written in each order that is meant, by hand."""
    n, found = len(prompt.labels), []
    for k in range(prompt.label_orders):
        numbers = [(k * n // prompt.label_orders + i) % n for i in range(n)]
        lines = [prompt.labels[i] for i in numbers]
        texts = prompt.label_descriptions or [None] * n
        described = "\n".join(
            f"- {prompt.labels[i]}: {texts[i]}" if texts[i] else f"- {prompt.labels[i]}" for i in numbers
        )
        text = prompt.template.replace("{labels}", ", ".join(lines)).replace("{labels_described}", described)
        found.append(replace(prompt, prompt_template=text, label_orders=1, temperature=None, prior="none"))
    return found


def means(
    open_one: Open, prompts: Sequence[PromptConfig], queries: Sequence[str], **options: Any
) -> list[list[npt.NDArray[np.float64]]]:
    """For each query and prompt the mean of the scores of classifiers that each list the labels in one order."""
    found: list[list[npt.NDArray[np.float64]]] = [[] for _ in queries]
    for prompt in prompts:
        rows = []
        for one in turned(prompt):
            with open_one([one], **options) as classifier:
                answers = [classifier.classify(query).results[0] for query in queries]
                rows.append([[score.score for score in answer.scores] for answer in answers])
        for of_query, mean in zip(found, np.mean(rows, axis=0), strict=True):
            of_query.append(mean)
    return found


def scores(result: Result) -> list[npt.NDArray[np.float64]]:
    return [np.array([score.score for score in answer.scores]) for answer in result.results]


def test_scores_are_the_means_of_all_listings(open_one: Open) -> None:
    """One by one and in a batch, with the list before and behind the query, calibrated and not, in one decode."""
    wanted = means(open_one, SEVERAL, [*QUERIES, "N/A", "[MASK]"])
    content_free = [softmax(wanted[i][2]) for i in (QUERIES.index(""), -2, -1)]
    prior = np.log(np.mean(content_free, axis=0))
    with open_one(SEVERAL) as classifier:
        alone = [classifier.classify(query) for query in QUERIES]
        together = classifier.classify_batch(QUERIES)
        inspected = inspect_classifier(classifier)
    for result, also, of_query in zip(alone, together, wanted, strict=False):
        for answer, found, score in zip(result.results, scores(result), of_query, strict=True):
            np.testing.assert_allclose(found, score, rtol=0, atol=1e-5)
            p = softmax((score - prior) / 2) if answer.prompt == "item" else softmax(score)
            np.testing.assert_allclose([each.probability for each in answer.scores], p, rtol=0, atol=1e-5)
            assert answer.label == answer.scores[p.index(max(p))].label
            assert answer.fast_path
        for one, other in zip(scores(result), scores(also), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert [result.counts.n_decodes for result in alone] == [1] * len(QUERIES)
    assert [each.name for each in inspected.prompts] == ["colour", "plain", "item"]
    assert inspected.sequences.n_holders == 4 + 1 + 1  # item's list stands behind the query: its prefix is one


def test_the_query_is_fed_once_where_the_list_follows_it(open_one: Open) -> None:
    """The tokens of a longer query are added once, whatever the number of listings."""
    with open_one([replace(SEVERAL[2], prior="none")]) as classifier:
        short, long = (classifier.classify(query).counts.n_tokens_new for query in ("red", "red " * 11))
        n_more = len(classifier.engine.model.tokenize("red " * 11, parse_special=False)) - len(
            classifier.engine.model.tokenize("red", parse_special=False)
        )
    assert long - short <= n_more + 1


@pytest.mark.parametrize(("model", "options"), [("qwen3", {"kept_queries": 2}), ("lfm2", {})])
def test_with_kept_queries_and_recurrent_layers(open_one: Open, model: str, options: dict[str, Any]) -> None:
    prompts, queries = [COLOUR, PLAIN], ["red", "red dress", "red dress with", "coat"]
    wanted = means(open_one, prompts, queries, model=model)
    with open_one(prompts, model, **options) as classifier:
        for query, of_query in zip(queries, wanted, strict=True):
            for found, score in zip(scores(classifier.classify(query)), of_query, strict=True):
                np.testing.assert_allclose(found, score, rtol=0, atol=2e-5)


def test_exact_scores(open_one: Open) -> None:
    """joint is the mean of its logarithms, and the audit agrees with a prompt that is scored so."""
    joint = replace(COLOUR, name="joint", scoring="joint", prompt_template=BEFORE.replace("{name}", "colour"))
    ((by_joint,),) = means(open_one, [joint], ["red dress"])
    with open_one([COLOUR, joint], audit=True) as classifier:
        tree, exact = classifier.classify("red dress").results
    for answer in (tree, exact):
        assert answer.audit is not None
        np.testing.assert_allclose(answer.audit.joint, by_joint, rtol=0, atol=1e-5)
        assert answer.audit.label_mass == pytest.approx(np.exp(by_joint).sum(), rel=1e-4)
    np.testing.assert_allclose([each.score for each in exact.scores], by_joint, rtol=0, atol=1e-5)
    np.testing.assert_allclose([each.probability for each in exact.scores], softmax(by_joint), rtol=0, atol=1e-5)


def test_sets_that_come_at_run_time_and_parts_of_them(open_one: Open) -> None:
    with open_one(SEVERAL) as classifier:
        (whole, *_) = classifier.classify("red").results
        with classifier.prompt_set([COLOUR]) as late:
            (alone,) = late.classify("red").results
            assert classifier.configured.compiled.subset(["colour"]) == late.compiled
        mixed = classifier.classify_batch(["red", "coat"])
    one, other = ([score.probability for score in answer.scores] for answer in (whole, alone))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert len(mixed[0].results) == 3


def test_evaluation_tries_each_of_the_orders(make_model: MakeModel, open_one: Open, tmp_path: Path) -> None:
    """The accuracies of the orders and of the average, by hand."""
    truths = {"red dress": "red", "coat": "none", "a light blue jumper": "light blue", "pink": "light pink"}
    rows = write_rows(
        tmp_path / "rows.jsonl", [{"query": query, "labels": {"colour": label}} for query, label in truths.items()]
    )
    settings = EvaluationSettings(
        config=configuration(make_model("qwen3"), [COLOUR]), path=rows, modes=("tree",), n_shuffles=4
    )
    with ClassifierOpener() as opener:
        shuffled = evaluate(settings, opener).to_dict()["shuffle_labels"]
    assert shuffled["orders"]["colour"] == [list(order) for order in COLOUR.orders]
    by_order = []
    for one in turned(COLOUR):
        with open_one([one]) as classifier:
            by_order.append([classifier.classify(query).results[0].label for query in truths])
    with open_one([COLOUR]) as classifier:
        average = [classifier.classify(query).results[0].label for query in truths]
    found = shuffled["modes"]["tree"]["prompts"]["colour"]
    right = [np.mean([label == truth for label, truth in zip(each, truths.values(), strict=True)]) for each in by_order]
    assert found["accuracy_by_order"] == pytest.approx(right)
    n_flips = sum(label != best for each in by_order for label, best in zip(each, average, strict=True))
    assert found["n_flips"] == n_flips > 0


def test_every_label_stands_once_in_every_place() -> None:
    assert [sorted(place) for place in zip(*COLOUR.orders, strict=True)] == [sorted(LABELS)] * 4
    assert replace(COLOUR, label_orders=2).orders == (LABELS, LABELS[2:] + LABELS[:2])
    assert prompt_hash(replace(COLOUR, label_orders=2)) != prompt_hash(COLOUR)  # what is fitted holds for one number


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_orders": 5}, "prompts.colour.label_orders: 5 is more than the 4 labels: lower it"),
        (
            {"prompt_template": PLAIN.template},
            "prompts.colour.label_orders: 4, and no text has a {labels} slot: write it in place of the list of labels",
        ),
    ],
)
def test_what_cannot_be_listed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        replace(COLOUR, **changes)
    assert message in str(refused.value)


def test_what_asks_in_one_order_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    """A learnt head of the prompt, learning one, and other methods."""
    config = configuration(make_model("qwen3"), [COLOUR])
    head = Head(depth=1, weight=np.zeros((64, 4), np.float32), bias=np.zeros(4, np.float32))
    (tmp_path / "heads.npz").write_bytes(heads_content("0" * 64, 2, 64, {"colour": (COLOUR, head)}))
    rows = write_rows(tmp_path / "rows.jsonl", [{"query": str(i), "labels": {"colour": "red"}} for i in range(4)])
    refused: list[tuple[Callable[[ClassifierOpener], object], str]] = [
        (lambda opener: opener.open(replace(config, heads=tmp_path / "heads.npz")), "4, and a head reads one: remove"),
        (
            lambda opener: learn(LearnSettings(config=config, data=rows, out=tmp_path / "out.npz"), opener),
            "a head reads one order: remove it to learn one",
        ),
        (
            lambda opener: compare(ComparisonSettings(config=config, queries=("red",), methods=("naive",)), opener),
            "other methods ask in one order: remove it to compare",
        ),
    ]
    for action, message in refused:
        with ClassifierOpener() as opener, pytest.raises(ConfigError) as found:
            action(opener)
        assert "prompts.colour.label_orders: " in str(found.value)
        assert message in str(found.value)
