"""A model's files: checked before llama.cpp sees them, hashed while it loads, and read for rows of the output matrix.

llama.cpp may repack weights when it loads them, so that they can't be read back; the file has them as they are.
"""

import hashlib
import json
import math
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from ..config.words import listed
from ..errors import ModelError, PlanError
from ..native.arithmetic import dequantised
from ..statistics import Float32Array
from ..system.folders import remember, remembered
from ..system.lifetimes import start_thread
from .header import DECISION_KINDS, GgufHeader, TensorInfo, read_header, stamp_of
from .hub import SPLIT_NAME
from .placement import weights_of

_MAX_PARTS = 99_999
_CHUNK_BYTES = 256 << 10
# Below this a file is hashed faster than a cache entry is worth.
_CACHED_FROM_BYTES = 16 << 20
_DIGESTS = "sha256.json"
"""The kept digests, by the files' stamps."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
BLOB = re.compile(r"sha256[:-](?P<hex>[0-9a-f]{64})")
_KEPT_BYTES = 64 << 20
"""Rows to keep: labels that requests bring may in time have every token, 2.3 GiB of an 8B model's output matrix."""

_CHANGED = "has changed since the model was opened: open it again"
_COMPANIONS = ("clip", "controlvector", "imatrix")
"""Architectures of files that accompany a model."""


@dataclass(frozen=True)
class ModelFile:
    """A whole model on disk, whose headers follow the rules."""

    headers: tuple[GgufHeader, ...]
    """of all parts; the first has the metadata"""
    n_first: int = 0
    """above 0: only so many of the first layers are loaded, and no LM head's matrix"""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Refuse a file that cannot be a whole GGUF model, with all its parts.

        Raises ModelError that names what is wrong and the remedy.
        """
        header = read_header(path)
        kind = header.scalars.get("general.type", "model")
        if kind != "model" or header.arch in _COMPANIONS:
            what = f"{path} holds no language model ({header.arch or kind})"
            raise ModelError(f"{what}: give the file of the model itself")
        n_embd, n_out = (header.scalars.get(f"{header.arch}.embedding_length{end}", 0) for end in ("", "_out"))
        has_own_head = header.decision_kind in DECISION_KINDS  # outside of llama.cpp's graph
        if n_out not in (0, n_embd) and not has_own_head:
            raise ModelError(f"{path} gives {n_out!r} values a token, its head takes {n_embd!r}: choose another file")
        parts = model_parts(header)
        file = cls((header, *map(read_header, parts[1:])))
        for number, part in enumerate(file.headers[1:], 1):
            numbers = part.scalars.get("split.no"), part.scalars.get("split.count")
            if numbers != (number, len(parts)):
                raise ModelError(f"{part.path} is not part {number + 1} of {path}: fetch all parts of one model again")
        if not file.tensors:
            raise ModelError(f"{path} has no tensors, only a vocabulary: choose a file with a whole model")
        return file

    @property
    def header(self) -> GgufHeader:
        """The header with the metadata, of the first part."""
        return self.headers[0]

    @property
    def path(self) -> Path:
        """The first part."""
        return self.header.path

    @property
    def parts(self) -> list[Path]:
        """All files, in order."""
        return [header.path for header in self.headers]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(header.size_bytes for header in self.headers)

    @property
    def n_parameters(self) -> int:
        """The number of weights."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def n_layer(self) -> int:
        """How many layers are loaded."""
        return self.n_first or self.header.n_layer

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """The loaded tensors of all files by name."""
        above = [f"blk.{layer}." for layer in range(self.n_layer, self.header.n_layer)]
        left_out = (*above, "output.weight") if self.n_first else ()
        tensors = {name: tensor for header in self.headers for name, tensor in header.tensors.items()}
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(left_out)}

    @property
    def weights(self) -> tuple[int, ...]:
        """The bytes of the loaded layers; see `weights_of`."""
        return weights_of(self.tensors, self.n_layer, head=self.n_first == 0)


