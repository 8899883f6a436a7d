"""Likely mistakes in prompts that compile: one function a kind, which looks only at texts and tokens.

`likely_mistakes` calls all of them.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..config.prompt import (
    DESCRIBED_SLOT,
    LABELS_SLOT,
    SLOT,
    SLOTS,
    LikelyMistake,
    MistakeKind,
    PromptConfig,
    braced_words,
    meant_slot,
)
from ..config.schema import Config, ModelConfig
from ..config.scoring import FIRST_TOKEN
from ..config.words import ALIKE, digest_of, listed, seen_as, shown
from ..errors import ConfigError, PlanError
from ..model import Vocabulary
from .chat import MARK, chat_of, is_token
from .compiled import Prompt, compile_prompt
from .prompt_set import PromptSet

_N_NAMED = 5
_CONTROL = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?(?:start|end)_of_\w{1,20}>|<</?SYS>>|</?s>|<\|?(?:turn|channel)\|?>|"
    r"\[/?(?:INST|SYSTEM_PROMPT|THINK|gMASK)\]|\]~!?b[\[\]]|\[e~\[|\[/?\|[^\[\]\n]{1,40}\|\]|◁[^▷\n]{1,40}▷"
)
"""The forms of control tokens that are hardly meant as text."""
_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|endofturn|>", "[|endofturn|]",
    "<｜end▁of▁sentence｜>", "<|END_OF_TURN_TOKEN|>", "<|end_of_text|>", "<|endoftext|>", "<|return|>", "</s>",
)  # fmt: skip
"""What ends turns in published models."""
_HIDDEN = re.compile("[\u00a0\u00ad\u200b\u200e\u200f\u2060\ufeff]")
"""spaces and marks that no reader tells from a usual space or from nothing"""
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
    whole: PromptConfig
    """with its whole text"""
    compiled: Prompt
    model: Vocabulary
    settings: ModelConfig
    chat_template: str
    """the configuration's or the file's; empty where neither has one"""


_Mistakes = Iterator[tuple[MistakeKind, str, str]]
"""(kind, the key of the prompt that it is about, what is wrong and what to do)"""


def likely_mistakes(
    sources: Sequence[PromptConfig], prompts: PromptSet, model: Vocabulary, config: Config
) -> tuple[LikelyMistake, ...]:
    """The likely mistakes; one that several prompts have is listed once.

    sources: the prompts as they were written; config: says of which template, and what is left out.
    """
    if "all" in config.ignore_warnings:
        return ()
    settings = config.model
    template = settings.chat_template or model.chat_template or ""
    names: dict[tuple[MistakeKind, str, str], list[str]] = {}
    for source, compiled in zip(sources, prompts.prompts, strict=True):
        case = _Case(source, compiled.settings, compiled, model, settings, template)
        for check in CHECKS if compiled.head is None or compiled.head.reads_labels else OF_TEXTS:
            for mistake in check(case):
                names.setdefault(mistake, []).append(source.name)
    mistakes = []
    for (kind, key, what), (first, *others) in names.items():
        if kind not in config.ignore_warnings:
            place = f"prompts.{first}{f'.{key}' if key else ''}" + f" (and of {len(others)} more)" * bool(others)
            mistakes.append(LikelyMistake(kind=kind, prompts=(first, *others), place=place, what=what))
    return tuple(mistakes)


def control_tokens(case: _Case) -> _Mistakes:
    """Text that looks like a control token but is not in this vocabulary, so that the model reads it as plain text; and
    ChatML for a model that was trained on another chat format."""
    template = case.chat_template
    usual = dict.fromkeys([*_CONTROL.findall(template), *_USUAL])
    known = [text for text in usual if is_token(case.model, text)]
    is_other = bool(template) and _CHATML[0] in (case.source.prompt_template or "") and _CHATML[0] not in template
    for key, text in case.source.texts.items():
        for token in dict.fromkeys(_CONTROL.findall(text)):
            if is_token(case.model, token) or (token in _CHATML and is_other):
                continue
            close = get_close_matches(token, known, n=1)
            remedy = f"did you mean {close[0]}?" if close else "write one that it has, or leave it out"
            yield "control_token", key, f"{token} is no token of this model, which reads it letter by letter: {remedy}"
    if is_other:
        marks = [text for text in known if text in template]
        has = f", which has {' '.join(marks[:_N_NAMED])}" if marks else ""
        what = f"is ChatML ({_CHATML[0]}), and not the chat format of this model{has}: write system and user instead"
        yield "chat_format", "prompt_template", what


def unknown_marks(case: _Case) -> _Mistakes:
    """Marks that the chat template writes and that are not in this vocabulary."""
    if not case.source.is_chat:
        return
    texts = "".join(case.source.texts.values())
    marks = [mark for mark in dict.fromkeys(MARK.findall(case.whole.template)) if mark not in texts]
    # [INST] is plain text to Llama 2 and the first Mistral, whose vocabularies of SentencePiece have no such token
    is_plain = case.model.header.scalars.get("tokenizer.ggml.model") == "llama"
    unknown = [mark for mark in marks if not is_token(case.model, mark) and not (is_plain and "INST]" in mark)]
    if unknown:
        named = listed(unknown, most=_N_NAMED)
        what = f"the model's chat template writes {named}, no tokens of this file, which are read letter by letter"
        yield "control_token", "", f"{what}: choose a file that was converted anew, or the model's own template"


def template_faults(case: _Case) -> _Mistakes:
    """What the chat template does with the texts that nothing could mend."""
    if not case.source.is_chat:
        return
    chat = chat_of(case.model, case.settings)
    for fault in chat.faults:
        yield "chat_template", "", fault
    if chat.thought and chat.closer(case.model) is None:
        what = f"the model's chat template begins the answer with {chat.thought}, which nothing is known to close"
        yield "chat_template", "", f"{what}: write the whole text as prompt_template, or set model.chat_variables"
    for role, text in case.source.turns.items():
        if text not in case.whole.template:
            what = "has white space at its ends that the model's chat template trims"
            yield "chat_template", role, f"{what}: leave it out, or write the whole text as prompt_template"


def other_label_end(case: _Case) -> _Mistakes:
    """A label that begins another one ends with the file's token, and the text ends its turns with another."""
    paths, text, model = set(case.compiled.label_tokens), case.whole.template, case.model
    begins = {path[:n] for path in paths for n in range(1, len(path))} & paths
    if not begins or case.source.is_chat or case.source.label_end is not None or case.whole.scoring == FIRST_TOKEN:
        return
    taken = model.piece(model.label_end)[0].decode(errors="replace") if model.label_end >= 0 else ""
    token = chat_of(model, case.settings).end_token(model) if case.chat_template else model.label_end
    ends = [model.piece(token)[0].decode(errors="replace")] if token != model.label_end else []
    others = [end for end in (*ends, *_ENDS) if end in text and is_token(model, end)]
    if others and taken and taken not in text:
        what = f"is not set: a label that begins another one ends with the file's {taken}, and turns of the text with"
        yield "label_end", "label_end", f"{what} {others[0]}: set it to one of the two"


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
            is_free = meant and not any(meant in given for given in case.source.texts.values())
            remedy = f"did you mean {meant}?" if is_free else f"slots are {', '.join(SLOTS)}, one of a kind"
            yield "literal_slot", key, f"has {word}, which is no slot and stays as it is: {remedy}"


