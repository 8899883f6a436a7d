"""The callables in the shape of transformers' pipelines: shapes, arguments, labels at call time, refusals."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

from qcls_gguf import Classifier, ConfigError, DecodeError, PlanError, load_config
from qcls_gguf.transformers import TextClassificationPipeline, ZeroShotClassificationPipeline, pipeline

TEXT, ZERO_SHOT = "text-classification", "zero-shot-classification"
ONE, TWO = "red dress", ["red dress", "blue jeans"]
Call = Callable[[Any], Any]

# Of the real pipelines of transformers 5.23, for three labels: a letter is an answer, L a dict of label and score, Z
# one of sequence, labels and scores. test_shapes_are_those_of_transformers compares them anew where that is installed.
CASES: dict[tuple[str, str], tuple[dict[str, Any], Call, Any]] = {
    (TEXT, "text"): ({}, lambda pipe: pipe(ONE), ["L"]),
    (TEXT, "list"): ({}, lambda pipe: pipe(TWO), ["L", "L"]),
    (TEXT, "generator"): ({}, lambda pipe: list(pipe(each for each in TWO)), ["L", "L"]),
    (TEXT, "dict"): ({}, lambda pipe: pipe({"text": ONE}), "L"),
    (TEXT, "cut"): ({}, lambda pipe: pipe(ONE, truncation=True, max_length=5, padding=True), ["L"]),
    (TEXT, "scores"): ({}, lambda pipe: pipe(ONE, function_to_apply="none"), ["L"]),
    (TEXT, "text, all"): ({}, lambda pipe: pipe(ONE, top_k=None), ["L", "L", "L"]),
    (TEXT, "text, one"): ({}, lambda pipe: pipe(ONE, top_k=1), ["L"]),
    (TEXT, "generator, two"): ({}, lambda pipe: list(pipe((each for each in TWO), top_k=2)), [["L", "L"], ["L", "L"]]),
    (TEXT, "made for all: text"): ({"top_k": None}, lambda pipe: pipe(ONE), [["L", "L", "L"]]),
    (TEXT, "made for all: list"): ({"top_k": None}, lambda pipe: pipe(TWO), [["L", "L", "L"], ["L", "L", "L"]]),
    (TEXT, "made for all: dict"): ({"top_k": None}, lambda pipe: pipe({"text": ONE}), ["L", "L", "L"]),
    (TEXT, "made for two: generator"): ({"top_k": 2}, lambda pipe: list(pipe(each for each in TWO)), [["L", "L"]] * 2),
    (ZERO_SHOT, "text"): ({}, lambda pipe: pipe(ONE, ["a", "b"]), "Z2"),
    (ZERO_SHOT, "labels in a text"): ({}, lambda pipe: pipe(ONE, candidate_labels="a, b,c"), "Z3"),
    (ZERO_SHOT, "labels in a tuple"): ({}, lambda pipe: pipe(ONE, ("a", "b")), "Z2"),
    (ZERO_SHOT, "one label"): ({}, lambda pipe: pipe(ONE, ["a"]), "Z1"),
    (ZERO_SHOT, "list of one"): ({}, lambda pipe: pipe([ONE], ["a", "b"]), ["Z2"]),
    (ZERO_SHOT, "list"): ({}, lambda pipe: pipe(TWO, ["a", "b"], multi_label=True), ["Z2", "Z2"]),
    (ZERO_SHOT, "generator"): (
        {},
        lambda pipe: list(pipe((each for each in TWO), candidate_labels=["a", "b"])),
        ["Z2", "Z2"],
    ),
    (ZERO_SHOT, "template"): ({}, lambda pipe: pipe(ONE, ["a", "b"], hypothesis_template="is {}", batch_size=1), "Z2"),
    (ZERO_SHOT, "made for labels"): (
        {"candidate_labels": ["a", "b"], "multi_label": True},
        lambda pipe: pipe(ONE),
        "Z2",
    ),
}


def shape(answer: Any) -> Any:
    if isinstance(answer, list):
        return [shape(each) for each in answer]
    if list(answer) == ["label", "score"]:
        assert isinstance(answer["label"], str)
        assert isinstance(answer["score"], float)
        return "L"
    assert list(answer) == ["sequence", "labels", "scores"]
    assert isinstance(answer["sequence"], str)
    assert all(isinstance(label, str) for label in answer["labels"])
    assert all(isinstance(score, float) for score in answer["scores"])
    assert answer["scores"] == sorted(answer["scores"], reverse=True)
    assert len(answer["labels"]) == len(answer["scores"])
    return f"Z{len(answer['labels'])}"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Classifier]:
    """One with two prompts, of which `size` has three labels."""
    path: Path = tmp_path_factory.mktemp("pipelines") / "sizes.yaml"
    path.write_text(
        "runtime: {n_batch: 512, max_batch: 64, max_query_tokens: 32, question_cells: 512}\n"
        "prompts:\n"
        "  - {name: size, prompt_template: 'size of {query}:', labels: [small, medium, large]}\n"
        "  - {name: kind, prompt_template: 'kind of {query}:', labels: [dress, jeans]}\n"
    )
    with Classifier.from_config(path) as classifier:
        yield classifier


@pytest.fixture
def zero_shot(classifier: Classifier) -> Iterator[ZeroShotClassificationPipeline]:
    with ZeroShotClassificationPipeline(classifier) as pipe:
        yield pipe


@pytest.fixture(scope="module")
def theirs() -> Any:
    """transformers' own pipelines of a small model with random weights."""
    if not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")):
        pytest.skip("transformers and torch are not installed: shapes are compared with those recorded")
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "dress", "blue", "jeans"]
    tokenizer = transformers.BertTokenizerFast(vocab={word: index for index, word in enumerate(words)})
    names = {0: "contradiction", 1: "neutral", 2: "entailment"}
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    model = transformers.BertForSequenceClassification(config).eval()
    return lambda task, **given: transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu", **given)


