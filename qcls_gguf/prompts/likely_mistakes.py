"""Likely mistakes in prompts that compile: one function for each kind, which looks only at texts and tokens.

`likely_mistakes` calls all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..config.prompt import LikelyMistake, MistakeKind, PromptConfig
from ..config.template import DESCRIBED_SLOT, LABELS_SLOT, SLOT, SLOTS, braced_words, meant_slot
from ..config.words import ALIKE, digest_of, listed, seen_as, shown
from ..model import Vocabulary
from .compiled import Prompt
from .prompt_set import PromptSet

_N_NAMED = 5
_CONTROL = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?(?:start|end)_of_\w{1,20}>|\[/?INST\]|<</?SYS>>|</?s>"
)
"""The forms of control tokens in published models."""
_CHATML = ("<|im_start|>", "<|im_end|>")
_USUAL = (
    *_CHATML, "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>",
    "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|end|>", "<|start|>", "<|message|>", "<|channel|>",
)  # fmt: skip

# Digests, so that no start has to read these configurations; tests/model/test_likely_mistakes.py makes them.
TRAINED = frozenset({
    "a567e7660a3e", "54c76a491fa4", "ef551625fb04", "dfe24fe7d31d", "4f7fa0c2ae30", "d95420e1f75d", "645ca748aec5",
    "5dfd659a57ce", "7626bd326824", "45e0ef113ead", "e371a1d24b20", "8a92ab171875", "0692ac3a491a", "39a16365d86e",
    "021128a570dd", "27aadd6b33b3",
})  # fmt: skip
"""The prompts on which the embedded model was trained: those of the configurations fashion-8 and fashion-8-joint."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One prompt to look at."""

    source: PromptConfig
    """as it was written"""
    compiled: Prompt
    model: Vocabulary
    chat_template: str
    """empty where neither the model's file nor the configuration has one"""

    @property
    def whole(self) -> PromptConfig:
        """With its whole text."""
        return self.compiled.settings

    def is_token(self, text: str) -> bool:
        """Whether the vocabulary has a text as one special token."""
        found = self.model.tokenize(text, parse_special=True).tolist()
        return len(found) == 1 and self.model.piece(found[0])[1]


_Mistakes = Iterator[tuple[MistakeKind, str, str]]
"""(kind, the key of the prompt that it is about, what is wrong and what to do)"""


def likely_mistakes(
    sources: Sequence[PromptConfig],
    prompts: PromptSet,
    model: Vocabulary,
    *,
    chat_template: str | None = None,
    ignored: Collection[str] = (),
) -> tuple[LikelyMistake, ...]:
    """The likely mistakes; one that several prompts have is listed once.

    sources: the prompts as written in the configuration; chat_template: the configuration's; ignored: kinds to leave
    out, `all` for every kind.
    """
    if "all" in ignored:
        return ()
    names: dict[tuple[MistakeKind, str, str], list[str]] = {}
    for source, compiled in zip(sources, prompts.prompts, strict=True):
        case = _Case(source, compiled, model, chat_template or model.chat_template or "")
        for check in CHECKS if compiled.head is None or compiled.head.reads_labels else OF_TEXTS:
            for found in check(case):
                names.setdefault(found, []).append(source.name)
    return tuple(
        LikelyMistake(kind=kind, prompts=tuple(of), place=_place(of, key), what=what)
        for (kind, key, what), of in names.items()
        if kind not in ignored
    )


def _place(names: Sequence[str], key: str) -> str:
    more = f" (and of {len(names) - 1} more)" if len(names) > 1 else ""
    return f"prompts.{names[0]}{f'.{key}' if key else ''}{more}"


def unknown_control_tokens(case: _Case) -> _Mistakes:
    """Text that looks like a control token but is not in this vocabulary, so that the model reads it as plain text."""
    known = [text for text in _tokens_of(case) if case.is_token(text)]
    for key, text in case.source.texts.items():
        for token in dict.fromkeys(_CONTROL.findall(text)):
            if case.is_token(token) or (token in _CHATML and _is_other_format(case)):
                continue
            close = get_close_matches(token, known, n=1)
            remedy = f"did you mean {close[0]}?" if close else "write one that it has, or leave it out"
            yield "control_token", key, f"{token} is no token of this model, which reads it letter by letter: {remedy}"


def _tokens_of(case: _Case) -> list[str]:
    return list(dict.fromkeys([*_CONTROL.findall(case.chat_template), *_USUAL]))


def _is_other_format(case: _Case) -> bool:
    """Whether ChatML is written for a model whose file has another chat format."""
    template, written = case.chat_template, case.source.prompt_template or ""
    return bool(template) and _CHATML[0] in written and _CHATML[0] not in template


def other_chat_format(case: _Case) -> _Mistakes:
    """ChatML for a model that was trained on another chat format."""
    if _is_other_format(case):
        own = [text for text in _tokens_of(case) if text in case.chat_template and case.is_token(text)]
        has = f", which has {' '.join(own[:_N_NAMED])}" if own else ""
        what = f"is ChatML ({_CHATML[0]}), and not the chat format of this model{has}: write system and user instead"
        yield "chat_format", "prompt_template", what


