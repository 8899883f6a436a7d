"""Scores of rows in a file, so that a pass that was interrupted goes on where it ended (`resume`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import Self

from ..config.schema import Config
from ..errors import ConfigError
from ..score.result import ModelInfo
from .passes import PromptScores, RowScores


class KeptScores:
    """A file of JSON lines, one a scored row, each found again by a digest of configuration, model and query."""

    def __init__(self, path: Path, config: Config, model: ModelInfo, *, exact: bool) -> None:
        """Read the file if there is one; an unfinished last line is cut off. Raises ConfigError for a file not ours."""
        self._path = path
        self._digest = _run_digest(config, model, exact=exact)
        self._scores: dict[str, RowScores] = {}
        try:
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            for number, line in enumerate(whole.splitlines(), 1):
                self._read(line, number)
            if not whole and not b'{"key": "'.startswith(content[:9]):
                raise self._not_ours(1)
            self._file = path.open("r+b" if content else "wb")
            self._file.seek(len(whole))
            self._file.truncate()
        except OSError as e:
            raise ConfigError(f"`resume` {path}: cannot be read and written: {e.strerror}") from None

    def _read(self, line: bytes, number: int) -> None:
        try:
            row = json.loads(line)
            prompts = row.get("prompts")
            self._scores[row["key"]] = RowScores(
                prompts=prompts and {name: PromptScores(**scores) for name, scores in prompts.items()},
                error=None if prompts else row["error"],
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._not_ours(number) from None

    def _not_ours(self, number: int) -> ConfigError:
        return ConfigError(f"`resume` {self._path}: line {number} is no result of eval: name a file of its own")

    def _key(self, query: str) -> str:
        return hashlib.sha256(f"{self._digest}\n{query}".encode()).hexdigest()

    def get(self, query: str) -> RowScores | None:
        """The scores of a query, or None where the file has none."""
        return self._scores.get(self._key(query))

    def add(self, query: str, scores: RowScores) -> None:
        """Keep a query's scores; they are written at once."""
        key = self._key(query)
        self._scores[key] = scores
        line = {name: value for name, value in dataclasses.asdict(scores).items() if value is not None}
        self._file.write(json.dumps({"key": key, **line}).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
