"""Chat templates in the forms that model files have, written for the tests, with the control tokens that they use.

Templates by the name `systemone` for each kind of decision model: the state first, or the question.
"""

from pathlib import Path
from typing import Any, NamedTuple

from random_vocab import IM_END, IM_START


class Chat(NamedTuple):
    """A template, and what a small vocabulary needs for it."""

    template: str
    control_tokens: tuple[str, ...]
    add_bos: bool
    rendered: str
    """what the system text SYSTEM and the user text USER become"""

    @property
    def options(self) -> dict[str, Any]:
        """Of `make_model`."""
        return {"chat_template": self.template, "control_tokens": self.control_tokens, "add_bos": self.add_bos}


def _text(file: str) -> str:
    return (Path(__file__).parent / "chats" / file).read_text(encoding="utf-8")


_WITH_BOS = {
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "mistral": ("[INST]", "[/INST]"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "gemma4": ("<|turn>", "<turn|>", "<|channel>", "<channel|>"),
    "lfm2": (IM_START, IM_END),
}
_WITHOUT_BOS = {
    "qwen3": ("<think>", "</think>"),
    "phi": ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    "qwen35": ("<think>", "</think>"),
    "granite4": ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    "nemotron": ("<SPECIAL_1>", "<think>", "</think>"),
}
CHATS = {
    name: Chat(_text(f"{name}.jinja"), tokens, name in _WITH_BOS, _text(f"{name}.txt"))
    for name, tokens in (_WITH_BOS | _WITHOUT_BOS).items()
}
CHATML, THINKS_ALWAYS = _text("chatml.jinja"), _text("thinks-always.jinja")
QWEN3, LLAMA3, GEMMA, NEMOTRON = (CHATS[name].template for name in ("qwen3", "llama3", "gemma", "nemotron"))


SHOWN = "{% macro shown(v) %}{{ v if v is string else v | tojson }}{% endmacro %}"
OPTIONS = (
    "{% for o in options %}{{ o.label if o.label is defined else 'ABCDEFGH'[loop.index0] }}: {{ o.key }}"
    "{% if o.description is not none %} - {{ shown(o.description) }}{% endif %}\n{% endfor %}"
)
STATE_FIRST = (
    f"{SHOWN}<|im_start|>{{{{ shown(state) }}}}\n{{{{ type }}}}: {{{{ shown(instructions) }}}}\n{OPTIONS}<|im_end|>"
    "answer:"
)
QUESTION_FIRST = (
    f"{SHOWN}<|im_start|>{{{{ shown(instructions) }}}}\n{OPTIONS}text: {{{{ shown(state) }}}}<|im_end|>answer:"
)
POINTED = (
    "<|im_start|>{{ state }}<|im_end|>{{ type }}: {{ instructions }}{% for o in options %}"
    "{{ o.key }}{% if o.description %} - {{ o.description }}{% endif %}<|box_end|>{% endfor %}<|im_end|>"
)
ALL = (
    "{% for q in questions %}{{ q.id }}: {{ q.instructions }} ({{ q.options | length }})\n{% endfor %}asked: {{ id }}\n"
)
TEMPLATES = {
    "openjev": STATE_FIRST,
    "lev": QUESTION_FIRST,
    "nimble": STATE_FIRST.replace("<|im_end|>", ALL + "<|im_end|>"),
    "pplx-decider": STATE_FIRST,
    "lfm2-d1": QUESTION_FIRST,
    "kev": POINTED,
}