@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_shapes_are_as_recorded(case: tuple[str, str], classifier: Classifier) -> None:
    given, call, wanted = CASES[case]
    with pipeline(case[0], classifier, **given, **({"prompt": "size"} if case[0] == TEXT else {})) as pipe:
        assert pipe.task == case[0]
        assert shape(call(pipe)) == wanted


@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_shapes_are_those_of_transformers(case: tuple[str, str], theirs: Any) -> None:
    given, call, wanted = CASES[case]
    assert shape(call(theirs(case[0], **given))) == wanted


def test_labels_are_those_of_the_classifier(classifier: Classifier) -> None:
    """And what was given stays open."""
    with TextClassificationPipeline(classifier, "size", top_k=None) as pipe:
        answers, raw = pipe(TWO), pipe(TWO, function_to_apply="none")
    for answer, scores, result in zip(answers, raw, classifier.classify_batch(TWO), strict=True):
        wanted = sorted(result.results[0].scores, key=lambda score: -score.probability)
        assert [each["label"] for each in answer] == [score.label for score in wanted]
        assert [each["score"] for each in answer] == pytest.approx([score.probability for score in wanted], abs=1e-3)
        assert [each["score"] for each in scores] == pytest.approx([score.score for score in wanted], abs=1e-3)


def test_a_text_that_is_too_long_is_cut(classifier: Classifier, zero_shot: ZeroShotClassificationPipeline) -> None:
    """By the one if asked, by the other always, as by transformers."""
    long = "very long " * 100
    with TextClassificationPipeline(classifier, "size", top_k=None) as pipe:
        with pytest.raises(PlanError, match="max_query_"):
            pipe(long)
        (cut,) = pipe(long, truncation=True)
        ends = [n for n in range(200) if fits(classifier, long[:n]) and not fits(classifier, long[: n + 1])]
        assert cut in [pipe(long[:n], top_k=None) for n in ends]
        (cut,) = pipe(long, truncation="longest_first", max_length=4)
        assert cut == pipe("very long very long", top_k=None)
        with pytest.raises(PlanError, match="not valid Unicode"):
            pipe(long + "\ud800", truncation=True)
    labels = ["dress", "jeans"]
    found = zero_shot(long, labels)
    assert found["sequence"] == long
    assert found["scores"] == zero_shot("very long " * 20, labels)["scores"] != zero_shot("very long", labels)["scores"]


def fits(classifier: Classifier, text: str) -> bool:
    try:
        classifier.check(text)
    except PlanError:
        return False
    return True


def test_an_iterator_is_read_as_its_answers_are(zero_shot: ZeroShotClassificationPipeline) -> None:
    read = []

    def texts() -> Iterator[str]:
        for text in ("one", "two", "three"):
            read.append(text)
            yield text

    answers = zero_shot(texts(), ["a", "b"])
    assert isinstance(answers, GeneratorType)
    assert read == []
    next(answers)
    assert read == ["one"]
    next(iter(zero_shot(texts(), ["a", "b"], batch_size=2)))
    assert read == ["one", "one", "two"]


def scores_of(answer: Any) -> dict[str, float]:
    return dict(zip(answer["labels"], answer["scores"], strict=True))


