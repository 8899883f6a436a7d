"""Cells of cached prefixes, kept in files from one start to the next.

A file's name is a digest of everything that its cells depend on except the weights. Their sha256 is inside the file:
computing it takes long, and is waited for only if there is a file. A file is used only if it belongs to this user, its
head names these cells and this model, and its content has the digest in the head.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from ..config.schema import RuntimeConfig
from ..config.words import JsonObject, counted, digest_of
from ..errors import DecodeError
from ..native import build_info
from ..native.device import instruction_sets
from ..system.folders import PART_SUFFIX, cache_folder, write_whole
from ..system.lifetimes import Ledger
from ..version import __version__
from .engine import Engine
from .prefix_cache import Prefix, Tokens
from .resources import threads

MAGIC = b"qcls-gguf prefix cells 3\n"
WORTH_MS = 250.0
"""Prefixes are saved if computing them takes longer than this."""
N_KEPT = 16
"""Files that are kept; the oldest ones are removed."""
OLD_PART_S = 3600.0
"""Age in seconds after which an unfinished file is removed."""

_N_HEX = 64  # characters of a sha256
_STARTS = len(MAGIC), len(MAGIC) + _N_HEX  # of the key and of the model's digest
_HEAD_BYTES = len(MAGIC) + 3 * _N_HEX + 1
_OWN_FOLDER, _GROUP_AND_OTHERS = 0o700, 0o077


def prefix_digest(prefixes: Iterable[Sequence[int]]) -> str:
    """A sha256 of the tokens of all prefixes in their order."""
    digests = [hashlib.sha256(np.array(tokens, "<i4").tobytes()).digest() for tokens in prefixes]
    return hashlib.sha256(b"".join(digests)).hexdigest()


class _UnusableError(Exception):
    """A file, or the folder of all files, cannot be used; the message says why."""


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _head(key: str, model_sha256: str, state: bytes) -> bytes:
    """The head of a file: the key of a PrefixFile, the model's digest, and a digest of these and the cells."""
    digest = hashlib.sha256(f"{key}{model_sha256}\n".encode())
    digest.update(state)
    return MAGIC + f"{key}{model_sha256}{digest.hexdigest()}\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixFile:
    """The file of one set of prefixes."""

    path: Path
    key: str
    """sha256 of what the cells depend on"""
    model_sha256: Callable[[], str]
    """waits until it is known"""

    @classmethod
    def of(cls, folder: Path, depends_on: JsonObject, model_sha256: Callable[[], str]) -> PrefixFile:
        """depends_on: plain values, such as the tokens' digest, the KV type and the build."""
        key = digest_of(depends_on)
        return cls(path=folder / f"{key[:32]}.kv", key=key, model_sha256=model_sha256)

    def read(self) -> bytes | None:
        """The cells; None if they were not saved or are another model's. Warns of an unusable file."""
        try:
            _check_folder(self.path.parent)
            head, state = _read(self.path)
            key, model_sha256 = (head[start : start + _N_HEX].decode("ascii", "replace") for start in _STARTS)
            if head != _head(key, model_sha256, state):
                raise _UnusableError("the file is damaged")
            if key != self.key:
                raise _UnusableError("the file holds the cells of other prompts or settings")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, _UnusableError) as e:
            self.warn(_reason(e))
            return None
        return state if model_sha256 == self.model_sha256() else None

    def warn(self, why: str) -> None:
        """Say that the file is not used."""
        warnings.warn(f"{self.path}: {why}: the prefixes are computed anew", stacklevel=3)

    def write(self, state: bytes) -> None:
        """Save cells; a folder that can't be written is a warning."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=_OWN_FOLDER, parents=True, exist_ok=True)
            _check_folder(folder)
            for part in folder.glob(f"*{PART_SUFFIX}"):
                with suppress(OSError):
                    if time.time() - part.lstat().st_mtime > OLD_PART_S:
                        part.unlink()
            write_whole(self.path, _head(self.key, self.model_sha256(), state) + state)
        except (OSError, _UnusableError) as e:
            warnings.warn(f"{self.path}: the prefixes could not be saved: {_reason(e)}", stacklevel=2)
            return
        with suppress(OSError):  # another process may do the same
            files = sorted(folder.glob("*.kv"), key=lambda file: file.lstat().st_mtime)
            for old in files[:-N_KEPT]:
                old.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the file, because its cells could not be used."""
        with suppress(OSError):
            self.path.unlink()


