"""Queries: which are refused, their tokens, and the part that is labelled of one that is too long."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate
from unicodedata import is_normalized, normalize

from ..config.schema import LongQueries, RuntimeConfig
from ..config.words import shown
from ..errors import QueryError
from ..model import Model
from ..prompts.compiled import Tokenizer
from ..prompts.prompt_set import PromptSet
from ..statistics import Int32Array

MAX_QUERIES = 10_000
"""The most queries of one call; other callers wait until it ends."""
_BYTES_A_TOKEN = 32
"""A query may have so many for all of max_query_tokens, so that it is tokenised soon. Text has 3 to 6 bytes a token;
only long runs of one character have more than 32."""
_LONGEST_S = 1e9
"""the longest deadline"""
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


class QueryTokenizer:
    """Tokenises the queries of one configuration. Usable from several threads."""

    def __init__(self, model: Model, runtime: RuntimeConfig) -> None:
        self._model = model
        self._tokenize = model.native.tokenize
        self._most = runtime.max_query_tokens
        self._most_bytes = runtime.max_query_tokens * _BYTES_A_TOKEN
        self._long = runtime.long_queries
        self._composes = runtime.normalise_queries and not model.composes
        self.n_composed = 0
        """Queries that were brought into Unicode's form NFC."""

    def check(self, queries: Sequence[object], deadline_s: float | None = None) -> None:
        """Raise QueryError for a value that is not a query, or has too many bytes to tokenise; tokenises nothing."""
        if len(queries) > MAX_QUERIES:
            raise QueryError(
                f"{len(queries)} queries in one call, at most {MAX_QUERIES} are answered: ask in several calls"
            )
        for query in queries:
            how = query.how if isinstance(query, LongText) else self._long
            most = self._most_bytes if how == "refuse" else sys.maxsize
            if not isinstance(query, str):
                if _is_missing(query):
                    raise QueryError(f"the query is missing: {shown(query)} is no text; leave it out")
                raise QueryError(f"a query is text, not {type(query).__name__}: {shown(query)}")
            try:
                # A text with more characters than the limit has bytes is refused without being encoded.
                n, unit = (len(query), "characters") if len(query) > most else (len(query.encode()), "bytes")
            except UnicodeEncodeError as e:
                raise QueryError(
                    f"character {e.start} of the query is not valid Unicode ({e.reason}): write the text in UTF-8"
                ) from None
            if n > most:
                raise QueryError(
                    f"the query has {n} {unit}, more than {most} bytes, {_BYTES_A_TOKEN} for each of "
                    "runtime.max_query_tokens: shorten it, raise the limit (`max_query_tokens`), or label a part of it "
                    "(`long_queries`)"
                )
        if deadline_s is not None and not (isinstance(deadline_s, int | float) and abs(deadline_s) < _LONGEST_S):
            raise QueryError(
                f"deadline_s: {shown(deadline_s)} is not a number of seconds below {_LONGEST_S:g}: leave it out to wait"
            )

    def fragments(self, prompts: PromptSet, query: str, known: dict[str, Int32Array]) -> tuple[list[Int32Array], int]:
        """(the tokens of a set's distinct fragments with a query in them, characters of the query that they lack).

        known: texts that were tokenised for this turn. Of a query with too many tokens a part is tokenised, as
        runtime.long_queries says. Raises QueryError if it says refuse.
        """
        how = query.how if isinstance(query, LongText) else self._long
        whole, n_more = self.as_read(query), 1  # a text of any size is cut before it is tokenised
        if how == "refuse" or len(whole) <= self._most_bytes:
            tokens, n_more = self._tokenised(prompts, whole, known)
            if n_more <= 0:
                return tokens, 0
        if how == "refuse":
            raise QueryError(
                f"the query has {self._most + n_more} tokens ({len(query)} characters), more than "
                f"runtime.max_query_tokens: {self._most}: shorten it, raise the limit (`max_query_tokens`), or label a "
                "part of it (`long_queries`)"
            )
        long, n, n_kept = LongQuery(whole, how, self._model, self._most_bytes), self._most, 0
        while n_more > 0:
            part, n_kept = long.kept(n)
            tokens, n_more = self._tokenised(prompts, part, known)
            n = max(0, n - n_more)
        return tokens, len(whole) - n_kept

    def as_read(self, query: str) -> str:
        """The query as it is tokenised: in Unicode's form NFC, unless the tokenizer brings it there itself."""
        if not self._composes or query.isascii() or is_normalized("NFC", query):
            return query
        self.n_composed += 1
        return normalize("NFC", query)

    def _tokenised(self, prompts: PromptSet, query: str, known: dict[str, Int32Array]) -> tuple[list[Int32Array], int]:
        """(the tokens of the distinct fragments, by how many tokens the longest query exceeds the limit)."""
        found, n_more = [], -self._most
        for (before, after), n_empty in prompts.fragments.items():
            text = before + query + after
            if (tokens := known.get(text)) is None:
                tokens = known[text] = self._tokenize(text, parse_special=False)
            n_more = max(n_more, len(tokens) - n_empty - self._most)
            found.append(tokens)
        return found, n_more


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


def _is_missing(value: object) -> bool:
    """Whether a value means a missing one in a table, such as None or NaN."""
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")
