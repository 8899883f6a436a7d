"""A template with a `{labels}` slot is, to a model, the text with its labels written out."""

from __future__ import annotations

from dataclasses import replace

from conftest import MakeModel, OpenClassifier
from oracle import PromptSpec

from qcls_gguf.inspection.inspect import inspect_classifier

SLOT = PromptSpec(
    name="item",
    template="<|im_start|>system\none of [{labels}]<|im_end|>\n<|im_start|>user\n{query}<|im_end|>\nlabel:",
    labels=("jump", "jumper", "light blue", "none"),
)
WRITTEN = replace(SLOT, template=SLOT.template.replace("{labels}", "jump, jumper, light blue, none"))


def test_it_answers_as_the_written_text_does(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    slot, written = (open_classifier(make_model(), [spec]) for spec in (SLOT, WRITTEN))
    assert slot.prompts == written.prompts
    assert slot.classify("red dress").results == written.classify("red dress").results


def test_inspection_sees_the_labels_in_it(make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    slot, written = (inspect_classifier(open_classifier(make_model(), [spec])) for spec in (SLOT, WRITTEN))
    assert slot.prompts == written.prompts
    assert slot.advice == written.advice
    assert "missing" not in [advice.kind for advice in slot.advice]