def _check_folder(folder: Path) -> None:
    """Make the folder private to its owner. Raises OSError, _UnusableError for another user's folder."""
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if status.st_uid != os.geteuid():
        raise _UnusableError(f"the folder belongs to another user (uid {status.st_uid})")
    if status.st_mode & _GROUP_AND_OTHERS:
        folder.chmod(_OWN_FOLDER)


def _read(path: Path) -> tuple[bytes, bytes]:
    """(head, cells) of a file, which must be plain and this user's. Raises OSError, _UnusableError."""
    try:  # without O_NONBLOCK a named pipe would be waited for
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
            raise _UnusableError("it is no plain file") from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _UnusableError("it is no plain file")
        if status.st_uid != os.geteuid():
            raise _UnusableError(f"the file belongs to another user (uid {status.st_uid})")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_HEAD_BYTES), file.read()
    finally:
        os.close(descriptor)


def hold_prefixes(
    engine: Engine, wanted: Sequence[Tokens], runtime: RuntimeConfig, ledger: Ledger
) -> tuple[list[Prefix], PrefixFile | None]:
    """Hold prefixes in an engine whose cache is empty; see Engine.hold. Also returns the file whose cells were loaded,
    if one was.

    On a GPU nothing is saved: prefixes are computed there before the model file is hashed.
    Raises PlanError, DecodeError.
    """
    file = _file(engine, wanted, runtime)
    state = file.read() if file else None
    if file and state is not None:
        try:
            held = engine.hold(wanted, state)
        except DecodeError as e:
            file.warn(str(e))
        else:
            ledger.step("cache prefixes", f"{_cached(engine)}, from {file.path}")
            return held, file
    began = perf_counter()
    with ledger.at_work("cache prefixes", counted(sum(map(len, set(wanted))), "token")):
        held = engine.hold(wanted)
    if file and (perf_counter() - began) * 1e3 >= WORTH_MS:
        file.write(engine.saved_prefixes())
    ledger.step("cache prefixes", _cached(engine))
    return held, None


def _cached(engine: Engine) -> str:
    return f"{counted(engine.cache.n_cells, 'token')} of {counted(len(engine.cache), 'prefix', 'prefixes')}"


def _file(engine: Engine, wanted: Sequence[Tokens], runtime: RuntimeConfig) -> PrefixFile | None:
    folder = cache_folder()
    if not runtime.state_cache or engine.model.n_gpu_layers > 0 or folder is None:
        return None
    build = build_info()
    depends_on = {
        "tokens": prefix_digest(dict.fromkeys(wanted)),
        "kv_type": runtime.kv_type,
        "cpu_activations": runtime.cpu_activations,
        "end_depth": engine.layout.last_layer,
        "flash_attn": runtime.flash_attn,
        "visible_cells": engine.context.why_no_visible_cells is None,
        "n_ctx": engine.context.n_ctx,
        "n_batch": engine.context.n_batch,
        "n_threads": threads(runtime).n,
        "n_seq_max": engine.context.n_seq_max,
        "n_leaf_seqs": engine.capacity.n_seqs,
        "size_bytes": engine.model.facts.size_bytes,
        "build": [build.source_digest, build.backend, __version__, platform.machine(), *instruction_sets()],
    }
    return PrefixFile.of(folder / "prefixes", depends_on, lambda: engine.model.sha256())
