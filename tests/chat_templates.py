"""Chat templates in the forms that model files have, written for the tests, with the control tokens that they use.

Templates by the name `systemone` for each kind of decision model: the state first, or the question.
"""

from pathlib import Path
from typing import NamedTuple

from random_vocab import BOS, IM_END, IM_START, VocabKind


class Chat(NamedTuple):
    """A template, and what a small vocabulary needs for it."""

    template: str
    control_tokens: tuple[str, ...]
    add_bos: bool
    rendered: str
    """what the system text SYSTEM and the user text USER become"""
    vocab: VocabKind = "bpe"


def _template(name: str) -> str:
    return (Path(__file__).parent / "chats" / f"{name}.jinja").read_text()


CHATML, THINKS_ALWAYS = _template("chatml"), _template("thinks-always")
QWEN3, LLAMA3, GEMMA, NEMOTRON = map(_template, ("qwen3", "llama3", "gemma", "nemotron"))
CHATS = {
    "qwen3": Chat(
        QWEN3,
        ("<think>", "</think>"),
        False,
        f"{IM_START}system\nSYSTEM{IM_END}\n{IM_START}user\nUSER{IM_END}\n{IM_START}assistant\n<think>\n\n</think>\n\n",
    ),
    "llama3": Chat(
        LLAMA3,
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        True,
        f"{BOS}<|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n\nSYSTEM<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nUSER<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": Chat(_template("mistral"), ("[INST]", "[/INST]"), True, f"{BOS}[INST] SYSTEM\n\nUSER[/INST]"),
    "gemma": Chat(
        GEMMA,
        ("<start_of_turn>", "<end_of_turn>"),
        True,
        f"{BOS}<start_of_turn>user\nSYSTEM\n\nUSER<end_of_turn>\n<start_of_turn>model\n",
    ),
    "phi": Chat(
        _template("phi"),
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        False,
        "<|system|>\nSYSTEM<|end|>\n<|user|>\nUSER<|end|>\n<|assistant|>\n",
    ),
    "qwen35": Chat(
        _template("qwen35"),
        ("<think>", "</think>"),
        False,
        f"{IM_START}system\nSYSTEM{IM_END}\n{IM_START}user\nUSER{IM_END}\n{IM_START}assistant\n<think>\n\n</think>\n\n",
    ),
    "gemma4": Chat(
        _template("gemma4"),
        ("<|turn>", "<turn|>", "<|channel>", "<channel|>"),
        True,
        f"{BOS}<|turn>system\nSYSTEM<turn|>\n<|turn>user\nUSER<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
    ),
    "granite4": Chat(
        _template("granite4"),
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
        False,
        "<|start_of_role|>system<|end_of_role|>SYSTEM<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>USER<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    "lfm2": Chat(
        _template("lfm2"),
        (IM_START, IM_END),
        True,
        f"{BOS}{IM_START}system\nSYSTEM{IM_END}\n{IM_START}user\nUSER{IM_END}\n{IM_START}assistant\n",
    ),
    "nemotron": Chat(
        NEMOTRON,
        ("<SPECIAL_1>", "<think>", "</think>"),
        False,
        "<SPECIAL_1>System\nSYSTEM\n<SPECIAL_1>User\nUSER\n<SPECIAL_1>Assistant\n<think></think>",
    ),
}


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
