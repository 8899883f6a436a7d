"""Which file it is: whether it is still the one that was read, and the sha256 of a model, computed while it loads."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..errors import ModelError
from ..system.folders import remember, remembered
from ..system.threads import start
from .ollama import digest_in_name

Stamp = tuple[str, int, int, int]
"""Resolved path, size in bytes, times in ns of the last change of the content and of the file. Programs can set the
first of these times: copies and images often keep it, or give all files the same."""

_CHUNK_BYTES = 256 << 10
# Below this a file is hashed faster than a cache entry is worth.
_CACHED_FROM_BYTES = 16 << 20
_DIGESTS = "sha256.json"
"""The kept digests, by the files' stamps."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_END_BYTES = 1 << 16


def stamp_of(path: Path, found: os.stat_result) -> Stamp:
    """The stamp of a file; found: what the system says of it."""
    return str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns


def stamps_of(paths: Iterable[Path]) -> list[Stamp]:
    """The stamps that some files have now. Raises OSError."""
    return [stamp_of(path, path.stat()) for path in paths]


def digest_of_ends(path: Path) -> str:
    """The sha256 of a file's first and last 64 KiB, which stays where a file is copied or touched. Raises OSError."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(_END_BYTES))
        file.seek(max(0, os.fstat(file.fileno()).st_size - _END_BYTES))
        digest.update(file.read(_END_BYTES))
    return digest.hexdigest()


def digest_of(parts: Sequence[Path], *, go_on: Callable[[], bool] = lambda: True) -> str:
    """The sha256 of a model, of a split one that of its parts joined in order; from the cache if no file has changed.

    A file of Ollama's store has its SHA-256 as its name, which is believed. go_on is asked after each piece that is
    read, and ends it with an error where it says no. Raises ModelError if a file cannot be read or changes meanwhile.
    """
    path = parts[0]
    try:
        stamps = stamps_of(parts)
        size_bytes = sum(size for _, size, *_ in stamps)
        key = json.dumps(stamps)
        sha256 = digest_in_name(path) or (remembered(_DIGESTS).get(key) if size_bytes >= _CACHED_FROM_BYTES else None)
        if sha256 is None or not _SHA256.fullmatch(sha256):
            sha256 = _hash(parts, size_bytes, go_on)
            if stamps_of(parts) != stamps:
                raise ModelError(f"{path} changed while it was read: wait until it is written, and run again")
            if size_bytes >= _CACHED_FROM_BYTES:
                remember(_DIGESTS, key, sha256)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise ModelError(f"{path} cannot be read ({error}): check the path and its permissions") from error
    return sha256


class Hashing:
    """Hashes a model beside its loading: both read the file, and a large one is hashed for seconds."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._found: str | ModelError = ModelError("the model file could not be hashed")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(parts,), name="qcls-gguf hashing")
        start(self._thread, ModelError, f"to hash {parts[0]}")

    def _run(self, parts: Sequence[Path]) -> None:
        try:
            self._found = digest_of(parts, go_on=lambda: not self._stop.is_set())
        except ModelError as e:
            self._found = e

    def stop(self) -> None:
        """End it, done or not; may be called again."""
        self._stop.set()
        self._thread.join()

    def sha256(self) -> str:
        """The sha256, when the file is hashed. Raises ModelError."""
        self._thread.join()
        if isinstance(self._found, str):
            return self._found
        raise self._found


def _hash(parts: Sequence[Path], size_bytes: int, go_on: Callable[[], bool]) -> str:
    digest = hashlib.sha256()
    chunk = memoryview(bytearray(min(_CHUNK_BYTES, size_bytes + 1)))
    for part in parts:
        with part.open("rb", buffering=0) as file:
            while n_read := file.readinto(chunk):
                digest.update(chunk[:n_read])
                if not go_on():
                    raise ModelError("the model was closed before its file was hashed")
    return digest.hexdigest()
