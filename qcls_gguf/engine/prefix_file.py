"""Cells of cached prefixes, kept in files from one start to the next.

A file's name is a digest of everything that its cells depend on, and of the weights. Their sha256 takes long, and is
waited for only if there are cells of these prefixes. A file is used only if its folder is private to this user, and its
content has the digest that it begins with.
"""

import errno
import hashlib
import platform
import stat
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import geteuid
from pathlib import Path
from time import perf_counter

from ..config.schema import RuntimeConfig
from ..config.words import counted, digest_of
from ..errors import DecodeError
from ..native import build_info
from ..native.device import instruction_sets
from ..system.folders import cache_folder, write_whole
from ..system.lifetimes import Ledger
from ..version import __version__
from .engine import Engine
from .prefix_cache import Prefix, Tokens
from .resources import threads

WORTH_MS = 250.0
"""Prefixes are saved if computing them takes longer than this."""
N_KEPT = 16
"""Files that are kept; the oldest ones are removed, also those that a killed process left half written."""
_OWN_FOLDER, _GROUP_AND_OTHERS = 0o700, 0o077
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class PrefixFile:
    """The file for the cells of certain prefixes."""

    folder: Path
    key: str
    """a digest of what the cells depend on beside the model"""
    model_sha256: Callable[[], str]
    """waits until it is known"""

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / f"{self.key[:32]}-{self.model_sha256()[:32]}.kv"

    def read(self) -> bytes | None:
        """The cells; None if they were not saved. Warns of an unusable file."""
        try:
            _check_folder(self.folder)
            if not any(self.folder.glob(f"{self.key[:32]}-*")):
                return None
            if not stat.S_ISREG(self.path.lstat().st_mode):
                raise PermissionError(errno.EPERM, "it is no plain file")
            content = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            self.warn(e.strerror or str(e))
            return None
        state = content[_DIGEST_BYTES:]
        if content[:_DIGEST_BYTES] == self._digest(state):
            return state
        self.warn("the file is damaged")
        return None

    def warn(self, why: str) -> None:
        """Say that the file is not used."""
        warnings.warn(f"{self.path}: {why}: the prefixes are computed anew", stacklevel=3)

    def write(self, state: bytes) -> None:
        """Save cells; a folder that can't be written is a warning."""
        try:
            self.folder.mkdir(mode=_OWN_FOLDER, parents=True, exist_ok=True)
            _check_folder(self.folder)
            write_whole(self.path, self._digest(state) + state)
        except OSError as e:
            warnings.warn(f"{self.path}: the prefixes could not be saved: {e.strerror or e}", stacklevel=2)
            return
        with suppress(OSError):  # another process may do the same
            for old in sorted(self.folder.iterdir(), key=lambda file: file.lstat().st_mtime)[:-N_KEPT]:
                old.unlink(missing_ok=True)

    def _digest(self, state: bytes) -> bytes:
        return hashlib.sha256(self.path.name.encode() + state).digest()


def _check_folder(folder: Path) -> None:
    """Make the folder private to its owner. Raises OSError, also for another user's folder."""
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "the folder is a file")
    if status.st_uid != geteuid():
        raise PermissionError(errno.EPERM, f"the folder belongs to another user (uid {status.st_uid})")
    if status.st_mode & _GROUP_AND_OTHERS:
        folder.chmod(_OWN_FOLDER)


def hold_prefixes(engine: Engine, wanted: Sequence[Tokens], runtime: RuntimeConfig, ledger: Ledger) -> list[Prefix]:
    """Hold prefixes in an engine whose cache is empty; see Engine.hold.

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
            return held
    began = perf_counter()
    with ledger.at_work("cache prefixes", counted(sum(map(len, set(wanted))), "token")):
        held = engine.hold(wanted)
    if file and (perf_counter() - began) * 1e3 >= WORTH_MS:
        file.write(engine.saved_prefixes())
    ledger.step("cache prefixes", _cached(engine))
    return held


def _cached(engine: Engine) -> str:
    return f"{counted(engine.cache.n_cells, 'token')} of {counted(len(engine.cache), 'prefix', 'prefixes')}"


def _file(engine: Engine, wanted: Sequence[Tokens], runtime: RuntimeConfig) -> PrefixFile | None:
    folder = cache_folder()
    if not runtime.state_cache or engine.model.n_gpu_layers > 0 or folder is None:
        return None
    build, context, tokens = build_info(), engine.context, list(dict.fromkeys(wanted))
    built = [build.source_digest, build.backend, __version__, platform.machine(), *instruction_sets()]
    sizes = [context.n_ctx, context.n_batch, context.n_seq_max, engine.capacity.n_seqs, engine.layout.last_layer]
    computing = [runtime.kv_type, runtime.cpu_activations, runtime.flash_attn, threads(runtime)[0]]
    key = digest_of([tokens, built, sizes, computing, context.why_no_visible_cells is None])
    return PrefixFile(folder / "prefixes", key, engine.model.sha256)