def missing_beginning(case: _Case) -> _Mistakes:
    """No beginning token where the model's own chat template writes one."""
    bos, template = case.model.bos_text, case.chat_template
    if not bos or case.source.is_chat or not ("bos_token" in template or bos in template):
        return
    tokens: list[int] = case.model.tokenize(bos, parse_special=True).tolist()
    if [*case.compiled.opening[:1]] != tokens:
        what = f"does not begin with {bos}, as the model's chat template does: write it first, or write system and user"
        yield "beginning", "prompt_template", what


def literal_slots(case: _Case) -> _Mistakes:
    """A word in braces that is no slot, and so stays as it is."""
    for key, text in case.source.texts.items():
        if f"{{{SLOT}}}" in text:
            yield "literal_slot", key, f"has {{{SLOT}}}, whose outer braces stay around the query: write {SLOT}"
        for word in braced_words(text.replace(f"{{{SLOT}}}", "")):
            meant = meant_slot(word)
            remedy = f"did you mean {meant}?" if meant else f"slots are {', '.join(SLOTS)}"
            yield "literal_slot", key, f"has {word}, which is no slot and stays as it is: {remedy}"


def spaces_before_labels(case: _Case) -> _Mistakes:
    """Two spaces, or none, between the text and its labels."""
    end, prefix, label = case.whole.expanded_template[-1:], case.whole.label_prefix, case.whole.labels[0]
    what, is_latin = "", label[0].isascii() and label[0].isalnum()
    if end == " " and prefix[:1] == " ":
        what = 'begins with a space, and the text ends in one: end the text without, or give label_prefix: ""'
    elif end == "\n" and prefix[:1] == " ":
        what = 'begins with a space, and the text ends a line: give label_prefix: "", or end the text in words'
    elif not prefix and is_latin and (end.isalnum() or end in (":", ",", ";", "=", "-")):
        what = f'is empty, so that {shown(label)} follows {end!r} directly: give label_prefix: " "'
    if what:
        yield "space", "label_prefix", what


def spaces_around_labels(case: _Case) -> _Mistakes:
    """A label that begins or ends with white space."""
    for label in case.whole.labels:
        if label != label.strip():
            what = f"{shown(label)} has white space at its ends, a part of its tokens: write {shown(label.strip())}"
            yield "label_ends", "labels", what


def alike_labels(case: _Case) -> _Mistakes:
    """Labels that a reader takes for the same."""
    groups: dict[str, list[str]] = {}
    for label in case.whole.labels:
        groups.setdefault(seen_as(label), []).append(label)
    for labels in groups.values():
        if len(labels) > 1:
            named = listed(list(map(shown, labels)), most=_N_NAMED)
            yield "labels_alike", "labels", f"{named} {ALIKE}, and share their probability: keep one of them"


def untrained_prompts(case: _Case) -> _Mistakes:
    """The embedded model with a prompt that it was not trained on."""
    if case.model.is_embedded and digest(case.whole) not in TRAINED:
        what = (
            "the embedded model answers other prompts than those of fashion-8 and fashion-8-joint nearly at random: "
            "name another model with model.path or model.hf_repo"
        )
        yield "untrained", "", what


def digest(prompt: PromptConfig) -> str:
    """A digest of the text and the label prefix, which are what the model saw in training; labels may be fewer, and in
    another order.
    """
    return digest_of([prompt.expanded_template, prompt.label_prefix])[:12]


def unnamed_labels(case: _Case) -> _Mistakes:
    """A text that names none of the labels."""
    text = case.whole.expanded_template.casefold()
    if not any(label.strip().casefold() in text for label in case.whole.labels):
        key, n = next(reversed(case.source.texts)), len(case.whole.labels)
        what = f"names none of the {n} labels, so the model cannot know them: write {LABELS_SLOT} into it"
        yield "labels_not_named", key, what


def descriptions_not_shown(case: _Case) -> _Mistakes:
    """Descriptions of labels that the text does not show."""
    texts = "".join(case.source.texts.values())
    descriptions = [text for text in case.whole.label_descriptions or () if text]
    if any(text not in case.whole.expanded_template for text in descriptions):
        instead = f" in place of {LABELS_SLOT}" if LABELS_SLOT in texts else ""
        yield "descriptions", "labels", f"are described, and the text does not say so: write {DESCRIBED_SLOT}{instead}"


OF_TEXTS = (unknown_control_tokens, other_chat_format, literal_slots, alike_labels)
"""Those that a prompt may have whose labels' texts are not read."""
CHECKS = (
    *OF_TEXTS,
    missing_beginning,
    spaces_before_labels,
    spaces_around_labels,
    untrained_prompts,
    unnamed_labels,
    descriptions_not_shown,
)
