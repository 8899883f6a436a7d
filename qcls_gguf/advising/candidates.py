"""Configurations to compare with the present one: derived from its texts, to feed less, or given."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..config.heads_file import headed
from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..config.template import NAME_SLOT, SLOT
from ..errors import ConfigError
from ..prompts.compiled import common_prefix

_HOW = "For each attribute output exactly one label from its list."
# Where a text may be divided: after a line break, and on both sides of what models take for control tokens.
_MARK = re.compile(r"\n|<[^<>\s]+>|\[/?[A-Z_]+\]")

_LISTS = (r"\[([^\[\]]+)\]", r"\(([^()]+)\)", r":(.+)$", r"^(.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Another configuration for the same prompts, with their names and labels in the same order."""

    name: str
    why: str
    """what is different, and what that saves"""
    config: Config


def derive(config: Config) -> tuple[list[Candidate], list[str]]:
    """The candidates of a configuration whose prompts have whole texts, each once, and notes on what cannot be.

    Prompts with a head stay as they are, since a head is of one text. Raises ConfigError for the file of heads.
    """
    heads = headed(config)
    present, joint, notes = config, list[Candidate](), list[str]()
    if heads:
        notes.append(
            f"{', '.join(sorted(heads))}: the texts of prompts with a head stay as they are: learn heads with a common "
            "text or of lower layers, and give that configuration as `also`"
        )
    others = tuple(prompt for prompt in config.prompts if prompt.name not in heads)
    if not others:
        return [], notes
    config = dataclasses.replace(config, prompts=others)
    try:
        joint = joint_candidates(config)
    except ConfigError as e:
        notes.append(f"no text for all prompts can be derived: {e}")
    found = [*joint, shorter_cue(config)]
    if joint and (shorter := shorter_cue(joint[0].config)):
        found.append(dataclasses.replace(shorter, name="joint short-cue", why=f"as joint, and {shorter.why}"))
    different = {
        each.config.prompts: each for each in reversed(found) if each and each.config.prompts != config.prompts
    }
    return [_beside_heads(each, present) for each in reversed(different.values())], notes


def _beside_heads(candidate: Candidate, present: Config) -> Candidate:
    """A candidate for some prompts with the present configuration's other ones and their heads."""
    prompts = {prompt.name: prompt for prompt in candidate.config.prompts}
    every = tuple(prompts.get(prompt.name, prompt) for prompt in present.prompts)
    return dataclasses.replace(
        candidate, config=dataclasses.replace(candidate.config, prompts=every, heads=present.heads)
    )


def given_candidate(name: str, other: Config, present: Config) -> Candidate:
    """A configuration that the user gives: its model, prompts and heads, with the present one's runtime settings.

    other: with whole texts. Raises ConfigError where it does not ask for the same: prompts of the same names, each with
    the same labels, in any order.
    """
    prompts = {prompt.name: prompt for prompt in other.prompts}
    names = [prompt.name for prompt in present.prompts]
    if sorted(prompts) != sorted(names):
        raise ConfigError(f"`also` {name}: has the prompts {', '.join(prompts)}, not {', '.join(names)}")
    for prompt in present.prompts:
        here = prompts[prompt.name]
        if sorted(here.labels) != sorted(prompt.labels):
            raise ConfigError(f"`also` {name}: prompts.{prompt.name} has other labels than the present configuration")
        if here.labels != prompt.labels:  # the text keeps its own order
            prompts[prompt.name] = dataclasses.replace(
                here, prompt_template=here.expanded_template, labels=prompt.labels, label_descriptions=None
            )
    config = dataclasses.replace(_with_prompts(present, [prompts[each] for each in names]), heads=other.heads)
    if other.model != present.model:
        config = dataclasses.replace(config, model=other.model)
    return Candidate(name=name, why="a configuration that was given", config=config)


def joint_candidates(config: Config) -> list[Candidate]:
    """The prompts with one text, which differ in their last words only: with their label lists, or their own words.

    Raises ConfigError, which says why, where no such text can be derived.
    """
    prompts = config.prompts
    if len(prompts) < 2:
        raise ConfigError("there is only one prompt")
    parts = shared_texts(prompts)
    if not any(parts.own):
        raise ConfigError("the prompts have one text already, up to their last words")
    if silent := [prompt.name for prompt, own in zip(prompts, parts.own, strict=True) if not own]:
        raise ConfigError(
            f"prompts.{silent[0]} says nothing that the others do not say: a common text would leave nothing of it"
        )
    lists = "\n".join([_HOW, *map(_list_line, prompts)])
    own = "\n".join(
        words if words.startswith(f"{prompt.name}:") else f"{prompt.name}: {words}"
        for prompt, words in zip(prompts, parts.own, strict=True)
    )
    once = "what differs comes last, so that a query is read once"
    return [
        Candidate(
            name="joint",
            why=f"one text for all prompts, with a common instruction and every prompt's label list; {once}",
            config=_with_prompts(config, _joined(prompts, parts, lists)),
        ),
        Candidate(
            name="joint-own",
            why=f"one text for all prompts, in which every prompt's own words stand one below the other; {once}",
            config=_with_prompts(config, _joined(prompts, parts, own)),
        ),
    ]


