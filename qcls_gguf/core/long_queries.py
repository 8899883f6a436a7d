"""A part of a query that has more tokens than are allowed: its beginning, its end, or both without the middle."""

from __future__ import annotations

from itertools import accumulate

from ..config.schema import LongQueries
from ..prompts.compiled import Tokenizer

GAP = " … "
"""takes the place of the middle of a query that was left out"""


class LongText(str):
    """A query that says itself what is done if it is too long, in place of runtime.long_queries."""

    how: LongQueries

    def __new__(cls, text: str, how: LongQueries) -> LongText:
        """A text; how: what is done."""
        self = super().__new__(cls, text)
        self.how = how
        return self


class LongQuery:
    """A query, cut at the borders of its own tokens.

    The caller must tokenise a part with its prompts to see whether it is short enough, because its outer tokens may
    merge.
    """

    def __init__(self, query: str, how: LongQueries, tokenizer: Tokenizer, most_bytes: int) -> None:
        """how: which part is kept (not refuse); most_bytes: limit of the kept part, so that a text of any size is cut
        quickly."""
        self._how = how
        data = query.encode()
        n = most_bytes // 2 if how == "middle" else most_bytes
        self._first, self._last = (data, data) if len(data) <= most_bytes else (data[:n], data[-n:])
        self._ends, self._last_ends = ([0, *_token_ends(part, tokenizer)] for part in (self._first, self._last))

    def kept(self, n_tokens: int) -> tuple[str, int]:
        """(the part with at most this many tokens, how many characters of the query it has)."""
        n_first = {"head": n_tokens, "tail": 0}.get(self._how, n_tokens - n_tokens // 2)
        n_last = n_tokens - n_first
        ends, last_ends = self._ends, self._last_ends
        # a part of a character at a border is left out
        first = self._first[: ends[min(n_first, len(ends) - 1)]].decode(errors="ignore")
        last = self._last[last_ends[max(0, len(last_ends) - 1 - n_last)] :].decode(errors="ignore") if n_last else ""
        return first + (GAP if self._how == "middle" and n_tokens else "") + last, len(first) + len(last)


def _token_ends(data: bytes, tokenizer: Tokenizer) -> list[int]:
    """Where the tokens of a text end, in bytes."""
    text = data.decode(errors="ignore")
    tokens = tokenizer.tokenize(text, parse_special=False).tolist()
    ends = list(accumulate(len(tokenizer.piece(token)[0]) for token in tokens))
    n_more = ends[-1] - len(data) if ends else 0
    if n_more in (0, 1):  # SentencePiece puts a space before the first word
        return [max(0, end - n_more) for end in ends]
    return [len(data) * end // ends[-1] for end in ends]  # its tokens do not spell the text
