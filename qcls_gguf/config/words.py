"""Values and names in the words of an error message; the digest of a value."""

import hashlib
import json
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""keys and values of JSON or YAML"""
MAX_LISTED = 20
"""names or mistakes that one message lists"""
_LONGEST = 80
_LARGE = 10**20
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_KINDS = {bool: "a truth value", int: "a number", float: "a number", str: "text", dict: "a mapping"}

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _LONGEST
_repr.maxlong = 40


def shown(value: Any, *, quoted: bool = True) -> str:
    """A value as Python writes it, cut where it is long; quoted: texts in quotes."""
    if isinstance(value, str) and not quoted:
        text = value if value.isprintable() else _repr.repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if type(value) in (bool, float, type(None)) or (type(value) is int and abs(value) < _LARGE):
        return repr(value)
    try:
        if isinstance(value, int):
            str(value)  # from Python 3.14 on reprlib writes an address instead of raising
        return _repr.repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"


ALIKE = "differ only in case, white space, invisible characters or how accents or numbers are stored"
"""what is said of texts with equal `seen_as`"""


def seen_as(text: str, *, case: bool = False) -> str:
    """A text as a reader perceives it: without white space and invisible characters, with accents normalised, whole
    numbers without `.0`, and without case unless that counts."""
    composed = unicodedata.normalize("NFKC", text)
    written = re.sub(r"[\s\ufe00-\ufe0f]", "", composed if case else composed.casefold())  # variation selectors
    seen = "".join(c for c in written if unicodedata.category(c) not in ("Cc", "Cf"))
    return re.sub(r"^(-?\d+)\.0$", r"\1", seen)


def alike(texts: Iterable[str], *, case: bool = False) -> list[tuple[str, str]]:
    """Those that a reader takes for an earlier one, after that one."""
    seen: dict[str, str] = {}
    pairs = [(seen.setdefault(seen_as(text, case=case), text), text) for text in texts]
    return [(first, text) for first, text in pairs if first != text]


def digest_of(value: object) -> str:
    """The sha256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def counted(n: int, one: str, many: str | None = None) -> str:
    """A number with what it counts: `1 graph`, `2 graphs`; many: where that is not just one more s."""
    return f"{n} {one if n == 1 else many or f'{one}s'}"


def listed(names: Sequence[str], one: str = "", most: int = MAX_LISTED) -> str:
    """Names, as many as a list has, and how many more there are, such as `and 2 more labels`; one: what they name."""
    n_more = len(names) - most
    more = counted(n_more, f"more {one}") if one else f"{n_more} more"
    return ", ".join(names[:most]) + (f" and {more}" if n_more > 0 else "")


def abbreviated(n: int) -> str:
    """A large number in three digits, such as `8.19B`: thousands (K), millions (M), billions (B) or trillions (T)."""
    return next((f"{n / unit:.3g}{name}" for unit, name in _UNITS if n >= unit), str(n))


def printable(text: str) -> str:
    """The text with everything that is invisible or could move a terminal's cursor shown as an escape.

    What other scripts are written with stays: the wide space of Chinese and Japanese, and joiners within words of
    Persian or Hindi and within emoji.
    """
    if text.isprintable():
        return text
    return "".join(
        c if _is_written(c, before) else c.encode("unicode_escape", "surrogatepass").decode()
        for before, c in pairwise(f" {text}")
    )


def _is_written(character: str, before: str) -> bool:
    if character in "\u200c\u200d":
        return before.isprintable() and not before.isascii()
    return character.isprintable() or character == "\u3000"


def printable_lines(text: str) -> str:
    """The same of a text whose line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


def kind_of(value: Any) -> str:
    """What a value is."""
    if value is None:
        return "nothing"
    if isinstance(value, list | tuple):
        return "a list"
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def hint(name: Any, known: Sequence[str]) -> str:
    """What an unknown name may have meant, or else all known ones."""
    if isinstance(name, str) and "\xa0" in name:  # as pages and word processors put it in indentation
        return "it has a no-break space (U+00A0): write plain spaces"
    close = close_to(name, known)
    return f"did you mean {close}?" if close else f"known are {', '.join(known)}"


def close_to(name: Any, known: Sequence[str]) -> str | None:
    """The known name that looks like this one or contains it as a word, as prompt_template does."""
    if not isinstance(name, str):
        return None
    import difflib  # for errors only

    text = name[:_LONGEST]
    if close := difflib.get_close_matches(text, known, n=1, cutoff=0.85):
        return close[0]
    with_it = [name for name in known if text in name.split("_")]
    if len(with_it) == 1:
        return with_it[0]
    return next(iter(difflib.get_close_matches(text, known, n=1)), None)


def instead_of(where: str, name: str) -> str | None:
    """What there is instead of something that was removed: an option, method or path of a command, a command (`all`), a
    key of the configuration (where: `config`), or an attribute of `Classifier`. None: it was not.
    """
    for line in Path(__file__).with_name("removed.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            places, names, instead = line.split(": ", 2)
            if where in places.split() and name in names.split():
                return instead
    return None
