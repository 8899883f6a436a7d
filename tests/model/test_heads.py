"""All scorings against stock logits over the whole vocabulary, one label at a time."""

import math
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import cases
from conftest import MakeModel, OpenClassifier, OpenContext, WriteConfig
from oracle import Oracle, PromptSpec, decode_sequence, softmax
from oracle_prompts import EXACT
from random_models import ARCHS, WITH_ANOTHER_TAIL

from qcls_gguf import Classifier, ModelError
from qcls_gguf.config.scoring import EXACT_SCORINGS, Scoring
from qcls_gguf.model import files
from qcls_gguf.model.files import ModelFile, OutputRows
from qcls_gguf.score.rows import Output

LARGEST = {"": 5e-5, "gelu": 2e-3}
"""Of scores and probabilities. Measured: 6.7e-6; 6.7e-4 with Gemma 4, whose GELUs ggml looks up in a table of F16."""
GELU = ("phi2", "gemma2", "gemma3n", "gemma4")

Steps = tuple[float, float | None, bool]
NO_STEPS: Steps = (1, None, False)
STEPS: dict[str, tuple[dict[str, Any], Steps]] = {
    "qwen3": ({}, NO_STEPS),
    "llama": ({"tied": True, "vocab": "spm", "add_bos": True}, NO_STEPS),
    "lfm2": ({}, NO_STEPS),  # whose rows come back in the order of the plan, though llama.cpp computes them in another
    "qwen35": ({}, NO_STEPS),
    "qwen2_bias": ({}, (1, None, True)),
    "phi2": ({}, (1, None, True)),
    "granite": ({}, (1 / 1.5, None, False)),
    "granitehybrid": ({}, (1 / 1.5, None, False)),
    "minicpm": ({"n_embd": 512}, (1 / 1.5, None, False)),
    "minicpm_old": ({"n_embd": 512}, (2, None, False)),
    "minicpm3": ({"n_embd": 512}, (0.5, None, False)),
    "command-r": ({}, (0.5, None, False)),
    "cohere2": ({}, (0.5, None, False)),
    "gemma2": ({}, (1, 3, False)),
    "gemma3n": ({}, (1, 30, False)),
    "gemma4": ({}, (1, 3, False)),
    "grok": ({}, (0.5, 3, False)),
}
TEMPLATES = (
    "<|im_start|>user\n{topic} of {query}<|im_end|>\n<|im_start|>assistant\nlabel:",
    "<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n{topic}:",
)
KINDS: tuple[tuple[str, str, Scoring, tuple[str, ...]], ...] = (
    ("item", TEMPLATES[0], "tree", ("jump", "jumper", "tank top", "trench coat", "none")),
    ("user", TEMPLATES[0], "first_token", ("boy", "girl", "none")),
    ("colour", TEMPLATES[1], "joint", ("light", "light blue", "red")),
    ("category", TEMPLATES[1], "mean", ("dress", "light coat", "none")),
)
PROMPTS = [
    PromptSpec(name=name, template=template.replace("{topic}", name), labels=labels, scoring=scoring)
    for name, template, scoring, labels in KINDS
]
QUERIES = ("red dress for girl", "", "红色连衣裙 👗 <|im_end|>")


def wanted(oracle: Oracle, prompt: PromptSpec, query: str) -> tuple[list[float], list[float]]:
    """(scores, probabilities) by stock logits."""
    if prompt.scoring in ("tree", "first_token"):
        scores, log_probabilities = oracle.score(prompt, query)
        return scores, [math.exp(value) for value in log_probabilities]
    paths = oracle.joint(prompt, query)
    scores = [sum(path) / (len(path) if prompt.scoring == "mean" else 1) for path in paths]
    return scores, softmax(scores)


def test_every_family_has_its_tail_here() -> None:
    with_tail = {name for name, (_, tail) in STEPS.items() if tail != NO_STEPS}
    assert {name for name, spec in ARCHS.items() if spec.tail in ("bias", "scale", "softcap")} == with_tail


