"""Cells of cached prefixes, kept in files from one start to the next.

A file is named after everything that its cells depend on but for the weights, whose sha256 is in it: computing that
takes long, and is not waited for where there is no file. What is in a file is believed only if its own digest is right.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

MAGIC = b"qcls-gguf prefix cells 1\n"
N_KEPT = 16
"""Files that are kept; the oldest ones go."""


def prefix_digest(prefixes: Iterable[Sequence[int]]) -> str:
    """Of the tokens of all prefixes in their order: a chain, in which each token's digest covers those before it."""
    chains = (accumulate(prefix, _link, initial=b"") for prefix in prefixes)
    return hashlib.sha256(b"".join(hashlib.sha256(b"".join(chain)).digest() for chain in chains)).hexdigest()


def _link(before: bytes, token: int) -> bytes:
    return hashlib.sha256(before + token.to_bytes(4, "little", signed=True)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCache:
    """The file of one set of prefixes."""

    path: Path
    model_sha256: Callable[[], str]
    """waits until it is known"""

    @classmethod
    def of(cls, folder: Path, depends_on: dict[str, Any], model_sha256: Callable[[], str]) -> StateCache:
        """depends_on: plain values, such as the tokens' digest, the KV type and the build."""
        name = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()
        return cls(path=folder / f"{name[:32]}.kv", model_sha256=model_sha256)

    def read(self) -> bytes | None:
        """The cells, or none where they were not saved, are another model's, or are damaged, which is a warning."""
        try:
            content = self.path.read_bytes()
        except OSError:
            return None
        head, state = content[: len(MAGIC) + 128], content[len(MAGIC) + 128 :]
        digest = hashlib.sha256(state).hexdigest()
        if not head.startswith(MAGIC) or head[len(MAGIC) + 64 :] != digest.encode():
            warnings.warn(f"{self.path} is damaged: the prefixes are computed anew", stacklevel=2)
            return None
        return state if head[len(MAGIC) :][:64] == self.model_sha256().encode() else None

    def write(self, state: bytes) -> None:
        """Save cells; a folder that can't be written is a warning."""
        head = MAGIC + self.model_sha256().encode() + hashlib.sha256(state).hexdigest().encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, suffix=".part", delete=False) as file:
                part = Path(file.name)
                try:
                    file.write(head + state)
                    file.flush()
                    part.replace(self.path)  # nobody reads half a file
                except BaseException:
                    part.unlink()
                    raise
        except OSError as e:
            warnings.warn(f"{self.path}: the prefixes could not be saved: {e.strerror}", stacklevel=2)
            return
        with suppress(OSError):  # another process may do the same
            files = sorted(self.path.parent.glob("*.kv"), key=lambda each: each.stat().st_mtime)
            for old in files[:-N_KEPT]:
                old.unlink(missing_ok=True)
