"""The callable in the shape of a pipeline of transformers: shapes, arguments, labels at call time, refusals."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

from qcls_gguf import Classifier, ConfigError, DecodeError, PlanError
from qcls_gguf.transformers import ZeroShotClassificationPipeline, pipeline

TASK = "zero-shot-classification"
ONE, TWO = "red dress", ["red dress", "blue jeans"]
Call = Callable[[Any], Any]

# Of the real pipeline of transformers 5.23: Z is a dict of sequence, labels and scores, with their number.
# test_shapes_are_those_of_transformers compares them anew where that is installed.
ZERO_SHOT: dict[str, tuple[dict[str, Any], Call, Any]] = {
    "text": ({}, lambda pipe: pipe(ONE, ["a", "b"]), "Z2"),
    "labels in a text": ({}, lambda pipe: pipe(ONE, candidate_labels="a, b,c"), "Z3"),
    "labels in a tuple": ({}, lambda pipe: pipe(ONE, ("a", "b")), "Z2"),
    "one label": ({}, lambda pipe: pipe(ONE, ["a"]), "Z1"),
    "list of one": ({}, lambda pipe: pipe([ONE], ["a", "b"]), ["Z2"]),
    "list": ({}, lambda pipe: pipe(TWO, ["a", "b"], multi_label=True), ["Z2", "Z2"]),
    "generator": ({}, lambda pipe: list(pipe((each for each in TWO), candidate_labels=["a", "b"])), ["Z2", "Z2"]),
    "template": ({}, lambda pipe: pipe(ONE, ["a", "b"], hypothesis_template="is {}", batch_size=1), "Z2"),
    "made for labels": ({"candidate_labels": ["a", "b"], "multi_label": True}, lambda pipe: pipe(ONE), "Z2"),
}


def shape(answer: Any) -> Any:
    if isinstance(answer, list):
        return [shape(each) for each in answer]
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


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_shapes_are_as_recorded(name: str, classifier: Classifier) -> None:
    given, call, wanted = ZERO_SHOT[name]
    with pipeline(TASK, classifier, **given) as pipe:
        assert pipe.task == TASK
        assert shape(call(pipe)) == wanted


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_shapes_are_those_of_transformers(name: str, theirs: Any) -> None:
    given, call, wanted = ZERO_SHOT[name]
    assert shape(call(theirs(TASK, **given))) == wanted


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


def test_a_text_that_is_too_long_is_cut(zero_shot: ZeroShotClassificationPipeline) -> None:
    long, labels = "very long " * 100, ["dress", "jeans"]
    cut = zero_shot(long, labels)
    assert cut["sequence"] == long
    assert cut["scores"] == zero_shot("very long " * 20, labels)["scores"]
    assert cut["scores"] != zero_shot("very long", labels)["scores"]
    with pytest.raises(PlanError, match="not valid Unicode"):
        zero_shot(long + "\ud800", labels)


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


def test_the_template_is_part_of_the_question(zero_shot: ZeroShotClassificationPipeline) -> None:
    for multi_label in (False, True):
        usual = zero_shot(ONE, ["a", "b"], multi_label=multi_label)
        other = zero_shot(ONE, ["a", "b"], multi_label=multi_label, hypothesis_template="Colour: {}.")
        assert dict(zip(usual["labels"], usual["scores"], strict=True)) != pytest.approx(
            dict(zip(other["labels"], other["scores"], strict=True))
        )


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
        (ONE, {"batch_size": 0}, "batch_size: 0 is not"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    inputs: Any, given: Any, reason: str, zero_shot: ZeroShotClassificationPipeline
) -> None:
    with pytest.raises(ConfigError, match=reason):
        zero_shot(inputs, ["a", "b"], **given)


@pytest.mark.parametrize("task", ["summarization", "text-classification"])
def test_other_tasks_are_refused(task: str) -> None:
    with pytest.raises(ConfigError, match=f"task: '{task}' is not zero-shot-classification: .*classify_batch"):
        pipeline(task)


@pytest.mark.parametrize("model", [None, "models/fashion-tiny-Q8_0.gguf"])
def test_a_classifier_that_was_opened_for_it_is_closed_with_it(model: str | None) -> None:
    pipe = pipeline(TASK, model)
    pipe.close()
    pipe.close()
    with pytest.raises(DecodeError, match="closed"):
        pipe(ONE, "a, b")
