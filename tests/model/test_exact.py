"""The exact scorings against stock logits over the whole vocabulary, one label at a time."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier, WriteConfig
from oracle import Oracle, PromptSpec
from oracle_prompts import EXACT, LARGEST

from qcls_gguf import Classifier
from qcls_gguf.native import NativeContext, NativeModel

TEMPLATE = "<|im_start|>user\n{topic} of {query}<|im_end|>\n<|im_start|>assistant\nlabel:"
LABELS = {
    "item": ("jump", "jumper", "jumpsuit", "tank top", "trench coat", "none"),
    "colour": ("light", "light blue", "light pink", "dark sky blue", "red"),
    "user": ("boy", "girl", "none"),
}
QUERIES = ("red dress for girl", "", "红色连衣裙 👗", "<|im_end|>")


def prompts(scoring: Literal["tree", "first_token", "joint", "mean"]) -> list[PromptSpec]:
    return [
        PromptSpec(name=name, template=TEMPLATE.replace("{topic}", name), labels=labels, scoring=scoring)
        for name, labels in LABELS.items()
    ]


@pytest.mark.parametrize("scoring", ["joint", "mean"])
@pytest.mark.parametrize(
    "model",
    [
        {"name": "qwen3"},
        {"name": "llama", "tied": True, "vocab": "spm", "add_bos": True},
        # whose rows come back in the order of the plan, though llama.cpp computes them in another
        *({"name": name} for name in ("lfm2", "qwen35", "granitehybrid")),
    ],
    ids=lambda model: model["name"],
)
def test_exact_scores_are_those_of_stock_logits(
    scoring: Literal["joint", "mean"], model: dict[str, Any], make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    path = make_model(**model)
    specs = prompts(scoring)
    with Oracle(path, **EXACT) as oracle:
        results = open_classifier(path, specs, **EXACT).classify_batch(QUERIES)
        for query, result in zip(QUERIES, results, strict=True):
            for spec, answer in zip(specs, result.results, strict=True):
                tokens = oracle.joint(spec, query)
                joint = [sum(path) for path in tokens]
                mean = [sum(path) / len(path) for path in tokens]
                wanted = joint if scoring == "joint" else mean
                np.testing.assert_allclose([s.score for s in answer.scores], wanted, rtol=0, atol=LARGEST)
                total = sum(map(math.exp, wanted))
                expected = [math.exp(score) / total for score in wanted]
                np.testing.assert_allclose([s.probability for s in answer.scores], expected, rtol=0, atol=LARGEST)
                assert answer.audit is not None
                np.testing.assert_allclose(answer.audit.joint, joint, rtol=0, atol=LARGEST)
                np.testing.assert_allclose(answer.audit.mean, mean, rtol=0, atol=LARGEST)
                assert answer.audit.label_mass == pytest.approx(sum(map(math.exp, joint)), abs=LARGEST)
                assert answer.audit.joint_label == spec.labels[joint.index(max(joint))]
                assert answer.audit.mean_label == spec.labels[mean.index(max(mean))]


def test_an_audit_answers_as_the_fast_scoring_does_and_adds_the_exact_ones(
    make_model: MakeModel, write_config: WriteConfig
) -> None:
    path, specs = make_model(), prompts("tree")
    config = write_config(path, specs, **EXACT)
    with Classifier.from_config(config) as fast, Classifier.from_config(config, audit=True) as audit:
        for query in QUERIES:
            plain, audited = fast.classify(query), audit.classify(query)
            assert audited.counts.n_decodes == 1
            assert audited.counts.n_tokens_new > plain.counts.n_tokens_new
            for spec, before, after in zip(specs, plain.results, audited.results, strict=True):
                assert before.audit is None
                assert after.audit is not None
                assert after.label == before.label
                np.testing.assert_allclose(
                    [s.score for s in after.scores], [s.score for s in before.scores], rtol=0, atol=LARGEST
                )
                assert after.audit.changes == (after.audit.joint_label != after.label)
                assert 0 < after.audit.label_mass <= 1
                assert len(after.audit.joint) == len(spec.labels)


def test_mixed_scorings_in_one_decode(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    """Only the prompt whose scoring is exact has an audit: of the others not every token of a label is computed."""
    path = make_model()
    specs = [prompts("tree")[0], prompts("joint")[1], prompts("first_token")[2]]
    alone = [open_classifier(path, [spec], **EXACT).classify("red dress").results[0] for spec in specs]
    mixed = open_classifier(path, specs, **EXACT).classify("red dress")
    assert mixed.counts.n_decodes == 1
    for single, together in zip(alone, mixed.results, strict=True):
        np.testing.assert_allclose(
            [s.score for s in together.scores], [s.score for s in single.scores], rtol=0, atol=LARGEST
        )
    with Oracle(path, **EXACT) as oracle:
        for spec, answer in zip(specs, mixed.results, strict=True):
            if answer.audit is not None:
                joint = [sum(path) for path in oracle.joint(spec, "red dress")]
                np.testing.assert_allclose(answer.audit.joint, joint, rtol=0, atol=LARGEST)
    assert [answer.audit is not None for answer in mixed.results] == [False, True, False]


def test_more_leaves_than_sequences_take_several_decodes(
    make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    """Eight prompts of ten labels of two tokens and four queries: 320 leaves."""
    path = make_model()
    words = ("tank", "trench", "light", "dark", "jump", "red", "blue", "girl", "boy", "summer")
    labels = tuple(f"{word} top" for word in words)
    specs = [
        PromptSpec(name=f"p{i}", template=TEMPLATE.replace("{topic}", f"{i}"), labels=labels, scoring="joint")
        for i in range(8)
    ]
    queries = ("red dress", "blue jeans", "summer", "coat for girl")
    with Oracle(path, **EXACT) as oracle:
        classifier = open_classifier(path, specs, max_batch=4, n_seq_max=256, **EXACT)
        assert sum(prompt.trie.n_leaves for prompt in classifier.prompts) * len(queries) == 320
        results = classifier.classify_batch(queries)
        assert results[0].counts.n_decodes == 2
        for query, result in zip(queries, results, strict=True):
            for spec, answer in zip(specs, result.results, strict=True):
                joint = [sum(path) for path in oracle.joint(spec, query)]
                np.testing.assert_allclose([s.score for s in answer.scores], joint, rtol=0, atol=LARGEST)


@pytest.mark.parametrize("head_type", ["F32", "Q8_0", "Q6_K", "Q4_K"])
def test_label_logits_and_log_sum_exp_are_the_heads_own(head_type: str, make_model: MakeModel) -> None:
    """Numerator and normaliser come from one product: equal to stock logits also with a quantised head."""
    sizes: dict[str, Any] = {"n_ctx": 256, "n_batch": 64, "n_seq_max": 4, "n_outputs_max": 64, "n_threads": 1, **EXACT}
    label_tokens = np.array([3, 70, 256, 300, 551], np.int32)
    n = 20
    token = np.arange(30, 30 + n, dtype=np.int32)
    offsets = np.arange(n + 1, dtype=np.int32)
    output = np.arange(n) % 3 == 1
    with NativeModel(make_model(head_type=head_type)) as model:

        def rows(**options: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
            with NativeContext(model, **sizes, **options) as context:
                found = np.full((int(output.sum()), context.row_size), np.nan, np.float32)
                context.decode(token, offsets[:n].copy(), offsets, np.zeros(n, np.int32), output, found)
                return found.astype(np.float64)

        logits, hidden, both = rows(hidden_only=False), rows(), rows(label_tokens=label_tokens)
    n_embd = hidden.shape[1]
    np.testing.assert_array_equal(both[:, :n_embd], hidden)
    np.testing.assert_array_equal(both[:, n_embd:-1], logits[:, label_tokens])
    top = logits.max(axis=1)
    log_sum = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    np.testing.assert_allclose(both[:, -1], log_sum, rtol=0, atol=2e-6)  # measured: 5e-7
