"""What several prompts' texts have in common, and what is each one's own. Pure functions of texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..config.prompt import PromptConfig
from ..config.template import SLOT
from ..prompts.compiled import common_prefix

# Where a text may be parted: behind a line break, and on both sides of what models take for control tokens.
_MARK = re.compile(r"\n|<[^<>\s]+>|\[/?[A-Z_]+\]")

_LISTS = (r"\[([^\[\]]+)\]", r"\(([^()]+)\)", r":(.+)$", r"^(.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTexts:
    """Prompts' whole texts in parts: head, own, middle, query, behind, cue.

    What a prompt says of its own behind the query is in `own`, too.
    """

    head: str
    """how all texts begin, up to a line or a control token"""
    own: tuple[str, ...]
    """what each prompt says in its own words"""
    middle: str
    """what all have between that and the query"""
    behind: str
    """what all have behind the query, up to the cue"""
    cues: tuple[str, ...]
    """the last words of each, before the label"""

    @property
    def is_one_text(self) -> bool:
        """Whether the prompts differ in their cues only, as far as they differ."""
        return not any(self.own)


def shared_texts(prompts: Sequence[PromptConfig]) -> SharedTexts:
    """The parts of the prompts' whole texts. Raises ConfigError for texts that the chat template is still to make."""
    whole = [prompt.expanded_template.partition(SLOT) for prompt in prompts]
    befores, afters = [before for before, _, _ in whole], [after for _, _, after in whole]
    head, own_before, middle = _parts(befores)
    if not middle:  # what leads to the query stays before it
        head, middle = head[: _last_end(head)], head[_last_end(head) :]
    cues = [after[_last_end(after) :] for after in afters]
    bodies = [after.removesuffix(cue) if cue else after for after, cue in zip(afters, cues, strict=True)]
    first, own_after, last = _parts(bodies)
    if first.endswith("\n"):  # one line break is left where a line was taken out
        last = last.removeprefix("\n")
    own = [" ".join(filter(None, map(str.strip, pair))) for pair in zip(own_before, own_after, strict=True)]
    return SharedTexts(head=head, own=tuple(own), middle=middle, behind=first + last, cues=tuple(cues))


def _parts(texts: Sequence[str]) -> tuple[str, list[str], str]:
    """(common beginning, each text's own rest, common end); equal texts are all beginning."""
    if len(set(texts)) == 1:
        return texts[0], [""] * len(texts), ""
    common = _common_beginning(texts)
    head = common[: _last_end(common)]
    rests = [text.removeprefix(head) for text in texts]
    common = _common_beginning([rest[::-1] for rest in rests])[::-1]
    mark = _MARK.search(common)
    # without a mark the end begins with a word
    start = mark.start() if mark else common.find(" ") + 1 if " " in common else len(common)
    end = common[start:]
    return head, [rest[: len(rest) - len(end)] for rest in rests], end


def _common_beginning(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)  # what these two share, those between them share too
    return first[: common_prefix(first, last)]


def _last_end(text: str) -> int:
    """Where the last line break or control token ends."""
    return max((mark.end() for mark in _MARK.finditer(text)), default=0)


def listed_labels(prompt: PromptConfig) -> tuple[str, ...]:
    """The labels in the order in which the prompt's text lists them between commas; else in that of its labels."""
    text = prompt.expanded_template
    for pattern in _LISTS:
        for listing in re.findall(pattern, text, re.MULTILINE):
            listed = [part.strip() for part in listing.split(",")]
            if sorted(listed) == sorted(prompt.labels):
                return tuple(listed)
    return prompt.labels
