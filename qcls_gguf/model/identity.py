"""A model file on disk: whether it can be used, and which one it is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..system.folders import read_cache, write_cache
from .header import GgufHeader, all_tensors, read_header
from .header_rules import wrong_in_header
from .ollama import digest_in_name
from .stamps import Stamp, stamps_of

_SPLIT_NAME = re.compile(r"(?P<prefix>.+)-(?P<part>\d{5})-of-(?P<n_parts>\d{5})\.gguf")
_CHUNK_BYTES = 256 << 10
# Below this a file is hashed faster than a cache entry is worth.
_CACHED_FROM_BYTES = 16 << 20
_MAX_CACHED = 256
_DIGESTS = "sha256.json"
_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS in src/llama-hparams.h
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OTHER_FILES = {
    **dict.fromkeys(("mmproj", "clip"), "the part of a model that reads pictures or sound (mmproj)"),
    "adapter": "an adapter (LoRA)",
    "controlvector": "a control vector",
    "imatrix": "an importance matrix",
}
"""What GGUF files hold besides models, by their general.type or architecture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """Which model a run used; for a split model the size and digest are those of its parts joined in order."""

    path: Path
    size_bytes: int
    sha256: str


def model_parts(path: Path) -> tuple[Path, ...]:
    """The files of the model that starts at `path`: all parts, in order, of one named `X-00001-of-0000N.gguf`."""
    # Not resolved: in the Hub's cache the names are links, and what they point to has other names.
    name = _SPLIT_NAME.fullmatch(path.name)
    if name is None:
        return (path,)
    n_parts = int(name["n_parts"])
    if int(name["part"]) != 1 and n_parts > 1:
        first = f"{name['prefix']}-00001-of-{n_parts:05}.gguf"
        raise ModelError(f"{path} is part {int(name['part'])} of {n_parts} of a split model: give its first, {first}")
    return (
        path,
        *(path.with_name(f"{name['prefix']}-{part:05}-of-{n_parts:05}.gguf") for part in range(2, n_parts + 1)),
    )


def check_gguf(path: Path) -> tuple[GgufHeader, ...]:
    """Refuse a file that cannot be a whole GGUF model, with all its parts, before llama.cpp sees it.

    Returns the headers of all parts, that of `path` first. Raises ModelError that names what is wrong and the remedy.
    """
    header = read_header(path)
    parts = model_parts(path)
    for name in (header.scalars.get("general.type"), header.arch):
        if what := _OTHER_FILES.get(str(name)):
            raise ModelError(f"{path} is {what}, not a language model: give the file of the model itself")
    n_parts = header.scalars.get("split.count", 1)
    if type(n_parts) is int and n_parts > 1 and n_parts != len(parts):
        raise ModelError(
            f"{path} holds a part of a model split in {n_parts}, which its name does not say: "
            f"give the parts their names back, NAME-00001-of-{n_parts:05}.gguf and so on"
        )
    if not header.arch:
        raise ModelError(f"{path} names no architecture (general.architecture): choose a file with a language model")
    n_layers = header.scalars.get(f"{header.arch}.block_count")
    if n_layers is not None and (type(n_layers) is not int or not 0 < n_layers <= _MAX_LAYERS):
        raise ModelError(f"{path} has {n_layers} layers (block_count), of 1 to {_MAX_LAYERS}: it is damaged")
    headers = [header]
    for number, part in enumerate(parts[1:], 2):
        if not part.is_file():
            raise ModelError(f"part {number} of {len(parts)} of the model is missing: put {part.name} beside {path}")
        headers.append(read_header(part))
    if not (tensors := all_tensors(headers)):
        raise ModelError(f"{path} has no tensors, only a vocabulary: choose a file with a whole model")
    if wrong := wrong_in_header(header, tensors):
        raise ModelError(f"{path}: {wrong}: fetch the file again, or choose another")
    return tuple(headers)


def identify(path: Path, *, on_progress: Callable[[int, int], None] | None = None) -> ModelIdentity:
    """Find a model's size and SHA-256, from the cache if none of its files has changed since it was last hashed.

    A file of Ollama's store has its SHA-256 as its name, which is believed.
    `on_progress(n_bytes_done, size_bytes)` is called while a file is hashed, not when the cache answers.
    Raises ModelError if a file cannot be read or changes meanwhile.
    """
    parts = model_parts(path)
    try:
        stamps = stamps_of(parts)
        size_bytes = sum(size for _, size, *_ in stamps)
        if named := digest_in_name(path):
            return ModelIdentity(path=path, size_bytes=size_bytes, sha256=named)
        if size_bytes < _CACHED_FROM_BYTES:
            return ModelIdentity(path=path, size_bytes=size_bytes, sha256=_hash(parts, size_bytes, on_progress))
        sha256 = _cached(stamps)
        if sha256 is None:
            sha256 = _hash(parts, size_bytes, on_progress)
            if stamps_of(parts) != stamps:
                raise ModelError(f"{path} changed while it was read: wait until it is written, and run again")
            _remember(stamps, sha256)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = getattr(error, "strerror", None) or error
        name = getattr(error, "filename", None) or path
        raise ModelError(f"{name} cannot be read ({reason}): check the path and its permissions") from error
    return ModelIdentity(path=path, size_bytes=size_bytes, sha256=sha256)


def _hash(parts: Sequence[Path], size_bytes: int, on_progress: Callable[[int, int], None] | None) -> str:
    digest = hashlib.sha256()
    chunk = memoryview(bytearray(min(_CHUNK_BYTES, size_bytes + 1)))
    n_done = 0
    for part in parts:
        with part.open("rb", buffering=0) as file:
            while n_read := file.readinto(chunk):
                digest.update(chunk[:n_read])
                n_done += n_read
                if on_progress is not None:
                    on_progress(n_done, size_bytes)
    return digest.hexdigest()


def _kept() -> dict[str, Any]:
    """The kept digests by path of the first part; none if they are missing or damaged, for all can be hashed again."""
    entries = read_cache(_DIGESTS)
    return entries if isinstance(entries, dict) else {}


def _cached(stamps: list[Stamp]) -> str | None:
    entry = _kept().get(stamps[0][0])
    if not isinstance(entry, dict) or entry.get("files") != [list(stamp) for stamp in stamps]:
        return None
    sha256 = entry.get("sha256")
    return sha256 if isinstance(sha256, str) and _SHA256.fullmatch(sha256) else None


def _remember(stamps: list[Stamp], sha256: str) -> None:
    entries = _kept()
    entries.pop(stamps[0][0], None)
    entries[stamps[0][0]] = {"files": stamps, "sha256": sha256}
    write_cache(_DIGESTS, dict(list(entries.items())[-_MAX_CACHED:]))
