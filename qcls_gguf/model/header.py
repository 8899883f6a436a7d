"""The header of a GGUF file: metadata, places of the tensors, and whether the file holds all that it announces.

The file is not trusted: no read goes past its end, and no count in it leads to unbounded work. gguf.GGUFReader checks
neither, and builds an array object for every token of the vocabulary, which takes seconds; this reader steps over the
arrays in place. Only what it needs to find its way is checked here: all else that can be wrong with a header, llama.cpp
finds when the file is tried in a process of its own (trial.py).
"""

import math
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from ..config.words import shown
from ..errors import ModelError
from ..native.arithmetic import type_block

Scalar = int | float | str | bool
Stamp = tuple[str, int, int, int]
"""Resolved path, size in bytes, times in ns of the last change of the content and of the file. Programs can set the
first of these times: copies and images often keep it, or give all files the same."""

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS in src/llama-hparams.h
# Far above any real file, with its about 50 keys, 2,000 tensors and vocabulary of below 600,000 strings.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_STRINGS = 4 << 20
_MAX_NAME_BYTES = 1 << 16
_MAX_TEXT_BYTES = 16 << 20
_STRING, _ARRAY = 8, 9
_LAYOUTS = {
    kind: struct.Struct(f"<{letter}")
    for kind, letter in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_U32, _U64 = _LAYOUTS[4], _LAYOUTS[10]
_FILE_TYPES = dict(enumerate((
    *("F32", "F16", "Q4_0", "Q4_1", "", "", "", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L"),
    *("Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S"),
    *("IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0"),
    *("MXFP4_MOE", "NVFP4", "Q1_0", "Q2_0"),
))) | {1024: "GUESSED"}  # fmt: skip
"""By the number that `general.file_type` has: the package gguf knows them, too, and takes 60 ms to import."""
DECISION_KINDS = ("openjev", "lev", "nimble", "pplx-decider", "lfm2-d1", "kev")
"""the supported kinds of models that were trained to decide; all but the last answer with a code"""
_N_SHOWN = 40
"""bytes of a file that is no GGUF: they tell a web page, a pointer of Git LFS or an archive"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where a tensor lies: `shape` in ggml's order (row length first), `offset` in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What the header of a GGUF file says, all but the contents of its arrays."""

    path: Path
    stamp: Stamp
    """of the file that it was read from"""
    scalars: dict[str, Scalar]
    tensors: dict[str, TensorInfo]

    @property
    def size_bytes(self) -> int:
        """The size of the whole file."""
        return self.stamp[1]

    @property
    def arch(self) -> str:
        """The architecture's name, such as `qwen3`, or an empty string."""
        return str(self.scalars.get("general.architecture", ""))

    @property
    def quantization(self) -> str:
        """llama.cpp's name for the file's main quantisation, such as Q4_K_M; `unknown` where the file says none."""
        value = self.scalars.get("general.file_type")
        return (_FILE_TYPES.get(value) if type(value) is int else None) or "unknown"

    @property
    def chat_template(self) -> str | None:
        """The Jinja2 text by which the file turns messages into a prompt, None where it has none."""
        text = self.scalars.get("tokenizer.chat_template")
        return text if isinstance(text, str) and text.strip() else None

    @property
    def decision_kind(self) -> str | None:
        """The kind of a model that was trained to decide, such as `lev`; None for other models."""
        kind = self.scalars.get(f"{self.arch}.decision.type")
        return None if kind is None else str(kind)

    @property
    def n_layer(self) -> int:
        """The number of layers; 1 where the file does not say, or says what no model has."""
        value = self.scalars.get(f"{self.arch}.block_count")
        return value if type(value) is int and 0 < value <= _MAX_LAYERS else 1


def stamp_of(path: Path, status: os.stat_result) -> Stamp:
    """The stamp of a file; status: what the system says of it."""
    return str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file and check that every tensor lies inside the file.

    One file only: the tensors of a split model are spread over the headers of its parts.
    Raises ModelError for anything that is not a complete GGUF file of a supported version.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise ModelError(f"{path} is {what}: give the path of a .gguf file")
        if status.st_size == 0:
            raise ModelError(f"{path} is empty: download or copy it again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            if buffer[:4] != b"GGUF":
                what = f"{path} is no GGUF file: it begins with {shown(buffer[:_N_SHOWN].decode('latin-1'))}"
                raise ModelError(f"{what}: choose a .gguf file, or fetch it again, from Git LFS by `git lfs pull`")
            scalars, tensors = _parse(_Cursor(path, buffer))
            stamp = stamp_of(path, os.fstat(file.fileno()))
            return GgufHeader(path=path, stamp=stamp, scalars=scalars, tensors=tensors)
    except FileNotFoundError:
        others = "A repository of the Hugging Face hub is named by `hf_repo`, a model of Ollama's by ollama:NAME"
        raise ModelError(f"{path}: no such file; check the path. {others}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte, or a file emptied meanwhile
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path} cannot be read ({reason}): check the path and its permissions") from error


class _Cursor:
    """A position in the mapped file; `reading` names what is read there, for messages."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path, self.buffer = path, buffer
        self.pos = 4  # after the magic number
        self.reading = "the counts"

    def damaged(self, wrong: str) -> ModelError:
        """The error of a file with something wrong at this position."""
        return ModelError(f"{self.path}: {self.reading} {wrong}: fetch the file again, or choose another")

    def take(self, n_bytes: int) -> int:
        """The start of the next bytes, which are stepped over."""
        start = self.pos
        if n_bytes > len(self.buffer) - start:
            raise self.damaged(f"lies beyond the file's end ({len(self.buffer):,} bytes in all)")
        self.pos += n_bytes
        return start

    def number(self, layout: struct.Struct) -> int | float | bool:
        """Read one number."""
        number: int | float | bool = layout.unpack_from(self.buffer, self.take(layout.size))[0]
        return number

    def count(self, layout: struct.Struct, most: int | None = None) -> int:
        """Read a whole number, and refuse one that is too large."""
        n = int(self.number(layout))
        if most is not None and n > most:
            raise self.damaged(f"announces {n:,}, and the limit is {most:,}")
        return n

    def text(self, most: int = _MAX_NAME_BYTES) -> str:
        """Read a text of so many bytes at most."""
        start = self.take(self.count(_U64, most))
        return self.buffer[start : self.pos].decode(errors="replace")

    def skip_array(self) -> None:
        """Step over an array; a vocabulary has hundreds of thousands of texts, so their loop does nothing else."""
        kind = self.count(_U32)
        if kind in _LAYOUTS:
            self.take(self.count(_U64) * _LAYOUTS[kind].size)
            return
        if kind != _STRING:
            raise self.damaged(f"is an array of the unknown type {kind}")
        n_texts = self.count(_U64, _MAX_STRINGS)
        read_length, buffer, pos = _U64.unpack_from, self.buffer, self.pos
        try:
            for _ in range(n_texts):
                pos += 8 + read_length(buffer, pos)[0]
        except (struct.error, OverflowError):
            pos = len(buffer) + 1
        self.take(pos - self.pos)


def _parse(cursor: _Cursor) -> tuple[dict[str, Scalar], dict[str, TensorInfo]]:
    if (version := cursor.count(_U32)) not in _VERSIONS:
        raise cursor.damaged(f"are of GGUF version {version}, not {' or '.join(map(str, _VERSIONS))}")
    n_tensors, n_keys = cursor.count(_U64, _MAX_TENSORS), cursor.count(_U64, _MAX_KEYS)
    scalars: dict[str, Scalar] = {}
    for index in range(n_keys):
        cursor.reading = f"metadata key {index + 1} of {n_keys}"
        key = cursor.text()
        cursor.reading = f"the metadata value of {key!r}"
        kind = cursor.count(_U32)
        if kind == _ARRAY:
            cursor.skip_array()
        elif kind == _STRING:
            scalars[key] = cursor.text(_MAX_TEXT_BYTES)
        elif kind in _LAYOUTS:
            scalars[key] = cursor.number(_LAYOUTS[kind])
        else:
            raise cursor.damaged(f"has the unknown type {kind}")
    alignment = scalars.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0:
        raise cursor.damaged(f"has general.alignment {alignment!r}, not a power of two")
    return scalars, _tensors(cursor, n_tensors, alignment)


def _tensors(cursor: _Cursor, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    entries: list[tuple[str, tuple[int, ...], int, int]] = []
    for index in range(n_tensors):
        cursor.reading = f"tensor {index + 1} of {n_tensors}"
        name = cursor.text()
        cursor.reading = f"tensor {name!r}"
        shape = tuple([cursor.count(_U64) for _ in range(cursor.count(_U32, _MAX_DIMS))])
        entries.append((name, shape, cursor.count(_U32), cursor.count(_U64)))
    data = -(-cursor.pos // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in entries:
        cursor.reading = f"tensor {name!r}"
        if (sizes := type_block(kind)) is None:
            raise cursor.damaged(f"has the unknown type {kind}, perhaps of a fork of llama.cpp")
        block, block_bytes = sizes
        n_bytes = math.prod(shape) // block * block_bytes
        if data + offset + n_bytes > len(cursor.buffer):
            raise cursor.damaged(f"ends at {data + offset + n_bytes:,}, the file at {len(cursor.buffer):,}")
        tensors[name] = TensorInfo(name=name, shape=shape, ggml_type=kind, offset=data + offset, n_bytes=n_bytes)
    return tensors
