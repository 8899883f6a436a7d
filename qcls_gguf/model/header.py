"""The header of a GGUF file: metadata, places of the tensors, and whether the file holds all that it announces.

The file is not trusted: no read goes past its end, and no count in it leads to unbounded work. gguf.GGUFReader checks
neither, and builds an array object for every token of the vocabulary, which takes seconds; this reader steps over the
arrays in place. Layout and limits follow ggml/src/gguf.cpp, whose checks a file has to pass later anyway.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from ..native import type_block
from .identity import Stamp, stamp_of

Scalar = int | float | str | bool

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MAX_NAME_BYTES = 63
_MAX_KEY_BYTES = 65_535
_MAX_STRING_BYTES = 16 << 20
# Far above any real file, with its about 50 keys, 2,000 tensors and vocabulary of below 600,000 strings.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_STRINGS = 4 << 20
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_LAYOUTS = {
    kind: (name, struct.Struct(f"<{letter}"))
    for kind, name, letter in zip(
        (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12),
        ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "u64", "i64", "f64"),
        "BbHhIif?Qqd",
        strict=True,
    )
}
_FILE_TYPES = dict(enumerate((
    *("F32", "F16", "Q4_0", "Q4_1", "", "", "", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L"),
    *("Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S"),
    *("IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0"),
    *("MXFP4_MOE", "NVFP4", "Q1_0", "Q2_0"),
))) | {1024: "GUESSED"}  # fmt: skip
"""By the number that `general.file_type` has: the package gguf knows them, too, and takes 60 ms to import."""
_OTHER_KINDS: tuple[tuple[tuple[bytes, ...], str], ...] = (
    ((b"version https://git-lfs",), "a git-lfs pointer that stands for the model: run `git lfs pull` in its folder"),
    ((b"PK\x03\x04",), "a zip archive such as PyTorch writes: convert the model to GGUF, or choose a GGUF repository"),
    ((b"tjgg", b"lmgg", b"algg"), "an old llama.cpp format from before GGUF: choose a newer file"),
)
_OTHER_TEXTS: tuple[tuple[tuple[bytes, ...], str], ...] = (
    (
        (b"<!doctype", b"<html", b"<?xml", b"<head"),
        "an HTML or XML page, so the download fetched a web page: use the address of the file itself",
    ),
    ((b"{",), "a JSON text, maybe a server's error message: open it, and download the model again"),
)
"""What files that are no GGUF begin with, the texts after white space and in any case, and what to do then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayInfo:
    """An array in the metadata, of which only the kind and the length are kept."""

    element_type: str
    length: int


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
    arrays: dict[str, ArrayInfo]
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
    def may_have_states(self) -> bool:
        """Whether it has sizes of recurrent layers, which keep a state of each sequence."""
        kinds = tuple(f"{self.arch}.{kind}." for kind in ("ssm", "shortconv", "kda"))
        return any(key.startswith(kinds) for key in self.scalars)

    @property
    def n_layer(self) -> int:
        """The number of layers; 1 where the file does not say."""
        return int(self.scalars.get(f"{self.arch}.block_count", 0)) or 1


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file and check that every tensor lies inside the file.

    One file only: the tensors of a split model are spread over the headers of its parts.
    Raises ModelError for anything that is not a complete GGUF file of a supported version and byte order.
    """
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise ModelError(f"{path} is a directory: give the path of a .gguf file in it")
        if not stat.S_ISREG(found.st_mode):
            raise ModelError(f"{path} is not a regular file: give the path of a .gguf file")
        if found.st_size == 0:
            raise ModelError(f"{path} is empty: download or copy it again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            head = buffer[:512]
            if head[:4] != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file: it starts with {head[:8].hex(' ')}{_other_kind(head)}")
            scalars, arrays, tensors = _parse(_Cursor(buffer))
            stamp = stamp_of(path, os.fstat(file.fileno()))
            return GgufHeader(path=path, stamp=stamp, scalars=scalars, arrays=arrays, tensors=tensors)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; {_other_place(path)}") from None
    except _DamagedError as damage:
        raise ModelError(f"{path}: {damage}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte, or a file emptied meanwhile
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path} cannot be read ({reason}): check the path and its permissions") from error


def _other_place(path: Path) -> str:
    """Where a model may be that was looked for on this disk."""
    hub = "a repository of the Hugging Face hub is named, as USER/REPO, by `hf_repo`"
    if any(part in ("http:", "https:") for part in path.parts):
        return f"an address is no path; {hub}"
    if path.suffix.lower() == ".gguf":
        return "check the path"
    return f"a model of Ollama's store is named ollama:{path.name}" if ":" in path.name else f"check the path; {hub}"


def _other_kind(head: bytes) -> str:
    """What a file that is no GGUF looks like, and what to do then."""
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return ", a safetensors file: convert the model to GGUF, or choose a GGUF repository"
    if not head.strip(b"\0"):
        return ", zeros only, so the download has left a hole: download it again"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    kinds = [*((head, *each) for each in _OTHER_KINDS), *((text, *each) for each in _OTHER_TEXTS)]
    return next((f", {what}" for found, begin, what in kinds if found.startswith(begin)), ": choose a .gguf file")


class _DamagedError(Exception):
    """What is wrong with the bytes, and the remedy; `read_header` turns it into a ModelError with the path."""

    def __init__(self, wrong: str, remedy: str = "download or copy the file again") -> None:
        super().__init__(f"{wrong}; {remedy}")


class _Cursor:
    """A position in the mapped file; `reading` names what is read there, for the message if the file ends early."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.pos = 4  # after the magic number
        self.reading = "the counts"

    def scalar(self, layout: struct.Struct) -> int | float | bool:
        """Read one number."""
        start = self.pos
        self.skip(layout.size)
        number: int | float | bool = layout.unpack_from(self.buffer, start)[0]
        return number

    def u32(self) -> int:
        """Read an unsigned 32-bit integer."""
        return int(self.scalar(_U32))

    def u64(self) -> int:
        """Read an unsigned 64-bit integer."""
        return int(self.scalar(_U64))

    def string(self, max_bytes: int, *, errors: str = "strict") -> str:
        """Read a string of at most `max_bytes` bytes."""
        length = self.u64()
        if length > max_bytes:
            raise _DamagedError(f"{self.reading} has a string of {length:,} bytes, the limit is {max_bytes:,}")
        start = self.pos
        self.skip(length)
        try:
            return self.buffer[start : self.pos].decode("utf-8", errors)
        except UnicodeDecodeError:
            raise _DamagedError(f"{self.reading} is not valid UTF-8") from None

    def skip(self, n_bytes: int) -> None:
        """Step over `n_bytes` bytes."""
        if n_bytes > len(self.buffer) - self.pos:
            raise self._ended()
        self.pos += n_bytes

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings; a vocabulary has hundreds of thousands, so the loop does nothing else."""
        if count > _MAX_STRINGS:
            raise _DamagedError(f"{self.reading} announces {count:,} strings, the limit is {_MAX_STRINGS:,}")
        read_length, buffer, pos = _U64.unpack_from, self.buffer, self.pos
        try:
            for _ in range(count):
                pos += 8 + read_length(buffer, pos)[0]
        except (struct.error, OverflowError):
            raise self._ended() from None
        self.skip(pos - self.pos)

    def _ended(self) -> _DamagedError:
        n_bytes = f"{len(self.buffer):,} bytes in all"
        return _DamagedError(f"the file ends inside its header, at {self.reading} ({n_bytes})")


def _parse(cursor: _Cursor) -> tuple[dict[str, Scalar], dict[str, ArrayInfo], dict[str, TensorInfo]]:
    version = cursor.u32()
    if version & 0xFFFF == 0:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        wrong = f"it is a GGUF file of version {swapped} in big-endian byte order"
        raise _DamagedError(wrong, "choose a little-endian file")
    if version not in _VERSIONS:
        wrong = f"GGUF version {version} is not supported, only {' and '.join(map(str, _VERSIONS))} are"
        raise _DamagedError(wrong, "choose a file of such a version")
    n_tensors, n_keys = cursor.u64(), cursor.u64()
    if n_tensors > _MAX_TENSORS or n_keys > _MAX_KEYS:
        raise _DamagedError(
            f"it announces {n_tensors:,} tensors and {n_keys:,} metadata keys, "
            f"the limits are {_MAX_TENSORS:,} and {_MAX_KEYS:,}"
        )
    scalars: dict[str, Scalar] = {}
    arrays: dict[str, ArrayInfo] = {}
    for index in range(n_keys):
        cursor.reading = f"metadata key {index + 1} of {n_keys}"
        key = cursor.string(_MAX_KEY_BYTES)
        if not key or key in scalars or key in arrays:
            raise _DamagedError(f"{cursor.reading} is {'a second ' + repr(key) if key else 'empty'}")
        cursor.reading = f"the metadata value of {key!r}"
        kind = cursor.u32()
        if kind == _ARRAY:
            arrays[key] = _array(cursor)
        elif kind == _STRING:
            scalars[key] = cursor.string(_MAX_STRING_BYTES, errors="replace")
        elif kind in _LAYOUTS:
            scalars[key] = cursor.scalar(_LAYOUTS[kind][1])
        else:
            raise _DamagedError(f"{cursor.reading} has the unknown type {kind}")
    alignment = scalars.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise _DamagedError(f"general.alignment is {alignment!r}, not a power of two")
    return scalars, arrays, _tensors(cursor, n_tensors, alignment)


def _array(cursor: _Cursor) -> ArrayInfo:
    kind, length = cursor.u32(), cursor.u64()
    if kind == _STRING:
        cursor.skip_strings(length)
        return ArrayInfo(element_type="str", length=length)
    if kind not in _LAYOUTS:
        raise _DamagedError(f"{cursor.reading} is an array of the unknown type {kind}")
    name, layout = _LAYOUTS[kind]
    cursor.skip(length * layout.size)
    return ArrayInfo(element_type=name, length=length)


def _tensors(cursor: _Cursor, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    places: dict[str, tuple[tuple[int, ...], int, int, int]] = {}
    end = 0  # of the tensors so far, counted from the start of the tensor data
    for index in range(n_tensors):
        cursor.reading = f"tensor {index + 1} of {n_tensors}"
        name = cursor.string(_MAX_NAME_BYTES)
        if name in places:
            raise _DamagedError(f"{cursor.reading} is a second {name!r}")
        cursor.reading = f"the description of tensor {name!r}"
        n_dims = cursor.u32()
        if n_dims > _MAX_DIMS:
            raise _DamagedError(f"tensor {name!r} has {n_dims:,} dimensions, the limit is {_MAX_DIMS}")
        shape = tuple(cursor.u64() for _ in range(n_dims))
        ggml_type, offset = cursor.u32(), cursor.u64()
        sizes = type_block(ggml_type)
        if sizes is None:
            wrong = f"tensor {name!r} has the unknown type {ggml_type}"
            raise _DamagedError(wrong, "download the file again, or choose another quantisation")
        block, block_bytes = sizes
        row = shape[0] if shape else 1
        if row % block:
            raise _DamagedError(f"tensor {name!r} has rows of {row:,} values, not whole blocks of {block}")
        start = _padded(end, alignment)
        if offset != start:
            raise _DamagedError(
                f"tensor {name!r} is said to be at {offset:,} of the tensor data, expected at {start:,}"
            )
        n_bytes = math.prod(shape) // block * block_bytes
        places[name] = (shape, ggml_type, offset, n_bytes)
        end = start + n_bytes
    data = _padded(cursor.pos, alignment) if n_tensors else cursor.pos
    if data + end > len(cursor.buffer):
        raise _DamagedError(f"it has {len(cursor.buffer):,} bytes, its tensors end at {data + end:,}")
    return {
        name: TensorInfo(name=name, shape=shape, ggml_type=kind, offset=data + offset, n_bytes=n_bytes)
        for name, (shape, kind, offset, n_bytes) in places.items()
    }


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment
