"""The same prompts with less to feed: shorter last words, other scorings, label wordings that need no branch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..config.scoring import EXACT_SCORINGS
from ..config.template import SLOT
from ..prompts.compiled import Tokenizer
from .candidate import Candidate, with_prompts, with_template
from .texts import listed_labels, shared_texts


def shorter_cue(config: Config) -> Candidate | None:
    """The last words before the label without their colon, or without them where all prompts have the same."""
    parts = shared_texts(config.prompts)
    if not all(parts.cues):
        return None
    same = len(set(parts.cues)) == 1
    cues = ["" if same else cue.rstrip(" :=") for cue in parts.cues]
    if cues == list(parts.cues) or (not same and len(set(cues)) < len(cues)):
        return None
    prompts = [
        with_template(prompt, prompt.expanded_template.removesuffix(old) + new)
        for prompt, old, new in zip(config.prompts, parts.cues, cues, strict=True)
    ]
    what = f"without {parts.cues[0]!r} before the label" if same else "with each prompt's name alone before the label"
    return Candidate(
        name="short-cue",
        why=f"{what}, which every request feeds for every prompt",
        config=with_prompts(config, prompts),
        can_part=True,
    )


def cheaper_scoring(config: Config, tokenizer: Tokenizer) -> Candidate | None:
    """first_token for exact scorings where the labels' first tokens differ, tree elsewhere: no logits, fewer tokens."""
    prompts = []
    for prompt in config.prompts:
        if prompt.scoring in EXACT_SCORINGS:
            differ = len(set(first_tokens(prompt, tokenizer))) == len(prompt.labels)
            prompt = dataclasses.replace(prompt, scoring="first_token" if differ else "tree")
        prompts.append(prompt)
    if tuple(prompts) == config.prompts:
        return None
    return Candidate(
        name="scoring",
        why="first_token where the labels' first tokens differ, else tree, instead of scorings that need the whole "
        "vocabulary and feed every label's tokens",
        config=with_prompts(config, prompts),
        can_part=True,
    )


def first_tokens(prompt: PromptConfig, tokenizer: Tokenizer, labels: Sequence[str] | None = None) -> list[int]:
    """The first token of each label behind the prompt, as far as the text before it does not matter."""
    found = [
        tokenizer.tokenize(prompt.label_prefix + label, parse_special=False).tolist()
        for label in labels or prompt.labels
    ]
    return [int(tokens[0]) if tokens else -1 for tokens in found]


def distinct_wordings(config: Config, tokenizer: Tokenizer) -> Candidate | None:
    """Other words for labels that begin with the same token, so that no label needs a branch of its own."""
    wordings = {prompt.name: found for prompt in config.prompts if (found := _wording(prompt, tokenizer))}
    if not wordings:
        return None
    renamed = {name: {new: old for old, new in wording.items()} for name, wording in wordings.items()}
    shown = ", ".join(f"{old} → {new}" for labels in renamed.values() for new, old in labels.items())
    return Candidate(
        name="label-words",
        why=f"labels in other words, so that first tokens tell them apart and no branch is fed: {shown}; "
        "answers come in the new words",
        config=with_prompts(config, _reworded(config.prompts, wordings)),
        renamed=renamed,
        can_part=True,
    )


def _wording(prompt: PromptConfig, tokenizer: Tokenizer) -> dict[str, str]:
    """New words by label, for all but one of the labels that share a first token; only such as then have their own."""
    tokens = first_tokens(prompt, tokenizer)
    n_with = Counter(tokens)
    used = set(tokens)
    found: dict[str, str] = {}
    kept: set[int] = set()
    for label, token in sorted(zip(prompt.labels, tokens, strict=True), key=lambda pair: len(pair[0])):
        if n_with[token] == 1 or token not in kept:
            kept.add(token)
            continue
        for new in _other_words(label):
            (first,) = first_tokens(prompt, tokenizer, [new])
            if first not in used and new not in prompt.labels and new not in found.values():
                found[label] = new
                used.add(first)
                break
    return found


def _other_words(label: str) -> Iterator[str]:
    words = label.split()
    if len(words) > 1:
        yield " ".join([*words[1:], words[0]])
        yield "".join(words)
    yield label.capitalize()
    yield label.upper()


def _reworded(prompts: Sequence[PromptConfig], wordings: Mapping[str, Mapping[str, str]]) -> list[PromptConfig]:
    """The prompts with other words for labels, also in the lists of them that texts have, each other's included."""
    lists = {}
    for prompt in prompts:
        listed, wording = listed_labels(prompt), wordings.get(prompt.name, {})
        lists[", ".join(listed)] = ", ".join(wording.get(label, label) for label in listed)
    found = []
    for prompt in prompts:
        text, wording = prompt.expanded_template, wordings.get(prompt.name, {})
        for old, new in lists.items():
            text = text.replace(old, new, 1)
        labels = tuple(wording.get(label, label) for label in prompt.labels)
        found.append(dataclasses.replace(prompt, prompt_template=text, labels=labels))
    return found


def query_first(config: Config) -> Candidate | None:
    """The query before each prompt's own words: it is fed once for all prompts, and their words with every request."""
    if len(config.prompts) < 2:
        return None
    parts = shared_texts(config.prompts)
    if parts.is_one_text or not all(parts.own):
        return None
    prompts = [
        with_template(prompt, f"{parts.head}{parts.middle.lstrip()}{SLOT}\n{own}{parts.behind}{cue}")
        for prompt, own, cue in zip(config.prompts, parts.own, parts.cues, strict=True)
    ]
    return Candidate(
        name="query-first",
        why="the query stands before each prompt's own words: a long query is fed once, and the words with every query",
        config=with_prompts(config, prompts),
        can_part=True,
    )