def model_parts(header: GgufHeader) -> tuple[Path, ...]:
    """The files of the model that starts with this one: all parts, in order, of one named `X-00001-of-0000N.gguf`.

    Raises ModelError for another part than the first, a part that is missing, and files that were renamed.
    """
    # Not resolved: in the Hub's cache the names are links, and what they point to has other names.
    path, name = header.path, SPLIT_NAME.fullmatch(header.path.name)
    number, n_parts = (header.scalars.get(f"split.{key}", default) for key, default in (("no", 0), ("count", 1)))
    if not (type(number) is int and type(n_parts) is int and 0 <= number < n_parts <= _MAX_PARTS):
        number, n_parts = 0, 1
    part = f"{path} is part {number + 1} of {n_parts} of a split model"
    if name is None or int(name["n_parts"]) != n_parts or int(name["part"]) != number + 1:
        if n_parts > 1:
            raise ModelError(f"{part}, and its name does not say so: name the parts X-00001-of-{n_parts:05}.gguf, …")
        return (path,)
    names = [f"{name['prefix']}-{n:05}-of-{n_parts:05}.gguf" for n in range(1, n_parts + 1)]
    if number:
        raise ModelError(f"{part}: give its first, {names[0]}")
    paths = (path, *map(path.with_name, names[1:]))
    if missing := listed([path.name for path in paths if not path.exists()]):
        raise ModelError(f"{part}, which lacks {missing}: fetch all parts into the same folder")
    return paths


def sha256_of(parts: Sequence[Path], *, go_on: Callable[[], bool] = lambda: True) -> str:
    """The sha256 of a model, of a split one that of its parts joined in order; from the cache if no file has changed.

    A file of Ollama's store has its SHA-256 as its name, which is believed. go_on is asked after every piece
    that is read, and ends it with an error where it says no. Raises ModelError if a file cannot be read or changes.
    """
    path = parts[0]
    try:
        stamps = [stamp_of(part, part.stat()) for part in parts]
        size_bytes = sum(size for _, size, *_ in stamps)
        key = json.dumps(stamps)
        in_store = BLOB.fullmatch(path.name) if path.parent.name == "blobs" else None
        is_large = size_bytes >= _CACHED_FROM_BYTES
        sha256 = in_store["hex"] if in_store else remembered(_DIGESTS).get(key, "") if is_large else ""
        if not _SHA256.fullmatch(sha256):
            digest = hashlib.sha256()
            chunk = memoryview(bytearray(min(_CHUNK_BYTES, size_bytes + 1)))
            for part in parts:
                with part.open("rb", buffering=0) as file:
                    while n_read := file.readinto(chunk):
                        digest.update(chunk[:n_read])
                        if not go_on():
                            raise ModelError("the model was closed before its file was hashed")
            sha256 = digest.hexdigest()
            if [stamp_of(part, part.stat()) for part in parts] != stamps:
                raise ModelError(f"{path} changed while it was read: wait until it is written, and run again")
            if is_large:
                remember(_DIGESTS, key, sha256)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise ModelError(f"{path} cannot be read ({error}): check the path and its permissions") from error
    return sha256


