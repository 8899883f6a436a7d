"""The queries of a benchmark: of a file, or made of words with a given number of tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from ..config.words import counted
from ..data.rows import PLAIN, Reading, all_queries
from ..errors import ConfigError
from ..prompts.compiled import Tokenizer

N_GENERATED = 16
"""Queries that are made of one number of tokens."""
_N_OF_MIXED = 8
"""Queries of each of several numbers."""
_BEFORE = "query"
_WORDS = """
red dress for girls with long sleeves and pockets blue jeans slim fit for men warm wool coat in dark green size
large cheap cotton shirt white linen summer trousers black leather jacket on sale soft grey cashmere jumper for
a wedding in spring light pink silk skirt plus size office wear
""".split()  # noqa: SIM905  (a word a line would be 50 lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySet:
    """Queries that are measured together, and their name."""

    name: str
    queries: tuple[str, ...]


def file_queries(source: str, reading: Reading = PLAIN) -> QuerySet:
    """The queries of a file, or of standard input for `-`.

    Raises ConfigError for one that is empty or not UTF-8.
    """
    different = dict.fromkeys(all_queries(source, reading))  # equal queries of a batch would be computed once
    if not different:
        raise ConfigError(f"`queries` {source}: has no queries: give one a line")
    return QuerySet(name="stdin" if source == "-" else Path(source).name, queries=tuple(different))


def made_queries(tokenizer: Tokenizer, lengths: range) -> QuerySet:
    """Different queries of so many tokens after a word, all lengths equally often, always the same queries.

    Raises ConfigError where the built-in words do not give one of the lengths.
    """
    one = len(lengths) == 1
    queries: list[str] = []
    for n in lengths:
        cuts = dict.fromkeys(_cut(tokenizer, start, n) for start in range(len(_WORDS)))
        texts = [text for text in cuts if text]
        if not texts:
            raise ConfigError(
                f"`query_tokens` {n}: this model's tokenizer makes no text of {n} tokens from the built-in words: "
                "choose another number, or give queries with `queries`"
            )
        queries += texts[: N_GENERATED if one else _N_OF_MIXED]
    if not one:
        random.Random(0).shuffle(queries)
    name = counted(lengths[0], "token") if one else f"{lengths[0]}–{lengths[-1]} tokens"
    return QuerySet(name=name, queries=tuple(queries))


def _cut(tokenizer: Tokenizer, start: int, n_tokens: int) -> str | None:
    """The words from number `start` on, cut where they have n_tokens tokens; None where no cut has so many."""

    def tokens_after_word(text: str) -> list[int]:
        """The tokens of a text after a word and a space, where most templates have the query."""
        tokens = tokenizer.tokenize(f"{_BEFORE} {text}", parse_special=False)
        return [int(token) for token in tokens[n_before:]]

    n_before = len(tokenizer.tokenize(_BEFORE, parse_special=False))
    text = " ".join(_WORDS[(start + i) % len(_WORDS)] for i in range(n_tokens))  # each word has a token at least
    tokens = tokens_after_word(text)[:n_tokens]
    cut = b"".join(tokenizer.piece(token)[0] for token in tokens).decode(errors="ignore").strip()
    return cut if len(tokens_after_word(cut)) == n_tokens else None
