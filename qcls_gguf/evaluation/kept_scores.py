"""The scores of a row, and a file of them, so that a pass that was interrupted goes on where it ended (`resume`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

from ..config.schema import Config
from ..config.words import JsonObject
from ..errors import ConfigError, QclsError
from ..score.result import ModelInfo

_N_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """One query's scores for one prompt's labels, in the order of the configuration."""

    tree: list[float]
    """log-probabilities among the labels"""
    joint: list[float] | None = None
    """log p(label | prompt); None where the pass was not exact"""
    mean: list[float] | None = None
    """joint per token"""
    label_mass: float | None = None
    """the probability that lies on the labels at all; None where the pass was not exact"""
    stage: str | None = None
    """of a cascade, which stage answered"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScores:
    """One query's scores by prompt, or why there are none."""

    prompts: dict[str, PromptScores] | None = None
    error: str | None = None


class KeptScores:
    """A file of JSON lines, one a scored row, each found again by a digest of configuration, model and query.

    A line ends in the beginning of the sha256 of all that stands before it, so that no changed digit is believed.
    """

    def __init__(self, path: Path, config: Config, model: ModelInfo, *, exact: bool) -> None:
        """Read the file if there is one.

        An unfinished last line is cut off, and a damaged one is a warning. Raises ConfigError for a file not ours.
        """
        self._path = path
        self._digest = _run_digest(config, model, exact=exact)
        self._n_labels = {prompt.name: len(prompt.labels) for prompt in config.prompts}
        self._scores: dict[str, RowScores] = {}
        try:
            if path.exists() and not path.is_file():
                raise ConfigError(f"`resume` {path}: is no plain file: name one, which need not be there yet")
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            if not whole and not b'{"key": "'.startswith(content[:9]):
                raise ConfigError(f"`resume` {path}: holds no kept scores: name a file of its own")
            self._read(whole.split(b"\n")[:-1])
            self._file = path.open("r+b" if content else "wb")
            self._file.seek(len(whole))
            self._file.truncate()
        except OSError as e:
            raise ConfigError(f"`resume` {path}: cannot be read and written: {e.strerror}") from None

    def _read(self, lines: Sequence[bytes]) -> None:
        damaged = []
        for number, line in enumerate(lines, 1):
            try:
                key, scores = _parsed(line)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                damaged.append(number)
            else:
                self._scores[key] = scores
        if damaged and len(damaged) == len(lines):
            raise ConfigError(f"`resume` {self._path}: no line of it has kept scores: name a file of its own")
        if damaged:
            numbers = ", ".join(map(str, damaged[:_N_NAMED])) + (", …" if len(damaged) > _N_NAMED else "")
            what = f"line {numbers} is" if len(damaged) == 1 else f"{len(damaged)} lines ({numbers}) are"
            warnings.warn(f"`resume` {self._path}: {what} damaged: those rows are scored again", stacklevel=3)

    def _key(self, query: str) -> str:
        return hashlib.sha256(f"{self._digest}\n{query}".encode()).hexdigest()

    def get(self, query: str) -> RowScores | None:
        """The scores of a query, or None where the file has none."""
        found = self._scores.get(self._key(query))
        if found is None or found.prompts is None:
            return found
        return found if {name: len(each.tree) for name, each in found.prompts.items()} == self._n_labels else None

    def add(self, query: str, scores: RowScores) -> None:
        """Keep a query's scores; they are written at once."""
        key = self._key(query)
        self._scores[key] = scores
        line = {name: value for name, value in dataclasses.asdict(scores).items() if value is not None}
        try:
            self._file.write(checked_line({"key": key, **line}))
            self._file.flush()
        except OSError as e:
            raise QclsError(f"`resume` {self._path}: could not be written: {e.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # what could not be written was told when it was added
            self._file.close()


def _parsed(line: bytes) -> tuple[str, RowScores]:
    """Raises one of several errors for a line that was not written here, or was changed since."""
    body = line[: -len(_check(b""))] + b"}"
    if line != body[:-1] + _check(body):
        raise ValueError
    row = json.loads(body)
    if "error" in row:
        return row["key"], RowScores(error=str(row["error"]))
    prompts = {name: PromptScores(**scores) for name, scores in row["prompts"].items()}
    for found in prompts.values():
        lists = [found.tree, *(each for each in (found.joint, found.mean) if each is not None)]
        numbers = [*chain(*lists), 0.0 if found.label_mass is None else found.label_mass]
        if len(set(map(len, lists))) != 1 or not all(map(math.isfinite, numbers)):
            raise ValueError
    return row["key"], RowScores(prompts=prompts)


def checked_line(row: JsonObject) -> bytes:
    """A JSON object with its check as the last key, and a line break."""
    body = json.dumps(row).encode()
    return body[:-1] + _check(body) + b"\n"


def _check(body: bytes) -> bytes:
    return f', "check": "{hashlib.sha256(body).hexdigest()[:16]}"}}'.encode()


def _run_digest(config: Config, model: ModelInfo, *, exact: bool) -> str:
    """A digest of everything that a row's scores depend on, except its query."""
    parts = {
        "prompts": [dataclasses.asdict(prompt) for prompt in config.prompts],
        "runtime": dataclasses.asdict(config.runtime),
        "model": [model.sha256, model.device, model.n_gpu_layers],
        "build": [model.package_version, model.llama_cpp_commit, model.source_digest, model.backend],
        "exact": exact,
    }
    if config.cascade is not None:
        parts["cascade"] = repr(config.cascade)
    if config.calibration is not None:
        parts["calibration"] = hashlib.sha256(config.calibration.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
