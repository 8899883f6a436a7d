"""Untrusted texts inside a prompt: they stay text even if they spell control tokens or slots.

`Quotes.quote` replaces the first character of each such spelling by a character that no text has; `QuotingVocabulary`
tokenises the text as if it had the original characters, but finds special tokens only in the rest of the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ..model import Model
from ..prompts.prompt_set import PromptSet

Int32Array = npt.NDArray[np.int32]

_BRACE = "{"  # which every slot begins with, whatever slots there are
_FIRST = 0xF0000  # characters for private use, of which no script has any
_LAST = 0xFFFFD


class Quotes:
    """The stand-ins: characters that replace others in the texts of one prompt."""

    def __init__(self, model: Model, texts: Iterable[str]) -> None:
        """texts: all that will be quoted."""
        self._model = model
        taken = {character for text in texts for character in text}
        self._free = (each for each in map(chr, range(_FIRST, _LAST + 1)) if each not in taken)
        self._by_original: dict[str, str] = {}

    def quote(self, text: str) -> str:
        """The text without spellings of slots or special tokens."""
        if _BRACE in text:
            text = text.replace(_BRACE, self._stand_in(_BRACE))
        while spelt := self._first_special(text):
            text = text.replace(spelt, self._stand_in(spelt[0]) + spelt[1:])
        return text

    def _first_special(self, text: str) -> str | None:
        tokens = self._model.tokenize(text, parse_special=True)
        if np.array_equal(tokens, self._model.tokenize(text, parse_special=False)):
            return None
        spelt = (spelling(self._model, token) for token in tokens.tolist())
        return next((each for each in spelt if each and each in text), None)

    def _stand_in(self, character: str) -> str:
        if character not in self._by_original:
            self._by_original[character] = next(self._free)
        return self._by_original[character]

    @property
    def originals(self) -> Mapping[int, str]:
        """For `str.translate`: the original of each stand-in."""
        return {ord(stand_in): original for original, stand_in in self._by_original.items()}


def spelling(model: Model, token: int) -> str:
    """How a special token is spelt; empty for any other."""
    piece, is_special = model.piece(token)
    return piece.decode(errors="ignore") if is_special else ""


class QuotingVocabulary:
    """A model's vocabulary for texts with quotes in them; see compile_prompts."""

    def __init__(self, model: Model, originals: Mapping[int, str], first_token: int) -> None:
        self._model = model
        self._originals = originals
        self.first_token = first_token
        self.pass_tokens = model.pass_tokens
        self.label_end = model.label_end
        self.piece = model.piece

    def tokenize(self, text: str, *, parse_special: bool) -> Int32Array:
        """The model's tokens of the original text; only text without stand-ins becomes special tokens."""
        meant = text.translate(self._originals)
        if meant == text or not parse_special:
            return self._model.tokenize(meant, parse_special=parse_special)
        found = []
        for token in self._model.tokenize(text, parse_special=True).tolist():
            spelt = spelling(self._model, token)
            if spelt and spelt in text:
                before, _, text = text.partition(spelt)
                found += [self.tokenize(before, parse_special=False), np.array([token], np.int32)]
        return np.concatenate([*found, self.tokenize(text, parse_special=False)])


def without_quotes(prompts: PromptSet, originals: Mapping[int, str]) -> PromptSet:
    """The compiled prompts with the texts that are meant around the query, which is tokenised with them."""
    if not originals:
        return prompts

    def meant(fragment: tuple[str, str]) -> tuple[str, str]:
        return fragment[0].translate(originals), fragment[1].translate(originals)

    return dataclasses.replace(
        prompts,
        prompts=tuple(
            dataclasses.replace(prompt, before=meant(prompt.fragment)[0], after=meant(prompt.fragment)[1])
            for prompt in prompts.prompts
        ),
        fragments=MappingProxyType({meant(fragment): n for fragment, n in prompts.fragments.items()}),
    )
