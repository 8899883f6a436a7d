"""The fashion vocabulary and the phrasings, and the split of both into train, dev and held-out.

The split is decided here, by a hash of the text alone, before any query is made: a surface or a phrasing that falls to
`heldout` is never seen in training, whichever query it would have appeared in.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ATTRIBUTES = ("category", "audience", "colour", "season", "occasion", "material", "price", "fit")
FOLDER = Path(__file__).parent / "lexicon"
LINE = re.compile(r"(?P<label>[a-z ]+?) (?P<role>noun|pre|obj|post|cl): (?P<core>[^|]*)(?:\|(?P<more>.*))?")
ENTRY = re.compile(r"(?P<text>[^{}]+?)(?: \{(?P<extra>[^}]*)\})?")


def bucket(*parts: str) -> float:
    """A number in [0, 1) that depends on the parts alone, equal on every machine."""
    digest = hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def split_of(*parts: str, heldout: float, dev: float) -> str:
    """The split that the parts fall to, with the given shares; the rest is `train`."""
    b = bucket(*parts)
    if b < heldout:
        return "heldout"
    return "dev" if b < heldout + dev else "train"


@dataclass(frozen=True, slots=True)
class Surface:
    """One way to write a label: its text, where it may stand, and the labels it carries (its own first)."""

    text: str
    attribute: str
    role: str
    labels: tuple[tuple[str, str], ...]
    core: bool
    split: str
    plural: bool


@dataclass(frozen=True, slots=True)
class Phrasing:
    """One line of a frames file."""

    text: str
    core: bool
    split: str


class Language:
    """The surfaces and phrasings of one language."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.surfaces: dict[tuple[str, str, str], list[Surface]] = {}
        self.phrasings: dict[str, list[Phrasing]] = {}
        self._read_surfaces(FOLDER / f"{name}.txt")
        self._read_phrasings(FOLDER / f"frames_{name}.txt")
        lines = (FOLDER / "fillers.txt").read_text(encoding="utf-8").splitlines()
        self.fillers = next(line for line in lines if line.startswith(f"{name}: "))[4:].split()
        words = (s.text.lower() for group in self.surfaces.values() for s in group)
        self.words = frozenset(w for text in words for w in re.findall(r"[a-z]+", text))

    def _read_surfaces(self, path: Path) -> None:
        attribute = ""
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line or line.startswith("#"):
                continue
            if line.startswith("["):
                attribute = line.strip("[]")
                continue
            match = LINE.fullmatch(line)
            if match is None or attribute not in ATTRIBUTES:
                raise ValueError(f"{path.name}:{number}: not a lexicon line: {line!r}")
            label, role = match["label"], match["role"]
            for core, entries in ((True, match["core"]), (False, match["more"] or "")):
                for entry in filter(None, (e.strip() for e in entries.split(","))):
                    self._add(attribute, label, role, entry, core)

    def _add(self, attribute: str, label: str, role: str, entry: str, core: bool) -> None:
        match = ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"not a lexicon entry: {entry!r}")
        text = match["text"]
        labels = [(attribute, label)] if label != "none" else []
        for extra in filter(None, (match["extra"] or "").split(";")):
            key, _, value = extra.partition("=")
            labels.append((key, value))
        split = "train" if core else split_of(self.name, attribute, text, heldout=0.10, dev=0.05)
        surface = Surface(text.rstrip("*"), attribute, role, tuple(labels), core, split, not text.endswith("*"))
        self.surfaces.setdefault((attribute, label, role), []).append(surface)

    def _read_phrasings(self, path: Path) -> None:
        section: list[Phrasing] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line or line.startswith("#"):
                continue
            if line.startswith("["):
                section = self.phrasings.setdefault(line.strip("[]"), [])
                continue
            core = line.startswith("* ")
            text = line.removeprefix("* ")
            split = "train" if core else split_of(self.name, "phrasing", text, heldout=0.18, dev=0.08)
            section.append(Phrasing(text, core, split))

    def roles(self, attribute: str, label: str) -> list[str]:
        """The roles that have surfaces for this label."""
        return [role for role in ("noun", "pre", "obj", "post", "cl") if (attribute, label, role) in self.surfaces]

    @cache  # noqa: B019  (two instances live as long as the process)
    def pick_list(self, attribute: str, label: str, role: str, split: str) -> tuple[Surface, ...]:
        """The surfaces of exactly this split."""
        return tuple(s for s in self.surfaces.get((attribute, label, role), ()) if s.split == split)

    @cache  # noqa: B019
    def core_list(self, attribute: str, label: str, role: str) -> tuple[Surface, ...]:
        """The core surfaces, which people type most."""
        return tuple(s for s in self.surfaces.get((attribute, label, role), ()) if s.core)

    @cache  # noqa: B019
    def phrase_list(self, section: str, split: str) -> tuple[Phrasing, ...]:
        """The phrasings of exactly this split."""
        return tuple(p for p in self.phrasings.get(section, ()) if p.split == split)


@cache
def language(name: str) -> Language:
    """The language of that name (`en` or `zh`), read once."""
    return Language(name)
