"""One text for all prompts, derived from prompts that each have their own: they differ in their last words only."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..config.template import SLOT
from ..errors import ConfigError
from .candidate import Candidate, with_prompts, with_template
from .texts import SharedTexts, listed_labels, shared_texts

_HOW = "For each attribute output exactly one label from its list."


def joint_candidates(config: Config) -> list[Candidate]:
    """The prompts with one text: once with their label lists, once with their own words too.

    Raises ConfigError, which says why, where no such text can be derived.
    """
    prompts = config.prompts
    parts = joint_parts(prompts)
    instructions = {
        "joint": (
            "\n".join([_HOW, *map(_list_line, prompts)]),
            "one text for all prompts, with a common instruction and every prompt's label list; "
            "what differs comes last, so that a query is read once",
        ),
        "joint-own": (
            "\n".join(f"{prompt.name}: {own}" for prompt, own in zip(prompts, parts.own, strict=True)),
            "one text for all prompts, in which every prompt's own words stand one below the other; "
            "what differs comes last, so that a query is read once",
        ),
    }
    return [
        Candidate(name=name, why=why, config=with_prompts(config, _joined(prompts, parts, text)), can_part=True)
        for name, (text, why) in instructions.items()
    ]


def joint_parts(prompts: Sequence[PromptConfig]) -> SharedTexts:
    """The parts of prompts that can get one text. Raises ConfigError, which says why they cannot."""
    if len(prompts) < 2:
        raise ConfigError("there is only one prompt")
    parts = shared_texts(prompts)
    if parts.is_one_text:
        raise ConfigError("the prompts have one text already, up to their last words")
    if not all(parts.own):
        name = next(prompt.name for prompt, own in zip(prompts, parts.own, strict=True) if not own)
        raise ConfigError(
            f"prompts.{name} says nothing that the others do not say: in a common text nothing would distinguish it"
        )
    return parts


def _list_line(prompt: PromptConfig) -> str:
    if any(prompt.label_descriptions or ()):
        return f"{prompt.words.title}:\n{prompt.words.described}"
    return f"{prompt.words.title}: [{', '.join(listed_labels(prompt))}]"


def _joined(prompts: Sequence[PromptConfig], parts: SharedTexts, instruction: str) -> list[PromptConfig]:
    gap = "" if parts.middle[:1] in ("\n", "<", "[") else "\n"
    text = f"{parts.head}{instruction}{gap}{parts.middle}{SLOT}{parts.behind}"
    have_own_cues = len(set(parts.cues)) == len(prompts)
    return [
        with_template(prompt, text + (cue if have_own_cues else _cue(prompt)))
        for prompt, cue in zip(prompts, parts.cues, strict=True)
    ]


def _cue(prompt: PromptConfig) -> str:
    return f"{prompt.name}:" if prompt.label_prefix[:1].isspace() else f"{prompt.name}:\n"


def parted(original: Config, candidate: Candidate, apart: Collection[str]) -> Candidate:
    """The candidate with the prompts in `apart` as the original has them; the others' texts stay as they are."""
    prompts = [
        before if before.name in apart else after
        for before, after in zip(original.prompts, candidate.config.prompts, strict=True)
    ]
    named = [prompt.name for prompt in original.prompts if prompt.name in apart]
    return Candidate(
        name=f"{candidate.name} but {', '.join(named)}",
        why=f"as {candidate.name}, but with the original text for {', '.join(named)}, whose answers the common text "
        "changes too often",
        config=with_prompts(original, prompts),
        is_parted=True,
        renamed={name: labels for name, labels in candidate.renamed.items() if name not in apart},
    )
