"""Turns prompts of system and user texts into whole texts by the model's chat template.

A template is first probed with marked texts, which tells how it takes a message's content, whether it keeps a system
turn, how an answer begins and ends, whether it leaves a thought open, and whether its other words depend on the user's.
Then it renders the turns with a placeholder for the query, and the text around the placeholder is the prompt.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..config.prompt import LABEL_SLOTS, SLOT, PromptConfig
from ..config.schema import ModelConfig
from ..errors import ConfigError, prefixed
from ..model import Vocabulary
from .compiled import Tokenizer, common_prefix

_QUERY = "Another qcls 'query': \"2nd\" <b>text</b> & \\n {{ 3 }} é 红 … 9"
"""A placeholder for the query, with characters that templates may change."""
_SYSTEM, _USER, _ANSWER, _REASON = "qclsSystem7x", "qclsUser7x", "qclsAnswer7x", "qclsReason7x"
_THINK, _NO_THINK = "<think>", "/no_think"
_NO_THOUGHTS = (False, 0, "none", "off", "disabled")
"""What a template's own variable about thoughts may be set to."""
_INSTEAD = "write the whole text as prompt_template"
MARK = re.compile(
    r"<[|｜][^<>\n]{1,40}>|(?<!<)</?[^<>\s/][^<>\s]{0,40}>(?!>)|\[/?[|][^\[\]\n]{1,40}[|]\]|\[/?[a-z]?[A-Z][A-Z_]{2,30}\]|◁[^▷\n]{1,40}▷|\]~!?b[\[\]]|\[e~\["
)
"""The forms of control tokens in published models."""
_CLOSES = re.compile(r"^(?:[<\[◁][|｜]?/)|(?<![a-z])(?:end|stop|suffix|close)(?![a-z])|^<[^|].*\|>$", re.IGNORECASE)
_ANSWERER = re.compile("assistant|model|bot|response|answer", re.IGNORECASE)
_BEGINS_USERS = re.compile(r"\s*(?:<[^<>]*user|<(?![^<>]*(?:/|end|eo[st]))[^<>]*>\s*user\b|\[INST)")
_ABOUT_THOUGHT = re.compile("think|thought|reason|reflect|cot(?![a-z])|scratch", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompts:
    """Prompts that all have a whole text."""

    prompts: tuple[PromptConfig, ...]
    """in the order given, with the rendered text as `prompt_template`; the slots for labels and name are still in it"""
    folded: tuple[str, ...]
    """names of those whose system text stands in the user's turn, because the template has no such turn for it"""
    end: str | None
    """the text of the token that ends an answer there, where the file names another one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """How a chat template writes a conversation."""

    template: str
    known: Mapping[str, Any]
    """what it may ask for"""
    in_parts: Mapping[str, bool]
    """by role, whether a message's content is a list of parts"""
    folds: bool = False
    """whether a system text is refused, dropped or replaced, and so begins the user's turn"""
    hint: str = ""
    """what the first turn says so that no thought is begun; the template removes it"""
    add: str = ""
    """what it writes at the beginning of an answer in a conversation, and not without one"""
    cut: str = ""
    """what it writes in place of that"""
    varies: bool = False
    """whether other words stand around another text of the user's"""
    thought: str = ""
    """the mark of a thought that it leaves open"""
    after: str = ""
    """what it writes after that"""
    closers: tuple[str, ...] = ()
    """what may close it, the likeliest first"""
    end: str = ""
    """what it writes after an answer"""
    faults: tuple[str, ...] = ()
    """what it does with the texts that nothing can mend, with remedies"""

    def closer(self, model: Tokenizer) -> str | None:
        """What closes the thought that it leaves open: one of the vocabulary's tokens, else what the template itself
        names, else what a mark about thoughts usually has. None: nothing does."""
        for is_known in (lambda text: is_token(model, text), lambda text: text in self.template):
            if known := next(filter(is_known, self.closers), None):
                return known
        return self.closers[0] if self.closers and _ABOUT_THOUGHT.search(self.thought + self.after) else None

    def end_token(self, model: Vocabulary) -> int:
        """The token that ends an answer; the file's where the template writes none."""
        end = self.end.lstrip()
        token = next(iter(model.tokenize(end, parse_special=True).tolist()), -1) if end else -1
        piece, is_special = model.piece(token) if token >= 0 else (b"", False)
        is_one = is_special and end.encode().startswith(piece) and is_token(model, piece.decode(errors="replace"))
        return token if is_one else model.label_end

    def write(self, turns: Mapping[str, str], *, generate: bool = True, then: str = "", **others: Any) -> str:
        """The rendered conversation. generate: with the beginning of an answer; then: what the user says after it;
        others: further keys of an answer.

        Raises ChatRefusalError or ConfigError.
        """
        from .chat_template import render_template  # starts without such prompts do not need Jinja2

        messages: list[dict[str, Any]] = []
        for role, text in (*turns.items(), *([("user", then)] if then else [])):
            said = f"{text} {self.hint}" if self.hint and not messages else text
            content = [{"type": "text", "text": said}] if self.in_parts.get(role) else said
            messages.append({"role": role, "content": content, **(others if role == "assistant" else {})})
        return render_template(self.template, {**self.known, "messages": messages, "add_generation_prompt": generate})


def is_token(model: Tokenizer, text: str) -> bool:
    """Whether the vocabulary has a text as one token."""
    return len(model.tokenize(text, parse_special=True)) == 1


def render_prompts(prompts: Sequence[PromptConfig], model: Vocabulary, settings: ModelConfig) -> RenderedPrompts:
    """Give every prompt a whole text; one that has it already stays as it is.

    settings: the chat template that replaces the file's, and its variables. Raises ConfigError, with the prompt and the
    remedy, if there is no template, or it changes the texts or the query.
    """
    rendered, folded = [], []
    end = None
    for prompt in prompts:
        if prompt.is_chat:
            with prefixed(f"prompts.{prompt.name}"):
                chat = chat_of(model, settings)
                folded += [prompt.name] * (chat.folds and "system" in prompt.turns)
                text = _whole_text(prompt, chat, model)
            token = chat.end_token(model)
            end = model.piece(token)[0].decode(errors="replace") if token != model.label_end else None
            label_end = prompt.label_end or end
            prompt = prompt.changed(prompt_template=text, system=None, user=None, answer_cue=None, label_end=label_end)
        rendered.append(prompt)
    return RenderedPrompts(prompts=tuple(rendered), folded=tuple(folded), end=end)


def chat_of(model: Vocabulary, settings: ModelConfig) -> Chat:
    """The chat of a model, probed once. Raises ConfigError where there is no template."""
    template = settings.chat_template or model.chat_template
    if template is None:
        what = "system and user need a chat template, and the model's file has none"
        raise ConfigError(f"{what}: {_INSTEAD}, or give one as model.chat_template")
    variables = [(name, value, type(value)) for name, value in sorted(settings.chat_variables.items())]  # 1 is not true
    return _probed(template, model.bos_text, model.eos_text, tuple(variables))


def _whole_text(prompt: PromptConfig, chat: Chat, model: Vocabulary) -> str:
    """The rendered text with its slots."""
    from .chat_template import ChatRefusalError

    turns = prompt.turns
    sent = {"user": "\n\n".join(turns.values())} if chat.folds and "system" in turns else turns
    try:
        text = chat.write({role: text.replace(SLOT, _QUERY) for role, text in sent.items()})
    except ChatRefusalError as e:
        raise ConfigError(f"the model's chat template refuses {' and '.join(turns)}: {e}: {_INSTEAD}") from None
    if (n := text.count(_QUERY)) != 1:
        what = f"writes the query {n} times" if n else "changes or drops the query"
        raise ConfigError(f"the model's chat template {what}, which has to stand once, as it is: {_INSTEAD}")
    if chat.varies:
        raise ConfigError(f"the model's chat template writes other words around another query: {_INSTEAD}")
    text = text.replace(_QUERY, SLOT)
    for role, given in turns.items():
        if given.strip() not in text:
            raise ConfigError(f"the model's chat template changes or drops the {role} text: {_INSTEAD}")
    if any(text.count(slot) > 1 for slot in LABEL_SLOTS if slot in "".join(turns.values())):
        raise ConfigError(f"the model's chat template writes a text with a list of labels several times: {_INSTEAD}")
    text, add = text.removesuffix(chat.cut), chat.add if text.endswith(chat.cut) else ""
    if chat.thought and (closer := chat.closer(model)):
        # an empty thought lets the model answer at once, as in Qwen3's own template
        in_lines = chat.after.isspace() or chat.thought == _THINK
        add = f"\n\n{closer}\n\n" if in_lines and not chat.after.strip() else closer
        text = text if chat.after.strip() else text.rstrip()
    return text + add + prompt.cue


@lru_cache(maxsize=8)
def _probed(template: str, bos: str, eos: str, variables: tuple[tuple[str, Any, type], ...]) -> Chat:
    """What a template does with marked texts."""
    given = {name: value for name, value, _ in variables}
    known = {"tools": None, "documents": None, "enable_thinking": False, **given, "bos_token": bos, "eos_token": eos}
    chat = Chat(template=template, known=known, in_parts={})
    for system, user in ((False, False), (True, True), (False, True), (True, False)):
        in_parts = {"system": system, "user": user, "assistant": user}
        text = _tried(chat := replace(chat, in_parts=in_parts), {"system": _SYSTEM, "user": _USER})
        if all(mark in text and not re.search(f"['\"]{mark}['\"]", text) for mark in (_SYSTEM, _USER)):
            break
    else:
        for user in (False, True):
            chat = replace(chat, in_parts={"user": user, "assistant": user}, folds=True)
            if _USER in _tried(chat, {"user": _USER}):
                break
        else:  # rendering says what is wrong
            return replace(chat, in_parts={}, folds=False)
    return _answered(chat, given)


def _answered(chat: Chat, given: Mapping[str, Any]) -> Chat:
    """The chat with how an answer begins and ends. given: the variables of the configuration."""
    turns = {"user": _USER} if chat.folds else {"system": _SYSTEM, "user": _USER}
    asked, faults = _tried(chat, turns), []
    if not chat.folds and asked.count(_SYSTEM) > 1:
        faults.append(f"the model's chat template writes the system text {asked.count(_SYSTEM)} times: {_INSTEAD}")
    if not chat.folds and asked.find(_SYSTEM) > asked.find(_USER):
        faults.append(f"the model's chat template writes the system text after the user's: {_INSTEAD}")
    before, _, tail = asked.rpartition(_USER)
    whole = _tried(chat, {**turns, "assistant": _ANSWER}, generate=False)
    middle, has_answer, end = whole.rpartition(_USER)[2].partition(_ANSWER) if _USER in whole else ("", "", "")
    if has_answer and not end.strip().removesuffix(tail.strip()):  # some end a turn only where another one follows
        end = _tried(chat, {**turns, "assistant": _ANSWER}, generate=False, then=_REASON).partition(_ANSWER)[2]
        end = "" if _BEGINS_USERS.match(end) else end.partition(_REASON)[0]
    rest = middle.removeprefix(tail) if has_answer and middle.startswith(tail) else ""
    if not has_answer and not chat.folds:  # answers are not rendered: turns that end alike end as they would
        others = asked.partition(_SYSTEM)[2]
        end = tail[: common_prefix(tail, others)]
    is_users = bool(rest.strip()) and before.endswith(rest)  # all messages look alike: this begins no answer
    begins = tail != _tried(chat, turns, generate=False).rpartition(_USER)[2] or (has_answer and middle == tail)
    begins = begins or (not has_answer and bool(_ANSWERER.search(tail)))
    if not begins and (is_users or not has_answer or not middle.startswith(tail)):
        what = "writes no beginning of the assistant's answer (add_generation_prompt)"
        faults.append(f"the model's chat template {what}: {_INSTEAD}, or give another as model.chat_template")
    varies = _tried(chat, {**turns, "user": _QUERY}).replace(_QUERY, _USER) != asked
    chat = replace(chat, varies=varies, end="" if is_users else end, faults=tuple(faults))
    if any(value for name, value in given.items() if _ABOUT_THOUGHT.search(name)):
        return chat  # a thought is wanted
    mark = _open_mark(tail, whole if has_answer else None)
    for told in _told_not_to_think(chat) if mark else ():
        text = _tried(told, turns)
        if _USER in text and _NO_THINK not in text and not _open_mark(text.rpartition(_USER)[2], whole):
            return told
    if rest.strip() and not is_users and (not begins or MARK.search(rest)):
        return replace(chat, add=rest)
    n = common_prefix(tail, middle)
    said, said_then = tail[n:], middle[n:]
    bare, bare_then = ("".join(part.split()) for part in (said, said_then))
    is_other = bool(bare) and bare not in bare_then and bare_then not in bare and not is_users
    if is_other and MARK.search(said_then) and not any(map(_CLOSES.search, MARK.findall(said))):
        return replace(chat, cut=said, add=said_then)  # another channel, where answers have one of their own
    if has_answer and not is_users and not MARK.search(said) and _ABOUT_THOUGHT.search(said):
        return replace(chat, cut=said, add=said_then)  # words that begin a thought
    if not mark:
        return chat
    reasons = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), _REASON)
    thought = _tried(chat, {**turns, "assistant": _ANSWER}, generate=False, **reasons)
    after = re.search(f"{_REASON}(.*?){_ANSWER}", thought, re.DOTALL)
    closer = MARK.search(after[1]) if after else None
    closers = (*([closer[0]] if closer else []), *_closers(mark[0]))
    return replace(chat, thought=mark[0], after=tail[mark.end() :], closers=closers)


