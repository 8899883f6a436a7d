"""What a finaliser asks in the thread that computes: no wait for oneself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import MakeModel, OpenClassifier
from oracle import PromptSpec

from qcls_gguf import DecodeError

PROMPTS = [
    PromptSpec(name="a", template=f"the {word} of {{query}} is", labels=("red", "light blue"))
    for word in ("colour", "shade")
]


def test_a_classifier_closed_and_asked_in_its_own_request(
    make_model: MakeModel, open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, alone = (open_classifier(make_model(), PROMPTS[:1]) for _ in range(2))
    other = classifier.prompt_set(alone.config)
    decode = classifier.engine.decode
    n_calls = 0

    def called_inside(*args: Any) -> Any:
        """As where the garbage collector comes in the middle of a decode."""
        nonlocal n_calls
        n_calls += 1
        for refused in (
            lambda: classifier.classify("red"),
            lambda: classifier.check("red"),
            lambda: asyncio.run(classifier.aclassify("red")),
            lambda: classifier.prompt_set(alone.config),
        ):
            with pytest.raises(DecodeError, match="by a finaliser that runs in the middle of one of its requests"):
                refused()
        if n_calls == 2:
            classifier.close()
        return decode(*args)

    monkeypatch.setattr(classifier.engine, "decode", called_inside)
    wanted = alone.classify("red dress").results
    assert classifier.classify("red dress").results == wanted
    assert other.classify("red dress").results == wanted  # which is answered while the classifier is closed
    with pytest.raises(DecodeError, match="this Classifier is closed"):
        classifier.classify("red")
    classifier.close()