def test_one_label_of_several_sums_to_one_and_each_for_itself_does_not(
    zero_shot: ZeroShotClassificationPipeline,
) -> None:
    labels = ["dress", "trench coat", "a {} {query} <|im_end|> {labels_described}"]
    one = zero_shot("red dress", labels)
    assert sorted(one["labels"]) == sorted(labels)
    assert sum(one["scores"]) == pytest.approx(1)
    each = zero_shot("red dress", labels, multi_label=True)
    assert all(0 < score < 1 for score in each["scores"])
    alone = [zero_shot("red dress", [label])["scores"][0] for label in each["labels"]]
    assert each["scores"] == pytest.approx(alone, abs=1e-3)
    for multi_label, usual in ((False, one), (True, each)):
        other = zero_shot("red dress", labels, multi_label=multi_label, hypothesis_template="Colour: {}.")
        assert scores_of(other) != pytest.approx(scores_of(usual))


def test_labels_are_kept_for_the_next_call_and_go_when_there_are_many(classifier: Classifier) -> None:
    with ZeroShotClassificationPipeline(classifier) as pipe:
        first = pipe(ONE, ["a0", "b"])
        for n in range(40):
            pipe(ONE, [f"a{n % 20}", "b"], multi_label=n % 2 == 1)
            assert pipe.n_kept <= 16
        assert pipe(ONE, ["a0", "b"]) == first
        with pytest.raises(ConfigError, match=r"has about \d+ tokens"):
            pipe(ONE, [f"label number {n}" for n in range(500)])
        assert pipe(ONE, ["a0", "b"]) == first
    assert pipe.n_kept == 0


@pytest.mark.parametrize(
    ("labels", "given", "reason"),
    [
        (None, {}, "candidate_labels: there are none: give a list"),
        (" , ", {}, "candidate_labels: there are none"),
        (7, {}, "candidate_labels: expected labels, got a number"),
        (["a", ""], {}, "candidate_labels: '' is no text of a label"),
        (["a", "a"], {}, "candidate_labels: a label stands there twice: 'a', 'a'"),
        (["a", "b"], {"hypothesis_template": "{} {x}"}, "hypothesis_template: '{} {x}' has no"),
    ],
)
def test_labels_that_are_none_are_refused(
    labels: Any, given: Any, reason: str, zero_shot: ZeroShotClassificationPipeline
) -> None:
    with pytest.raises(ConfigError, match=reason.replace("{", r"\{")):
        zero_shot(ONE, labels, **given)


@pytest.mark.parametrize(
    ("inputs", "given", "reason"),
    [
        (7, {}, "inputs: 7 is a number: give a text, a list or an iterator"),
        (("red", "dress"), {}, "is a list: give a text, a list or an iterator"),
        (["red", None], {}, "inputs: None is nothing, not text"),
        ({"text": "red", "text_pair": "dress"}, {}, "pairs of texts are not labelled"),
        (ONE, {"top_k": 0}, "top_k: 0 is not a whole number of 1 or more"),
        (ONE, {"function_to_apply": "sigmoid"}, "function_to_apply: 'sigmoid' is not softmax"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    inputs: Any, given: Any, reason: str, classifier: Classifier
) -> None:
    with TextClassificationPipeline(classifier, "size") as pipe, pytest.raises(ConfigError, match=reason):
        pipe(inputs, **given)


@pytest.mark.parametrize(
    ("task", "given", "reason"),
    [
        ("summarization", {}, "task: 'summarization' is not text-classification or zero-shot-classification"),
        (TEXT, {}, "has 8 prompts: name one of them"),
        (TEXT, {"model": load_config("mission").model}, "text-classification needs prompts"),
        (ZERO_SHOT, {"batch_size": 0}, "batch_size: 0 is not"),
    ],
)
def test_what_makes_no_pipeline_is_refused(task: str, given: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        pipeline(task, **given)


@pytest.mark.parametrize(
    ("task", "given", "labels"),
    [
        ("sentiment-analysis", {"model": "fashion-8", "prompt": "category"}, {}),
        (ZERO_SHOT, {}, {"candidate_labels": "a, b"}),
        (ZERO_SHOT, {"model": "models/fashion-tiny-Q8_0.gguf"}, {"candidate_labels": "a, b"}),
    ],
)
def test_a_classifier_that_was_opened_for_it_is_closed_with_it(task: str, given: Any, labels: Any) -> None:
    pipe = pipeline(task, **given)
    pipe.close()
    pipe.close()
    with pytest.raises(DecodeError, match="closed"):
        pipe(ONE, **labels)