class Hashing:
    """Hashes a model beside its loading: both read the file, and a large one is hashed for seconds."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._found: str | ModelError = ModelError("the model file could not be hashed")
        self._stop = threading.Event()

        def run() -> None:
            try:
                self._found = sha256_of(parts, go_on=lambda: not self._stop.is_set())
            except ModelError as e:
                self._found = e

        self._thread = threading.Thread(target=run, name="qcls-gguf hashing")
        start_thread(self._thread, ModelError, f"to hash {parts[0]}")

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


class OutputRows:
    """The rows of one model's output matrix; the last that were read are kept."""

    def __init__(self, file: ModelFile) -> None:
        """Raises ModelError where a model has no such matrix, or the part with it is another file by now."""
        matrix = _find(file, "output.weight") or _find(file, "token_embd.weight")  # where the two are tied
        if matrix is None:
            raise ModelError(f"{file.path} has neither output.weight nor token_embd.weight: it is no language model")
        self._file = file
        self._matrix = matrix
        self._bias = _find(file, "output.bias")
        self._rows: dict[int, Float32Array] = {}

    def of(self, tokens: Iterable[int]) -> dict[int, Float32Array]:
        """The dequantised rows of some tokens, float32 of shape (n_embd,).

        Raises ModelError where the matrix has a type that cannot be dequantised, or a row is not finite.
        """
        tokens = list(tokens)
        n_embd, n_rows = self._matrix.info.shape[:2]  # a file may name more dimensions, which are 1 then
        kept = self._rows
        if 4 * n_embd * len(kept.keys() | tokens) > _KEPT_BYTES:
            kept = self._rows = {}  # another thread goes on with the former ones
        if missing := [token for token in tokens if token not in kept]:
            kept |= zip(missing, self._matrix.values(missing, n_rows).reshape(-1, n_embd), strict=True)
        return {token: kept[token] for token in tokens}

    def tensor(self, name: str) -> Float32Array | None:
        """A tensor's values in the reverse of ggml's shape; None if there is no such tensor. Raises as `of`."""
        tensor = _find(self._file, name)
        return None if tensor is None else tensor.values([0], 1).reshape(tensor.info.shape[::-1])

    def biases(self, tokens: Iterable[int]) -> dict[int, float]:
        """The values of output.bias for some tokens. Raises ModelError where the file has none."""
        if self._bias is None:
            raise ModelError(f"{self._file.path} has no output.bias, which its model adds to the logits")
        bias = self._bias.values([0], 1)
        return {token: float(bias[token]) for token in tokens}


class _Tensor:
    """A tensor in its file. The file stays open, so that rows are read from the file that llama.cpp has loaded even if
    another one has taken its name."""

    def __init__(self, header: GgufHeader, info: TensorInfo) -> None:
        self.part, self.info = header.path, info
        try:
            self._file = os.open(self.part, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise self.error(f"cannot be read ({e.strerror}): it was there when the model was opened") from e
        weakref.finalize(self, os.close, self._file)
        status = os.fstat(self._file)
        self._changed_ns = status.st_mtime_ns
        if stamp_of(self.part, status) != header.stamp:
            raise self.error(_CHANGED)

    def values(self, rows: Sequence[int], n_rows: int) -> Float32Array:
        """The values of some of the tensor's n_rows rows, one after the other, as one array (n_values,).

        Raises ModelError where the file was written to since it was opened, the tensor's type cannot be dequantised, or
        a value is not finite.
        """
        info, n_bytes = self.info, self.info.n_bytes // n_rows
        try:
            content = b"".join([os.pread(self._file, n_bytes, info.offset + row * n_bytes) for row in rows])
        except OSError as e:
            raise self.error(f"cannot be read ({e.strerror})") from e
        if len(content) < n_bytes * len(rows) or os.fstat(self._file).st_mtime_ns != self._changed_ns:
            raise self.error(_CHANGED)
        try:
            n_values = math.prod(info.shape) // n_rows * len(rows)
            values = dequantised(info.ggml_type, np.frombuffer(content, np.uint8), n_values)
        except PlanError as e:
            raise self.error(f"has {info.name}, which cannot be read as numbers: {e}") from e
        if not np.isfinite(values).all():
            raise self.error(f"holds values in {info.name} that are not finite: it is damaged, fetch it again")
        return values

    def error(self, what: str) -> ModelError:
        """What is the matter with the file."""
        return ModelError(f"{self.part} {what}")


def _find(file: ModelFile, name: str) -> _Tensor | None:
    """A tensor in the part of a model that has it."""
    return next((_Tensor(part, part.tensors[name]) for part in file.headers if name in part.tensors), None)
