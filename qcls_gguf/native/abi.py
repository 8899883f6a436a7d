"""The C ABI of libqcls in ctypes, read from src/qcls.h, which says what it means; and what is checked of numbers and
arrays on their way to C.
"""

import ctypes
import re
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import fields
from enum import IntEnum
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from ..config.words import printable_lines
from ..errors import DecodeError, ModelError, PlanError, QclsError

LOG_FUNCTION = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
PROGRESS_FUNCTION = ctypes.CFUNCTYPE(c_int32, c_float, c_void_p)


Status = IntEnum("Status", "OK BAD_ARGUMENT LOAD_FAILED UNSUPPORTED DECODE_FAILED TOO_SMALL", start=0)
"""What a function of the library returns."""
Parse = IntEnum("Parse", "NOTHING SPECIAL USER_DEFINED", start=0)
"""How text that spells a special token is tokenised: as text, as the token, or as the token if user-defined."""
TokenKind = IntEnum("TokenKind", "TEXT CONTROL USER_DEFINED", start=0)
"""What a token is for."""
_ERRORS: dict[int, type[QclsError]] = {
    Status.BAD_ARGUMENT: PlanError,
    Status.LOAD_FAILED: ModelError,
    Status.UNSUPPORTED: ModelError,
    Status.DECODE_FAILED: DecodeError,
}

_OK = int(Status.OK)  # an enum's member is compared in Python code, an int is not


# Comparing an array's dtype with these takes half as long as with a type such as np.int32.
INT32 = np.dtype(np.int32)
FLOAT32 = np.dtype(np.float32)
BOOL = np.dtype(np.bool_)


def address(array: npt.NDArray[Any], dtype: np.dtype[Any], ndim: int, size: int) -> int:
    """The address of an array that C may read `size` elements of; the caller keeps the array alive.

    Raises PlanError for another dtype or number of dimensions, gaps between the elements, or fewer of them.
    """
    flags, n = array.flags, array.size
    if array.dtype != dtype or array.ndim != ndim or not flags.c_contiguous or n < size:
        wanted = f"a contiguous {dtype.name} array of {ndim} dimensions and at least {size} elements"
        raise PlanError(f"expected {wanted}, got {array.dtype.name} {array.shape}")
    if n and flags.writeable:  # five times as fast as array.ctypes.data
        return ctypes.addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
    return array.ctypes.data


def int32(value: int, name: str = "") -> int:
    """The value, if it fits into 32 bits; ctypes would silently truncate it. Raises PlanError if it does not fit."""
    if not -(1 << 31) <= value < 1 << 31:
        raise PlanError(f"{name}{': ' if name else ''}{value} does not fit 32 bits")
    return value


Facts = TypeVar("Facts")


class Struct(ctypes.Structure):
    """A struct of the ABI: the members given as keywords are set, the others are zero, their default."""

    def __init__(self, **members: Any) -> None:
        """Raises PlanError for an integer that its member cannot hold; ctypes would silently truncate it."""
        super().__init__(**members)
        for name, value in members.items():
            if isinstance(value, SupportsIndex) and (getattr(self, name) or 0) != value:
                raise PlanError(f"{name} is {value}: it does not fit {type(self).__name__}.{name}")

    def to(self, kind: type[Facts], /, **others: Any) -> Facts:
        """A dataclass of the members of the same names, texts decoded, and of others."""
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names if name not in others}
        texts = {name: text.decode(errors="replace") for name, text in values.items() if isinstance(text, bytes)}
        return kind(**values | texts | others)


HEADER = Path(__file__).parent / "src" / "qcls.h"
_TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
_NUMBERS = {name: int(value) for name, value in re.findall(r"#define (\w+) (\d+)", _TEXT)}
ABI = _NUMBERS["QCLS_ABI"]
_TYPES: dict[str, Any] = {
    **{"int32_t": c_int32, "int64_t": c_int64, "uint64_t": c_uint64, "float": c_float, "char": c_char},
    **{"char *": c_char_p, "qcls_log_fn": LOG_FUNCTION, "qcls_progress_fn": PROGRESS_FUNCTION},
}
"""by C's name; other pointers are addresses"""


