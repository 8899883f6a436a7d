"""Turns prompts of system and user texts into whole texts by the model's chat template.

The template renders the turns with a placeholder for the query; the text before and after the placeholder is the
prompt. It is rendered with two different placeholders, to detect a template that changes the query, or whose other
words depend on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from ..config.prompt import PromptConfig
from ..config.schema import ModelConfig
from ..config.template import SLOT
from ..errors import ConfigError, prefixed

# Placeholders for a query, with characters that templates may change.
_QUERIES = ("qclsQuery7x", "Another qcls 'query': \"2nd\" <b>text</b> & \\n {{ 3 }} é 红 … 9")
_THINK, _THOUGHT, _NO_THINK = "<think>", "</think>", "/no_think"
_INSTEAD = "write the whole text as prompt_template"
_VARIABLES = {"enable_thinking": False}


class ChatModel(Protocol):
    """The part of a model that rendering needs; see `Vocabulary` in model/open.py."""

    chat_template: str | None
    bos_text: str
    eos_text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompts:
    """Prompts that all have a whole text."""

    prompts: tuple[PromptConfig, ...]
    """in the order given, with the rendered text as `prompt_template`; the slots for labels and name are still in it"""
    n_rendered: int
    """how many of them the chat template rendered"""
    folded: tuple[str, ...]
    """names of those whose system text stands in the user's turn, because the template refuses a system turn"""


def is_chat(prompts: Sequence[PromptConfig]) -> bool:
    """Whether the model's chat template is needed for any prompt."""
    return any(prompt.is_chat for prompt in prompts)


def render_prompts(prompts: Sequence[PromptConfig], model: ChatModel, settings: ModelConfig) -> RenderedPrompts:
    """Give every prompt a whole text; one that has it already stays as it is.

    settings: the chat template that replaces the file's, and its variables. Raises ConfigError, with the prompt and the
    remedy, if there is no template, or it changes the texts or the query.
    """
    found, folded = [], []
    for prompt in prompts:
        if prompt.is_chat:
            with prefixed(f"prompts.{prompt.name}"):
                text, is_folded = _whole_text(prompt, model, settings)
            folded += [prompt.name] * is_folded
            prompt = prompt.changed(prompt_template=text, system=None, user=None, answer_cue=None)
        found.append(prompt)
    n_rendered = sum(prompt.is_chat for prompt in prompts)
    return RenderedPrompts(prompts=tuple(found), n_rendered=n_rendered, folded=tuple(folded))


def _whole_text(prompt: PromptConfig, model: ChatModel, settings: ModelConfig) -> tuple[str, bool]:
    """The rendered text with its slots, and whether the system text had to be put into the user's turn."""
    # Imported here, because starts without such prompts do not need Jinja2.
    from .chat_template import ChatRefusalError

    turns = prompt.turns
    try:
        before, after = _split(turns, model, settings)
        is_folded = False
    except ChatRefusalError as e:
        if len(turns) < 2:
            raise ConfigError(f"the model's chat template refuses the turn {', '.join(turns)}: {e}") from None
        try:
            before, after = _split({"user": f"{turns['system']}\n\n{turns['user']}"}, model, settings)
        except ChatRefusalError:
            raise ConfigError(f"the model's chat template refuses system and user: {e}: {_INSTEAD}") from None
        is_folded = True
    for role, text in turns.items():
        if not _has(before, after, text):
            raise ConfigError(f"the model's chat template changes or drops the {role} text: {_INSTEAD}")
    return before + SLOT + after + prompt.cue, is_folded


def _has(before: str, after: str, text: str) -> bool:
    """Whether a turn's text is in the rendered text; white space at its ends may be missing."""
    beginning, slot, end = text.partition(SLOT)
    if slot:
        return before.endswith(beginning.lstrip()) and after.startswith(end.rstrip())
    return text.strip() in before or text.strip() in after


def _split(turns: Mapping[str, str], model: ChatModel, settings: ModelConfig) -> tuple[str, str]:
    """The rendered text before the query, and after it."""
    found = set()
    for query in _QUERIES:
        rendered = _render({role: text.replace(SLOT, query) for role, text in turns.items()}, model, settings)
        if (n := rendered.count(query)) != 1:
            what = f"writes the query {n} times" if n else "changes or drops the query"
            raise ConfigError(f"the model's chat template {what}, which has to stand once, as it is: {_INSTEAD}")
        before, _, after = rendered.partition(query)
        found.add((before, after))
    if len(found) > 1:
        raise ConfigError(f"the model's chat template writes other words around another query: {_INSTEAD}")
    return found.pop()


def _render(turns: Mapping[str, str], model: ChatModel, settings: ModelConfig) -> str:
    from .chat_template import render_chat

    template = settings.chat_template or model.chat_template
    if template is None:
        raise ConfigError(
            "system and user need a chat template, and the model's file has none: "
            f"{_INSTEAD}, or give one as model.chat_template"
        )
    variables = {**_VARIABLES, **settings.chat_variables}

    def rendered(turns: Mapping[str, str]) -> str:
        return render_chat(template, turns, bos=model.bos_text, eos=model.eos_text, variables=variables)

    text = rendered(turns)
    if variables["enable_thinking"] or not text.rstrip().endswith(_THINK):
        return text
    # The template makes the model think first. Some templates do not if a turn says /no_think, which they remove.
    if _NO_THINK in template:
        role, words = next(iter(turns.items()))
        told = rendered({**turns, role: f"{words} {_NO_THINK}"})
        if _NO_THINK not in told and told.rstrip().endswith(_THOUGHT):
            return told
    # Otherwise an empty thought lets it answer at once, as in Qwen3's own template.
    return f"{text.rstrip()}\n\n{_THOUGHT}\n\n"