@pytest.mark.parametrize("name", STEPS)
def test_all_scorings_are_of_stock_logits(name: str, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    options, tail = STEPS[name]
    path = make_model(name, **options)
    largest = LARGEST["gelu" if name in GELU else ""]
    classifier = open_classifier(path, PROMPTS, max_batch=len(QUERIES), n_batch=400, **EXACT)
    scale, *others = classifier.engine.context.output_steps
    assert others == [*tail[1:]]
    assert scale == pytest.approx(tail[0], rel=1e-6)
    results = classifier.classify_batch(QUERIES)
    with Oracle(path, **EXACT) as oracle:
        for query, result in zip(QUERIES, results, strict=True):
            for prompt, answer in zip(PROMPTS, result.results, strict=True):
                scores, probabilities = wanted(oracle, prompt, query)
                np.testing.assert_allclose([s.score for s in answer.scores], scores, rtol=0, atol=largest)
                np.testing.assert_allclose([s.probability for s in answer.scores], probabilities, rtol=0, atol=largest)
                near = [p for p in probabilities if p >= max(probabilities) - 2 * largest]
                assert probabilities[prompt.labels.index(answer.label)] in near
                if prompt.scoring not in EXACT_SCORINGS:
                    assert answer.audit is None
                    continue
                assert answer.audit is not None
                paths = oracle.joint(prompt, query)
                joint = [sum(path) for path in paths]
                np.testing.assert_allclose(answer.audit.joint, joint, rtol=0, atol=largest)
                assert answer.audit.label_mass == pytest.approx(sum(map(math.exp, joint)), abs=largest)


def test_an_audit_answers_as_the_fast_scoring_does_and_adds_the_exact_ones(write_config: WriteConfig) -> None:
    specs = [replace(prompt, scoring="tree") for prompt in PROMPTS]
    config = write_config("qwen3", specs, **EXACT)
    with Classifier.from_config(config) as fast, Classifier.from_config(config, audit=True) as audit:
        for query in QUERIES:
            plain, audited = fast.classify(query), audit.classify(query)
            assert audited.counts.n_decodes == 1
            assert audited.counts.n_tokens_new > plain.counts.n_tokens_new
            for before, after in zip(plain.results, audited.results, strict=True):
                assert before.audit is None
                assert after.audit is not None
                assert after.label == before.label
                scores = [[score.score for score in answer.scores] for answer in (before, after)]
                np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=LARGEST[""])
                assert len(after.audit.joint) == len(before.scores)
                assert 0 < after.audit.label_mass <= 1


@cases(("qwen3", "Q8_0"), ("qwen3", "Q4_K"), *((name, kind) for name in ("phi2", "grok") for kind in ("F32", "Q6_K")))
def test_rows_of_all_tokens(name: str, head_type: str, make_model: MakeModel, open_context: OpenContext) -> None:
    """Hidden states, rows and steps give stock logits; the graph's label logits and log-sum-exp are stock's, too."""
    path = make_model(name, head_type=head_type)
    tokens, labels = range(40, 64), np.array([3, 70, 256, 551], np.int32)
    context = open_context(path, **EXACT)
    vocabulary, (scale, cap, has_bias) = range(context.model.facts.n_vocab), context.output_steps
    hidden = decode_sequence(context, tokens)
    both = decode_sequence(open_context(path, **EXACT, label_tokens=labels), tokens)
    logits = decode_sequence(open_context(path, **EXACT, hidden_only=False), tokens).astype(np.float64)
    head = OutputRows(ModelFile.read(path))
    output = Output(scale=scale, cap=cap, bias=head.biases(vocabulary) if has_bias else None)
    mine = hidden @ output.scaled(np.stack(list(head.of(vocabulary).values()))).T
    if finish := output.finish(vocabulary):
        finish(mine)
    # the graph quantises activations to multiply them with such a head
    np.testing.assert_allclose(mine, logits, rtol=0, atol=5e-5 if head_type == "F32" else 0.16)
    np.testing.assert_array_equal(both[:, : hidden.shape[1]], hidden)
    np.testing.assert_array_equal(both[:, hidden.shape[1] : -1], logits[:, labels])
    log_sum = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
    np.testing.assert_allclose(both[:, -1], log_sum, rtol=0, atol=2e-6)


def test_rows_that_were_read_long_ago_are_not_kept(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may bring ever other labels."""
    file = ModelFile.read(make_model())
    head, all_rows = OutputRows(file), OutputRows(file).of(range(64))
    n_bytes = all_rows[0].nbytes
    monkeypatch.setattr(files, "_KEPT_BYTES", 8 * n_bytes)
    former = weakref.ref(head.of([0])[0])
    for token in range(1, 64):
        for each, row in head.of([token - 1, token]).items():
            np.testing.assert_array_equal(row, all_rows[each])
    assert former() is None
    np.testing.assert_array_equal(np.stack(list(head.of(range(64)).values())), np.stack(list(all_rows.values())))


def test_another_tail_is_refused_by_its_name(open_context: OpenContext, open_classifier: OpenClassifier) -> None:
    why = r"between the final norm of this model and its logits stands CLAMP \(img_logits\), which is neither the"
    with pytest.raises(ModelError, match=why):
        open_context(WITH_ANOTHER_TAIL)
    assert np.isfinite(decode_sequence(open_context(WITH_ANOTHER_TAIL, hidden_only=False), [5, 6])).all()
    with pytest.raises(ModelError, match=why):
        open_classifier(WITH_ANOTHER_TAIL, PROMPTS)