def shorter_cue(config: Config) -> Candidate | None:
    """The last words before the label without their colon, or without them where all prompts have the same."""
    old = [last_words(prompt.template) for prompt in config.prompts]
    same = len(set(old)) == 1 and NAME_SLOT not in old[0]
    new = ["" if same else cue.rstrip(" :=") for cue in old]
    shown = [prompt.name if cue == NAME_SLOT else cue for prompt, cue in zip(config.prompts, new, strict=True)]
    if new == old or not all(old) or SLOT in "".join(old) or (not same and len(set(shown)) < len(shown)):
        return None
    prompts = [
        dataclasses.replace(prompt, prompt_template=prompt.template.removesuffix(before) + after)
        for prompt, before, after in zip(config.prompts, old, new, strict=True)
    ]
    what = f"without {old[0]!r} before the label" if same else "with each prompt's name alone before the label"
    return Candidate(
        name="short-cue",
        why=f"{what}, which every request feeds for every prompt",
        config=_with_prompts(config, prompts),
    )


def _with_prompts(config: Config, prompts: Sequence[PromptConfig]) -> Config:
    """The configuration with other prompts, without what was fitted to the old ones."""
    return dataclasses.replace(config, prompts=tuple(prompts), calibration=None, heads=None, cascade=None)


def _list_line(prompt: PromptConfig) -> str:
    if any(prompt.label_descriptions or ()):
        return f"{prompt.words.title}:\n{prompt.words.described}"
    return f"{prompt.words.title}: [{', '.join(listed_labels(prompt))}]"


def _joined(prompts: Sequence[PromptConfig], parts: SharedTexts, instruction: str) -> list[PromptConfig]:
    """The prompts with one template: in place of its name each has the slot, so that a file says the text once."""
    gap = "" if parts.middle[:1] in ("\n", "<", "[") else "\n"
    text = f"{parts.head}{instruction}{gap}{parts.middle}{SLOT}{parts.after_query}"
    have_own_cues = len(set(parts.cues)) == len(prompts)
    found = []
    for prompt, cue in zip(prompts, parts.cues, strict=True):
        if not have_own_cues:
            cue = f"{NAME_SLOT}:" if prompt.label_prefix[:1].isspace() else f"{NAME_SLOT}:\n"
        elif cue.startswith(prompt.name):
            cue = NAME_SLOT + cue.removeprefix(prompt.name)
        found.append(dataclasses.replace(prompt, prompt_template=text + cue))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTexts:
    """Prompts' whole texts in parts: head, own, middle, query, after_query, cue.

    What a prompt says of its own after the query is in `own`, too.
    """

    head: str
    """how all texts begin, up to a line or a control token"""
    own: tuple[str, ...]
    """what each prompt says in its own words; empty texts where the prompts differ in their cues only"""
    middle: str
    """what all have between that and the query"""
    after_query: str
    """what all have after the query, up to the cue"""
    cues: tuple[str, ...]
    """the last words of each, before the label"""


def shared_texts(prompts: Sequence[PromptConfig]) -> SharedTexts:
    """The parts of the prompts' whole texts. Raises ConfigError for texts that the chat template is still to make."""
    whole = [prompt.expanded_template.partition(SLOT) for prompt in prompts]
    head, own_before, middle = _parts([before for before, _, _ in whole])
    if not middle:  # what leads to the query stays before it
        head, middle = head[: _last_mark(head)], head[_last_mark(head) :]
    afters = [after for _, _, after in whole]
    cues = [last_words(after) for after in afters]
    first, own_after, last = _parts([after.removesuffix(cue) for after, cue in zip(afters, cues, strict=True)])
    if first.endswith("\n"):  # one line break is left where a line was taken out
        last = last.removeprefix("\n")
    own = tuple(" ".join(filter(None, map(str.strip, pair))) for pair in zip(own_before, own_after, strict=True))
    return SharedTexts(head=head, own=own, middle=middle, after_query=first + last, cues=tuple(cues))


def last_words(text: str) -> str:
    """What follows the last line break or control token: the cue of a prompt's text."""
    return text[_last_mark(text) :]


def listed_labels(prompt: PromptConfig) -> tuple[str, ...]:
    """The labels in the order in which the prompt's text lists them between commas; else in that of its labels."""
    for pattern in _LISTS:
        for listing in re.findall(pattern, prompt.expanded_template, re.MULTILINE):
            listed = [part.strip() for part in listing.split(",")]
            if sorted(listed) == sorted(prompt.labels):
                return tuple(listed)
    return prompt.labels


def _parts(texts: Sequence[str]) -> tuple[str, list[str], str]:
    """(common beginning, each text's own rest, common end); equal texts are all beginning."""
    if len(set(texts)) == 1:
        return texts[0], [""] * len(texts), ""
    common = _common_beginning(texts)
    head = common[: _last_mark(common)]
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


def _last_mark(text: str) -> int:
    """Where the last line break or control token ends."""
    return max((mark.end() for mark in _MARK.finditer(text)), default=0)
