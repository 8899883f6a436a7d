"""GGUF files taken apart into keys and tensors, and put together again with offsets that fit."""

import math
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFWriter, ReaderField
from gguf.constants import GGML_QUANT_SIZES

from qcls_gguf.native import NativeModel

BOOL, STRING, ARRAY = 7, 8, 9
SIZES = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
"""(values, bytes) of a block of each type"""
_LAYOUTS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
NUMBER_TYPES = tuple(_LAYOUTS)
FLOAT_TYPES = (6, 12)
_ALIGNMENT = 32


@dataclass(slots=True, kw_only=True)
class Tensor:
    """A tensor, and its bytes, which need not be as many as its shape and type ask for."""

    name: bytes
    shape: list[int]
    kind: int
    data: bytes


@dataclass(slots=True, kw_only=True)
class File:
    """A GGUF file taken apart: keys as (name, type, value), an array's value as (type of the elements, elements)."""

    keys: list[tuple[bytes, int, Any]]
    tensors: list[Tensor]

    def key(self, name: str) -> int | None:
        """The index of a key."""
        return next((i for i, (found, _, _) in enumerate(self.keys) if found == name.encode()), None)

    @property
    def arch(self) -> str:
        """The architecture's name, or an empty text."""
        index = self.key("general.architecture")
        value = b"" if index is None else self.keys[index][2]
        return value.decode(errors="replace") if isinstance(value, bytes) else ""


def finish(writer: GGUFWriter) -> None:
    """Write all that was added, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def filled(path: Path, copy: Path, name: str, value: float, row: int | None = None) -> Path:
    """A copy of a file with one value all over a tensor, or a row of it; of quantised ones it is that of each byte."""
    shutil.copy(path, copy)
    (tensor,) = (each for each in GGUFReader(copy, "r+").tensors if each.name == name)
    tensor.data[slice(None) if row is None else row] = value
    return copy


def take_apart(path: Path) -> File:
    """The parts of a whole file."""
    reader = GGUFReader(path)
    keys = [
        (field.name.encode(), int(field.types[0]), _value(field))
        for field in reader.fields.values()
        if not field.name.startswith("GGUF.")  # the reader's own names of the file's first numbers
    ]
    tensors = [
        Tensor(name=t.name.encode(), shape=t.shape.tolist(), kind=int(t.tensor_type), data=t.data.tobytes())
        for t in reader.tensors
    ]
    return File(keys=keys, tensors=tensors)


def _value(field: ReaderField) -> Any:
    """As `File` has it."""
    if field.types[0] == ARRAY:
        parts = [field.parts[index] for index in field.data]
        inner = int(field.types[1])
        return inner, [part.tobytes() if inner == STRING else part[0].item() for part in parts]
    value = field.contents()
    return value.encode() if isinstance(value, str) else value


def put_together(file: File) -> bytes:
    """The bytes of a file with these parts."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(file.tensors), len(file.keys)))

    def add(kind: int, value: Any) -> None:
        if kind == STRING:
            out.extend(struct.pack("<Q", len(value)) + value)
        elif kind == ARRAY:
            inner, values = value
            out.extend(struct.pack("<IQ", inner, len(values)))
            for each in values:
                add(inner, each)
        else:
            out.extend(_packed(kind, value))

    for name, kind, value in file.keys:
        add(STRING, name)
        out.extend(struct.pack("<I", kind))
        add(kind, value)
    at = 0
    for tensor in file.tensors:
        add(STRING, tensor.name)
        out.extend(struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape))
        out.extend(struct.pack("<IQ", tensor.kind, at))
        at += -(-len(tensor.data) // _ALIGNMENT) * _ALIGNMENT
    out.extend(bytes(-len(out) % _ALIGNMENT))
    for tensor in file.tensors:
        out.extend(tensor.data + bytes(-len(tensor.data) % _ALIGNMENT))
    return bytes(out)


def _packed(kind: int, value: Any) -> bytes:
    """A number as its type holds it, cut where it does not fit."""
    if kind in FLOAT_TYPES:
        return struct.pack(_LAYOUTS[kind], value)
    size = struct.calcsize(_LAYOUTS[kind])
    n_bits = 1 if kind == BOOL else 8 * size
    return (int(value) & ((1 << n_bits) - 1)).to_bytes(size, "little")


def with_nan_embedding(source: Path, text: str, target: Path) -> Path:
    """A copy of a model of F32 weights, in which the embedding of the text's only token is not a number."""
    with NativeModel(source) as model:
        (token,) = model.tokenize(text, parse_special=False)
    return filled(source, target, "token_embd.weight", math.nan, int(token))