def _declared(text: str) -> tuple[str, Any]:
    """The name and the type of a member or an argument."""
    found = re.fullmatch(r"(?:const )?(\w+(?: \*+)?) (\w+)(?:\[(\w+)\])?", text.strip())
    assert found, text
    kind, name, size = found.groups()
    of_one = _TYPES[kind] if kind in _TYPES or "*" not in kind else c_void_p
    return name, of_one if size is None else of_one * (_NUMBERS.get(size) or int(size))


for _name, _members in re.findall(r"typedef struct (\w+) \{(.*?)\}", _TEXT, re.DOTALL):
    _fields = [_declared(member) for member in _members.split(";") if member.strip()]
    _made = type("".join(map(str.capitalize, _name.split("_")[1:])), (Struct,), {"_fields_": _fields})
    _TYPES[f"{_name} *"] = POINTER(_made)
Error, Library, Device, ModelParams, ModelFacts, ContextParams, ContextFacts, Plan, Trie = Struct.__subclasses__()
SIGNATURES: dict[str, list[Any]] = {
    name: [_declared(argument)[1] for argument in arguments.split(",")]
    for name, arguments in re.findall(r"QCLS_API int32_t (\w+)\((.*?)\);", _TEXT, re.DOTALL)
    if name != "qcls_abi"
}
"""the arguments of every other function, which returns a status"""


def bind(path: Path) -> Any:
    """The library at this path, every function with its signature.

    Raises ModelError if it has another ABI than this package, or cannot be loaded.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as e:
        remedy = "build it on a system like this one" if "GLIBC" in str(e) else "install the package again"
        raise ModelError(f"{path} cannot be loaded: {e}: {remedy}") from None
    abi = library.qcls_abi()  # before anything else is looked up: an older library lacks some of it
    if abi != ABI:
        raise ModelError(f"{path} has ABI {abi}, this package {ABI}: build and install them together")
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int32, arguments
    return library


def check(status: int, error: Struct, path: Path | None = None) -> None:
    """Raise the error of a status other than OK, with the library's message, and the file if one is given."""
    if status != _OK:
        # the message may quote bytes of a model file
        message = with_remedy(printable_lines(error.message.decode(errors="backslashreplace")))
        raise _ERRORS.get(status, QclsError)(f"{path}: {message}" if path else message)


def with_remedy(message: str) -> str:
    """What llama.cpp said of a model file, in this package's words where they are known; else without what only its
    developers understand."""
    for pattern, words in zip(_KNOWN[::2], _KNOWN[1::2], strict=True):
        if known := re.search(pattern, message):
            return words.strip().format(*known.groups())
    for pattern, words in _INNER:
        message = re.sub(pattern, words, message)
    message = message.strip("; \n")
    is_file = "could not load the model: " in message or "could not make a context: a check of its own" in message
    return f"{message}: fetch or convert the file again, or choose another" if is_file else message


_KNOWN = Path(__file__).with_name("messages.txt").read_text(encoding="utf-8").splitlines()[1:]
"""Patterns of llama.cpp's messages, and after each what the user reads instead."""
_INNER = (
    (r"(?:\S*/)?[\w.-]+\.(?:cpp|c|cu|cuh|h):\d+: GGML_ASSERT\((.*?)\) failed", r"a check of its own fails (\1)"),
    (r"(?:\S*/)?[\w.-]+\.(?:cpp|c|cu|cuh|h):\d+: ", ""),
    (r"\b(?:llama|ggml|gguf|check|load|init)_\w+: ", ""),
    (r"(?:\\x0a)+(?=;|\n|$)", ""),
    (r"\berror loading model: ", ""),
    (r"(?:; |\n)?failed to load model(?: from file)?(?=;|\n|$)", ""),
    ("failed to initialize the context: ", ""),
    (r"\b(.{9,}); \1$", r"\1"),
)
"""What is left out of the others."""