def _tried(chat: Chat, turns: Mapping[str, str], **others: Any) -> str:
    """The rendered conversation; empty where the template refuses it or fails. Raises ChatLimitError."""
    from .chat_template import ChatLimitError

    try:
        return chat.write(turns, **others)
    except ChatLimitError:
        raise
    except ConfigError:
        return ""


def _told_not_to_think(chat: Chat) -> Iterator[Chat]:
    """The chat with variables of the template's own that may forbid a thought, then with words that may."""
    from .chat_template import variables_of

    for name in sorted(variables_of(chat.template) - chat.known.keys()):
        if _ABOUT_THOUGHT.search(name):
            for value in _NO_THOUGHTS:
                yield replace(chat, known={**chat.known, name: value})
    if _NO_THINK in chat.template:
        yield replace(chat, hint=_NO_THINK)


def _open_mark(tail: str, whole: str | None) -> re.Match[str] | None:
    """The last mark in the beginning of an answer, if it opens something: one that `whole`, a conversation with an
    answer, does not have, or one whose name is about thoughts. None where that is closed."""
    for mark in reversed(list(MARK.finditer(tail))):
        rest = tail[mark.end() :]
        is_closed = _CLOSES.search(mark[0]) or any(closer in rest for closer in _closers(mark[0]))
        is_usual = whole is None or mark[0] in whole
        is_thought = _ABOUT_THOUGHT.search(mark[0]) or _ABOUT_THOUGHT.match(rest)
        return None if is_closed or (is_usual and not is_thought) else mark
    return None


def _closers(mark: str) -> list[str]:
    """What may close what a mark opens, in the forms of published models."""
    closers = []
    for opens, closes in (("begin", "end"), ("start", "end"), ("prefix", "suffix"), ("open", "close")):
        for a, b in ((opens, closes), (opens.upper(), closes.upper())):
            if a in mark:
                closers.append(mark.replace(a, b))
    left, name, right = re.fullmatch(r"([<\[◁][|｜]?)(.+?)([|｜]?[>\]▷])", mark, re.DOTALL).groups()  # type: ignore[union-attr]
    if len(left) > len(right):
        closers.append(f"{left[0]}{name}{left[1]}{right}")  # <|channel> and <channel|>
    closers += [f"{left}/{name}{right}", f"{left[0]}/{left[1:]}{name}{right}"]
    if number := re.search(r"\d+$", name):
        closers.append(f"{left}{name[: number.start()]}{int(number[0]) + 1}{right}")
    return list(dict.fromkeys(closers))
