"""What the pages show: fenced blocks and their outputs, shell lines, links; and how an output is compared."""

import re
import shlex
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_DOCS = [f"docs/{path.name}" for path in ROOT.glob("docs/*.md")]
_READMES = [f"{folder}/README.md" for folder in ("models", "patches", "qcls_gguf/native/cuda", "tests/golden")]
PAGES = sorted(["README.md", "CONTRIBUTING.md", *_DOCS, *_READMES])
_WITH_OUTPUT = re.compile(
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$(?:\s*^```(?P<kind>text|json)\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_LIKE = {
    "…": ".*",
    "[█▉▊▋▌▍▎▏]+": "[█▉▊▋▌▍▎▏]*",
    r"\d+(?:\.\d+)?%": r"([\d.]+)%",
    r"\d+\.\d+(?:e-?\d+)?": r"[\d,]+(?:\.\d+)?(?:e-?\d+)?",
    r"\s+": r"\s+",
}
"""What is printed where a page shows such a part of a line."""
_MACHINE = re.compile(r"^(?:model  |CPU code  |start-up  |\S.{15} +[\d.]+ ms  )")
"""Lines about the machine or the time that something took there: what stands first in them is compared."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    where: str
    """page and line"""
    language: str
    text: str
    output: "Block | None"
    """the block that stands directly below, with nothing between them: what this one prints"""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose_of(page: str) -> str:
    """A page without its fenced blocks."""
    return _WITH_OUTPUT.sub("", text_of(page))


@cache
def blocks(language: str) -> list[Block]:
    """The blocks of a language in all pages, in order; those that are another's output are not among them."""
    found = []
    for page in PAGES:
        text = text_of(page)
        for match in _WITH_OUTPUT.finditer(text):
            if match["language"] == language:
                where, below = (f"{page}:{len(text[: match.start(part)].splitlines())}" for part in ("text", "output"))
                output = Block(page, below, match["kind"], match["output"], None) if match["kind"] else None
                found.append(Block(page, where, language, match["text"], output))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a console block."""

    where: str
    words: tuple[str, ...]
    """without variables before it and redirections after it"""
    output: Block | None
    """what it prints, where its block shows one command only"""

    @property
    def text(self) -> str:
        return shlex.join(self.words)


@cache
def commands() -> list[Command]:
    """The commands of all console blocks; those that && joins one by one."""
    found = []
    for block in blocks("console"):
        lines = [line for line in block.text.splitlines() if line.strip()]
        output = block.output if len(lines) == 1 else None
        for line in lines:
            assert line.startswith("$ "), f"{block.where}: {line!r}: a console block holds lines that begin with $"
            for part in re.split(r" && ", re.sub(r"\s+#.*$", "", line[2:])):
                words = dropwhile(lambda word: re.match(r"[A-Z_]+=", word), shlex.split(part))
                found.append(Command(where=block.where, words=tuple(words), output=output))
    return found


def anchors(page: str) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    names: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    return set(names)


def matches(shown: str, actual: str) -> str | None:
    """Why a shown text is not what was printed; None where it is.

    Blank lines and the width of gaps do not count. `…` stands for anything, on a line of its own for any lines. Whole
    numbers are compared; a decimal is measured, and any will do, but for a percentage, which may be three points off:
    processors round differently. So labels that stand after the first percentage of a line may come in another order.
    """
    lines = _lines(actual)
    at, may_skip = 0, False
    for line in _lines(shown):
        if line.strip() == "…":
            may_skip = True
            continue
        while at < len(lines) and (_reason(line, lines[at]) is not None) and may_skip:
            at += 1
        if at == len(lines):
            return f"nothing is printed like {line!r}"
        if reason := _reason(line, lines[at]):
            return reason
        at, may_skip = at + 1, False
    return None if may_skip or at == len(lines) else f"also printed: {lines[at]!r}"


def _lines(text: str) -> list[str]:
    """The lines that are not blank; one that a table has folded is one."""
    return [line.rstrip() for line in re.sub(r" *\n {9,}", " ", text).splitlines() if line.strip()]


def _reason(shown: str, actual: str) -> str | None:
    if masked := _MACHINE.match(shown):
        first = masked[0].split("  ")[0]
        return None if actual.startswith(first) else f"{actual!r} does not begin with {first!r}"
    shown = re.sub(r"(?<=%)  +.*$", "…", shown.rstrip())
    percentages = [float(number) for number in re.findall(r"([\d.]+)%", shown)]
    parts = re.split(f"({'|'.join(_LIKE)})", shown)
    pattern = "".join(
        next((like for kind, like in _LIKE.items() if re.fullmatch(kind, part)), re.escape(part)) for part in parts
    )
    found = re.fullmatch(pattern, actual)
    if found is None:
        return f"shown {shown!r}, printed {actual!r}"
    for wanted, got in zip(percentages, found.groups(), strict=True):
        if abs(wanted - float(got)) > 3:
            return f"shown {wanted}%, printed {got}%: {actual!r}"
    return None


def contains(actual: Any, shown: Any, where: str = "$") -> str | None:
    """Why printed JSON does not hold what a page shows of it; None where it does.

    Keys and elements may be left out at the end. Decimals are measured, and any number will do.
    """
    if isinstance(shown, dict | list) and (not isinstance(actual, type(shown)) or len(actual) < len(shown)):
        return f"{where}: printed {actual!r}"
    if isinstance(shown, dict):
        if missing := [key for key in shown if key not in actual]:
            return f"{where}: no {missing} in {list(actual)}"
        reasons = (contains(actual[key], value, f"{where}.{key}") for key, value in shown.items())
        return next(filter(None, reasons), None)
    if isinstance(shown, list):
        reasons = (contains(*pair, f"{where}[{i}]") for i, pair in enumerate(zip(actual, shown, strict=False)))
        return next(filter(None, reasons), None)
    if isinstance(shown, float):
        return None if isinstance(actual, float) else f"{where}: shown {shown}, printed {actual!r}"
    return None if actual == shown else f"{where}: shown {shown!r}, printed {actual!r}"