def spaces_before_labels(case: _Case) -> _Mistakes:
    """Two spaces, or none, between the text and its labels. What is advised was tried."""
    end, prefix, label = case.whole.expanded_template[-1:], case.whole.label_prefix, case.whole.labels[0]
    is_latin = label[0].isascii() and label[0].isalnum()
    if prefix[:1] == " " and end in (" ", "\n"):
        remedies = ['give label_prefix: ""'] * _compiles(case, "")
        is_line = end == "\n"
        remedies.insert(len(remedies) if is_line else 0, f"end the text {'in words' if is_line else 'without'}")
        what = f"begins with a space, and the text ends {'a line' if is_line else 'in one'}"
        yield "space", "label_prefix", f"{what}: {', or '.join(remedies)}"
    elif not prefix and is_latin and (end.isalnum() or end in (":", ",", ";", "=", "-")) and _compiles(case, " "):
        what = f'is empty, so that {shown(label)} follows {end!r} directly: give label_prefix: " "'
        yield "space", "label_prefix", what


def _compiles(case: _Case, label_prefix: str) -> bool:
    """Whether the prompt can be used with another text before its labels."""
    config = case.whole.changed(label_prefix=label_prefix)
    try:
        compile_prompt(case.model, config, config.expanded_template, end=case.model.label_end)
    except (ConfigError, PlanError):
        return False
    return True


