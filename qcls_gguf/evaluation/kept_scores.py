"""The scores of a row, and a file of them, so that a pass that was interrupted goes on where it ended (`resume`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from ..config.schema import Config
from ..errors import ConfigError, QclsError
from ..score.result import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """One query's scores for one prompt's labels, in the order of the configuration."""

    tree: Sequence[FiniteFloat]
    """log-probabilities among the labels"""
    joint: Sequence[FiniteFloat] | None = None
    """log p(label | prompt); None where the pass was not exact"""
    mean: Sequence[FiniteFloat] | None = None
    """joint per token"""
    label_mass: FiniteFloat | None = None
    """the probability that lies on the labels at all; None where the pass was not exact"""
    stage: str | None = None
    """of a cascade, which stage answered"""

    def is_of(self, n_labels: int) -> bool:
        """Whether they are scores of so many labels."""
        return all(len(each) == n_labels for each in (self.tree, self.joint, self.mean) if each is not None)


RowScores: TypeAlias = Mapping[str, PromptScores]
"""one query's scores by prompt"""

_LINES: TypeAdapter[tuple[str, RowScores]] = TypeAdapter(tuple[str, RowScores])
_BEGINNING = b'["'


class KeptScores:
    """A file of JSON lines, one a scored row, each found again by a digest of configuration, model and query."""

    def __init__(self, path: Path, config: Config, model: ModelInfo, *, exact: bool) -> None:
        """Read the file if there is one.

        An unfinished last line is cut off, and damaged ones are a warning. Raises ConfigError for a file not ours.
        """
        self._path = path
        self._digest = _run_digest(config, model, exact=exact)
        self._n_labels = {prompt.name: len(prompt.labels) for prompt in config.prompts}
        self._scores: dict[str, RowScores] = {}
        n_damaged = 0
        try:
            if path.exists() and not path.is_file():
                raise ConfigError(f"`resume` {path}: is no plain file: name one, which need not be there yet")
            content = path.read_bytes() if path.exists() else b""
            if not content.startswith(_BEGINNING[: len(content)]):
                raise ConfigError(f"`resume` {path}: holds no kept scores: name a file of its own")
            whole = content[: content.rfind(b"\n") + 1]
            for line in whole.splitlines():
                try:
                    key, scores = _LINES.validate_json(line, strict=True)
                except ValidationError:
                    n_damaged += 1
                else:
                    self._scores[key] = scores
            self._file = path.open("r+b" if content else "wb")
            self._file.seek(len(whole))
            self._file.truncate()
        except OSError as e:
            raise ConfigError(f"`resume` {path}: cannot be read and written: {e.strerror}") from None
        if n_damaged:
            warnings.warn(f"`resume` {path}: damaged lines: {n_damaged}; their rows are scored again", stacklevel=2)

    def _key(self, query: str) -> str:
        return hashlib.sha256(f"{self._digest}\n{query}".encode()).hexdigest()

    def get(self, query: str) -> RowScores | None:
        """The scores of a query, or None where the file has none."""
        found = self._scores.get(self._key(query), {})
        is_whole = found.keys() == self._n_labels.keys() and all(
            each.is_of(self._n_labels[name]) for name, each in found.items()
        )
        return found if is_whole else None

    def add(self, query: str, scores: RowScores) -> None:
        """Keep a query's scores; they are written at once."""
        key = self._key(query)
        self._scores[key] = scores
        try:
            self._file.write(_LINES.dump_json((key, scores), exclude_none=True) + b"\n")
            self._file.flush()
        except OSError as e:
            raise QclsError(f"`resume` {self._path}: could not be written: {e.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # what could not be written was told when it was added
            self._file.close()


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
    for key in ("calibration", "heads"):
        if (path := getattr(config, key)) is not None:
            parts[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
