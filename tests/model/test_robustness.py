"""`eval --shuffle-labels`, and what the embedded model must keep in any company: its winners."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ROOT, refused, tiny_rows, write_rows
from conftest import OpenClassifier, WriteConfig
from oracle import PromptSpec
from oracle_prompts import EXACT

from qcls_gguf import Classifier, ModelConfig, load_config
from qcls_gguf.evaluation.evaluate import EvaluationSettings, evaluate
from qcls_gguf.opening import ClassifierOpener

TEMPLATE = "<|im_start|>user\n{topic} of [{labels}]: {query}<|im_end|>\n<|im_start|>assistant\nlabel:"
LABELS = {"item": ("jump", "jumper", "tank top", "none"), "user": ("boy", "girl")}
SLOTS = [PromptSpec(name=name, template=TEMPLATE.replace("{topic}", name), labels=LABELS[name]) for name in LABELS]
PLAIN = PromptSpec(name="plain", template="<|im_start|>{query}<|im_end|>label:", labels=("red", "blue"))
ROWS: list[dict[str, Any]] = [
    {"query": "red dress", "labels": {"item": ["jump", "none"], "user": "girl", "plain": "red"}},
    {"query": "coat", "labels": {"user": "boy"}},
    {"query": "红色", "labels": {"item": "tank top", "user": ["boy", "girl"]}},
    {"query": "light blue", "labels": {"item": "none", "plain": "blue"}},
    {"query": "", "labels": {"plain": "red"}},
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", ROWS)


@pytest.fixture
def config(write_config: WriteConfig) -> Path:
    return write_config("qwen3", [*SLOTS, PLAIN], **EXACT)


def test_shuffled_labels_are_what_the_written_templates_answer(
    config: Path, rows: Path, open_classifier: OpenClassifier
) -> None:
    """The statistics against classifiers on templates with the lists written out in the orders of the record."""
    k = 3
    settings = EvaluationSettings(
        config=load_config(config), path=rows, modes=("tree", "first_token"), n_shuffles=k, seed=5
    )
    with ClassifierOpener() as opener:
        found = evaluate(settings, opener).to_dict()["shuffle_labels"]
        assert len(opener.models) == 1  # of k + 2 classifiers
    assert (found["k"], found["seed"], set(found["orders"])) == (3, 5, {"item", "user"})
    written = [
        [replace(spec, template=spec.template.replace("{labels}", ", ".join(order))) for spec, order in pairs]
        for pairs in [
            [(spec, spec.labels) for spec in SLOTS],
            *([(spec, found["orders"][spec.name][i]) for spec in SLOTS] for i in range(k)),
        ]
    ]
    classifiers = [open_classifier("qwen3", [*specs, PLAIN], **EXACT) for specs in written]
    for p, name in enumerate(LABELS):
        counted = [row for row in ROWS if name in row["labels"]]
        answers = [[each.classify(row["query"]).results[p] for row in counted] for each in classifiers]
        right = [
            np.mean([answer.label in row["labels"][name] for answer, row in zip(each, counted, strict=True)])
            for each in answers
        ]
        probabilities = np.array([[[s.probability for s in answer.scores] for answer in each] for each in answers])
        moved = np.abs(probabilities[1:] - probabilities[0]).max(axis=2)
        n_flips = sum(
            one.label != other.label for each in answers[1:] for one, other in zip(answers[0], each, strict=True)
        )
        here = found["modes"]["tree"]["prompts"][name]
        assert (here["n_rows"], here["n_flips"]) == (len(counted), n_flips)
        assert here["flip_rate"] == n_flips / (k * len(counted))
        assert here["accuracy"] == {
            "configured": pytest.approx(right[0]),
            "mean": pytest.approx(np.mean(right[1:])),
            "min": pytest.approx(min(right[1:])),
            "max": pytest.approx(max(right[1:])),
        }
        assert here["largest_probability_difference"] == pytest.approx(moved.max(), abs=1e-5)
        assert here["mean_probability_difference"] == pytest.approx(moved.mean(), abs=1e-5)
        assert here["largest_probability_difference"] > 0.01
    for mode in found["modes"].values():
        assert mode["prompts"]["plain"] == {"not_applicable": "its text has no {labels} slot"}
    assert "share their first token" in found["modes"]["first_token"]["prompts"]["item"]["not_applicable"]


def test_templates_without_a_slot_are_refused_before_anything_is_loaded(write_config: WriteConfig, rows: Path) -> None:
    rows.write_text('{"query": "x", "labels": {"plain": "red"}}\n')
    said = refused("eval", "--data", rows, "--config", write_config("qwen3", [PLAIN]), "--shuffle-labels", 2)
    assert "--shuffle-labels: no prompt's text has a {labels} slot: write it in place of" in said
    assert "[{labels}]" in said
    assert "load model" not in said


@pytest.mark.parametrize("name", ["fashion-8", "fashion-8-joint"])
@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_K_M"])
def test_no_other_request_changes_a_winner_of_the_embedded_model(quantization: str, name: str) -> None:
    """In a new classifier, in a batch, after it, with prefixes computed anew; docs/measurements.md has all figures."""
    model = ModelConfig(path=ROOT / "models" / f"fashion-tiny-{quantization}.gguf")
    config = replace(load_config(name), model=model)
    queries = [row["query"] for row in tiny_rows("heldout")[::40]]
    with Classifier.from_config(config) as classifier:
        first = [classifier.classify(query) for query in queries]
    with Classifier.from_config(config) as classifier:
        assert [classifier.classify(query).results for query in queries] == [each.results for each in first]
        together = classifier.classify_batch(queries)
        afterwards = [classifier.classify(query) for query in queries]
        restored = []
        for query in queries:
            classifier.engine.restore()
            restored.append(classifier.classify(query))
    for again in (together, afterwards, restored):
        assert [each.labels for each in again] == [each.labels for each in first]