def labels_to_change(case: _Case) -> _Mistakes:
    """A label that begins or ends with white space, and labels that a reader takes for the same."""
    groups: dict[str, list[str]] = {}
    for label in case.whole.labels:
        groups.setdefault(seen_as(label), []).append(label)
        if label != label.strip():
            is_twin = label.strip() in case.whole.labels
            remedy = "keep one of the two" if is_twin else f"write {shown(label.strip())}"
            what = f"{shown(label)} has white space at its ends, a part of its tokens: {remedy}"
            yield "label_ends", "labels", what
        if hidden := _HIDDEN.search(label):
            what = f"{shown(label)} has U+{ord(hidden[0]):04X}, which is not seen, in its tokens"
            yield "label_ends", "labels", f"{what}: leave it out, or write a usual space"
    for labels in groups.values():
        if len(labels) > 1:
            named = listed(list(map(shown, labels)), most=_N_NAMED)
            yield "labels_alike", "labels", f"{named} {ALIKE}, and share their probability: keep one of them"


def untrained_prompts(case: _Case) -> _Mistakes:
    """The embedded model with a prompt that it was not trained on."""
    if case.model.is_embedded and digest(case.whole) not in TRAINED:
        what = "the embedded model answers other prompts than those of fashion-8 and fashion-8-joint nearly at random"
        yield "untrained", "", f"{what}: name another model with model.path or model.hf_repo"


def digest(prompt: PromptConfig) -> str:
    """A digest of the text and the label prefix, which are what the model saw in training; labels may be fewer, and in
    another order.
    """
    return digest_of([prompt.expanded_template, prompt.label_prefix])[:12]


def what_the_text_lacks(case: _Case) -> _Mistakes:
    """A text that names none of the labels, or does not show their descriptions."""
    whole, texts = case.whole.expanded_template, case.source.texts
    if not any(label.strip().casefold() in whole.casefold() for label in case.whole.labels):
        what = f"names none of the {len(case.whole.labels)} labels, so the model cannot know them"
        yield "labels_not_named", next(reversed(texts)), f"{what}: write {LABELS_SLOT} into it"
    if any(text and text not in whole for text in case.whole.label_descriptions or ()):
        instead = f" in place of {LABELS_SLOT}" if LABELS_SLOT in "".join(texts.values()) else ""
        yield "descriptions", "labels", f"are described, and the text does not say so: write {DESCRIBED_SLOT}{instead}"


def decomposed_texts(case: _Case) -> _Mistakes:
    """Text in another form of Unicode than queries are read in, of which the tokenizer makes other tokens."""
    texts = {key: [text] for key, text in case.source.texts.items()} | {"labels": [*case.whole.labels]}
    for key, text in ((key, text) for key, several in texts.items() for text in several):
        if unicodedata.is_normalized("NFC", text):
            continue
        composed = unicodedata.normalize("NFC", text)
        tokens, others = (case.model.tokenize(form, parse_special=False).tolist() for form in (text, composed))
        if tokens != others:
            what = "has accents as characters of their own (NFD), with other tokens than those of most texts"
            yield "decomposed", key, f"{what}: save the file in Unicode's form NFC"


OF_TEXTS = (control_tokens, unknown_marks, template_faults, literal_slots)
"""Those that a prompt may have whose labels' texts are not read."""
CHECKS = (
    *OF_TEXTS, labels_to_change, missing_beginning, other_label_end, spaces_before_labels, untrained_prompts,
    what_the_text_lacks, decomposed_texts,
)  # fmt: skip
