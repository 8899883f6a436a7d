"""The header of a GGUF file: metadata, places of the tensors, and whether the file holds all that it announces.

gguf.GGUFReader builds an array object for every token of the vocabulary, which takes seconds; this reader steps
over the arrays in place. Layout and limits follow ggml/src/gguf.cpp, whose checks a file has to pass later anyway.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from ..native import type_block
from .gguf_cursor import Cursor, DamagedError
from .stamps import Stamp, stamp_of

Scalar = int | float | str | bool

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MAX_NAME_BYTES = 63
_MAX_KEY_BYTES = 65_535
_MAX_STRING_BYTES = 16 << 20
# Far above any real file, with its about 50 keys and 2,000 tensors.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17
_STRING, _ARRAY = 8, 9
_SCALAR_LAYOUTS = {
    0: ("u8", struct.Struct("<B")),
    1: ("i8", struct.Struct("<b")),
    2: ("u16", struct.Struct("<H")),
    3: ("i16", struct.Struct("<h")),
    4: ("u32", struct.Struct("<I")),
    5: ("i32", struct.Struct("<i")),
    6: ("f32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<?")),
    10: ("u64", struct.Struct("<Q")),
    11: ("i64", struct.Struct("<q")),
    12: ("f64", struct.Struct("<d")),
}


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
    """All of a GGUF header but the contents of its arrays; `data_offset` and `alignment` are in bytes."""

    path: Path
    stamp: Stamp
    """of the file that it was read from"""
    version: int
    n_tensors: int
    alignment: int
    data_offset: int
    scalars: dict[str, Scalar]
    arrays: dict[str, ArrayInfo]
    tensors: dict[str, TensorInfo]

    @property
    def size_bytes(self) -> int:
        """Of the whole file."""
        return self.stamp[1]

    @property
    def arch(self) -> str:
        """The architecture's name, such as `qwen3`, or an empty string."""
        return str(self.scalars.get("general.architecture", ""))

    @property
    def file_type(self) -> int | None:
        """The file's main quantisation as llama.cpp numbers it (`llama_ftype`), if it says so."""
        value = self.scalars.get("general.file_type")
        return value if type(value) is int else None

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
            _check_magic(path, buffer[:512])
            return _parse(path, stamp_of(path, os.fstat(file.fileno())), Cursor(buffer))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; {_other_place(path)}") from None
    except DamagedError as damage:
        raise ModelError(f"{path}: {damage}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte, or a file emptied meanwhile
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{path} cannot be read ({reason}): check the path and its permissions") from error


def all_tensors(headers: Iterable[GgufHeader]) -> dict[str, TensorInfo]:
    """The tensors of all parts of a model."""
    return {name: tensor for header in headers for name, tensor in header.tensors.items()}


def _other_place(path: Path) -> str:
    """Where a model may be that was looked for on this disk."""
    hub = "a repository of the Hugging Face hub is named, as USER/REPO, by `hf_repo`"
    if any(part in ("http:", "https:") for part in path.parts):
        return f"an address is no path; {hub}"
    if path.suffix.lower() == ".gguf":
        return "check the path"
    return f"a model of Ollama's store is named ollama:{path.name}" if ":" in path.name else f"check the path; {hub}"


def _check_magic(path: Path, head: bytes) -> None:
    if head[:4] == b"GGUF":
        return
    raise ModelError(f"{path} is not a GGUF file: it starts with {head[:8].hex(' ')}{_guess(head)}")


def _guess(head: bytes) -> str:
    """What a file that is no GGUF looks like, and what to do then."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return ", an HTML or XML page, so the download fetched a web page: use the address of the file itself"
    if head.startswith(b"version https://git-lfs"):
        return ", a git-lfs pointer that stands for the model: run `git lfs pull` in its folder"
    if head[:4] == b"PK\x03\x04":
        return ", a zip archive such as PyTorch writes: convert the model to GGUF, or choose a GGUF repository"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return ", a safetensors file: convert the model to GGUF, or choose a GGUF repository"
    if head[:4] in (b"tjgg", b"lmgg", b"algg"):
        return ", an old llama.cpp format from before GGUF: choose a newer file"
    if text.startswith(b"{"):
        return ", a JSON text, maybe a server's error message: open it, and download the model again"
    if not head.strip(b"\0"):
        return ", zeros only, so the download has left a hole: download it again"
    return ": choose a .gguf file"


def _parse(path: Path, stamp: Stamp, cursor: Cursor) -> GgufHeader:
    cursor.skip(4)
    version = cursor.u32()
    if version & 0xFFFF == 0:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        wrong = f"it is a GGUF file of version {swapped} in big-endian byte order"
        raise DamagedError(wrong, "choose a little-endian file")
    if version not in _VERSIONS:
        wrong = f"GGUF version {version} is not supported, only {' and '.join(map(str, _VERSIONS))} are"
        raise DamagedError(wrong, "choose a file of such a version")
    n_tensors, n_keys = cursor.u64(), cursor.u64()
    if n_tensors > _MAX_TENSORS or n_keys > _MAX_KEYS:
        raise DamagedError(
            f"it announces {n_tensors:,} tensors and {n_keys:,} metadata keys, "
            f"the limits are {_MAX_TENSORS:,} and {_MAX_KEYS:,}"
        )
    scalars, arrays = _metadata(cursor, n_keys)
    alignment = scalars.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise DamagedError(f"general.alignment is {alignment!r}, not a power of two")
    tensors, data_offset = _tensors(cursor, n_tensors, alignment)
    return GgufHeader(
        path=path,
        stamp=stamp,
        version=version,
        n_tensors=n_tensors,
        alignment=alignment,
        data_offset=data_offset,
        scalars=scalars,
        arrays=arrays,
        tensors=tensors,
    )


def _metadata(cursor: Cursor, n_keys: int) -> tuple[dict[str, Scalar], dict[str, ArrayInfo]]:
    scalars: dict[str, Scalar] = {}
    arrays: dict[str, ArrayInfo] = {}
    for index in range(n_keys):
        cursor.reading = f"metadata key {index + 1} of {n_keys}"
        key = cursor.string(_MAX_KEY_BYTES)
        if not key or key in scalars or key in arrays:
            raise DamagedError(f"{cursor.reading} is {'a second ' + repr(key) if key else 'empty'}")
        cursor.reading = f"the metadata value of {key!r}"
        kind = cursor.u32()
        if kind == _ARRAY:
            arrays[key] = _array(cursor)
        elif kind == _STRING:
            scalars[key] = cursor.string(_MAX_STRING_BYTES, errors="replace")
        elif kind in _SCALAR_LAYOUTS:
            scalars[key] = cursor.scalar(_SCALAR_LAYOUTS[kind][1])
        else:
            raise DamagedError(f"{cursor.reading} has the unknown type {kind}")
    return scalars, arrays


def _array(cursor: Cursor) -> ArrayInfo:
    kind, length = cursor.u32(), cursor.u64()
    if kind == _STRING:
        cursor.skip_strings(length)
        return ArrayInfo(element_type="str", length=length)
    if kind not in _SCALAR_LAYOUTS:
        raise DamagedError(f"{cursor.reading} is an array of the unknown type {kind}")
    name, layout = _SCALAR_LAYOUTS[kind]
    cursor.skip(length * layout.size)
    return ArrayInfo(element_type=name, length=length)


def _tensors(cursor: Cursor, n_tensors: int, alignment: int) -> tuple[dict[str, TensorInfo], int]:
    places: dict[str, tuple[tuple[int, ...], int, int, int]] = {}
    end = 0  # of the tensors so far, counted from the start of the tensor data
    for index in range(n_tensors):
        cursor.reading = f"tensor {index + 1} of {n_tensors}"
        name = cursor.string(_MAX_NAME_BYTES)
        if name in places:
            raise DamagedError(f"{cursor.reading} is a second {name!r}")
        cursor.reading = f"the description of tensor {name!r}"
        n_dims = cursor.u32()
        if n_dims > _MAX_DIMS:
            raise DamagedError(f"tensor {name!r} has {n_dims:,} dimensions, the limit is {_MAX_DIMS}")
        shape = tuple(cursor.u64() for _ in range(n_dims))
        ggml_type, offset = cursor.u32(), cursor.u64()
        sizes = type_block(ggml_type)
        if sizes is None:
            wrong = f"tensor {name!r} has the unknown type {ggml_type}"
            raise DamagedError(wrong, "download the file again, or choose another quantisation")
        block, block_bytes = sizes
        row = shape[0] if shape else 1
        if row % block:
            raise DamagedError(f"tensor {name!r} has rows of {row:,} values, not whole blocks of {block}")
        n_bytes = math.prod(shape) // block * block_bytes
        start = _padded(end, alignment)
        if offset != start:
            raise DamagedError(f"tensor {name!r} is said to be at {offset:,} of the tensor data, expected at {start:,}")
        places[name] = (shape, ggml_type, offset, n_bytes)
        end = start + n_bytes
    data_offset = _padded(cursor.pos, alignment) if n_tensors else cursor.pos
    if data_offset + end > len(cursor.buffer):
        raise DamagedError(f"it has {len(cursor.buffer):,} bytes, its tensors end at {data_offset + end:,}")
    tensors = {
        name: TensorInfo(name=name, shape=shape, ggml_type=kind, offset=data_offset + offset, n_bytes=n_bytes)
        for name, (shape, kind, offset, n_bytes) in places.items()
    }
    return tensors, data_offset


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment
