"""The C ABI of libqcls in ctypes, in one file: structs, signatures, statuses, and what is checked of numbers and arrays
on their way to C. src/qcls.h says what they mean.

`tests/abi/test_structs.py` compares all of it with the header.
"""

import ctypes
import re
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import fields
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from ..config.words import printable_lines
from ..errors import DecodeError, ModelError, PlanError, QclsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ABI = 12

LOG_FUNCTION = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
PROGRESS_FUNCTION = ctypes.CFUNCTYPE(c_int32, c_float, c_void_p)


class Status(IntEnum):
    """What a function of the library returns."""

    OK = 0
    BAD_ARGUMENT = 1
    LOAD_FAILED = 2
    UNSUPPORTED = 3
    DECODE_FAILED = 4
    TOO_SMALL = 5


class Parse(IntEnum):
    """How text that spells a special token is tokenised: as text, as the token, or as the token if user-defined."""

    NOTHING = 0
    SPECIAL = 1
    USER_DEFINED = 2


class TokenKind(IntEnum):
    """What a token is for."""

    TEXT = 0
    CONTROL = 1
    USER_DEFINED = 2


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
        raise PlanError(
            f"expected a contiguous {dtype.name} array of {ndim} dimensions and at least {size} elements, "
            f"got {array.dtype.name} {array.shape}"
        )
    if n and flags.writeable:  # five times as fast as array.ctypes.data
        return ctypes.addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
    return array.ctypes.data


def int32(value: int, name: str = "") -> int:
    """The value, if it fits into 32 bits; ctypes would silently truncate it. Raises PlanError if it does not fit."""
    if not -(1 << 31) <= value < 1 << 31:
        raise PlanError(f"{name}{': ' if name else ''}{value} does not fit 32 bits")
    return value


Facts = TypeVar("Facts", bound="DataclassInstance")


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
        values = {field.name: getattr(self, field.name) for field in fields(kind) if field.name not in others}
        texts = {name: text.decode(errors="replace") for name, text in values.items() if isinstance(text, bytes)}
        return kind(**values | texts | others)


def _struct(name: str, *members: tuple[Any, str]) -> type[Struct]:
    """The struct qcls_NAME; members: a type, and the names that C declares with it in turn."""
    of_type = [(member, kind) for kind, names in members for member in names.split()]
    return type(name, (Struct,), {"_fields_": of_type})


Error = _struct("Error", (c_char * 2048, "message"))
Library = _struct(
    "Library", (c_char_p, "llama_cpp_commit llama_cpp_python_version source_digest backend"), (c_int32, "max_sequences")
)
Device = _struct(
    "Device",
    (c_int32, "kind"),
    (c_uint64, "free_bytes total_bytes"),
    (c_char * 256, "name"),
    (c_char_p, "cpu_features cpu_variant"),
)
ModelParams = _struct(
    "ModelParams",
    (c_char_p, "path"),
    (c_int32, "n_gpu_layers weight_order"),
    (c_void_p, "share"),
    (c_int64, "n_gpus"),
    (c_int32, "without_weights cpu_activations n_layers"),
    (PROGRESS_FUNCTION, "progress"),
    (c_void_p, "user"),
)
ModelFacts = _struct(
    "ModelFacts",
    (c_int32, "n_vocab n_embd n_layer n_left_out n_ctx_train token_bos token_eos token_eot"),
    (c_int32, "add_bos n_lane_ordered walks_trees"),
    (c_int64, "size_bytes n_params state_bytes"),
    (c_char * 128, "description"),
)
ContextParams = _struct(
    "ContextParams",
    (c_int32, "n_ctx n_batch n_seq_max n_outputs_max n_threads"),
    (c_int32, "hidden_only flash_attn visible_cells batch_invariant n_state_seqs"),
    (c_char_p, "kv_type"),
    (c_void_p, "label_token"),
    (c_int64, "n_label_tokens"),
)
ContextFacts = _struct(
    "ContextFacts",
    (c_int32, "n_ctx n_batch n_seq_max n_outputs_max row_size hidden_only has_bias"),
    (c_float, "scale cap"),
    (c_int32, "n_gpus"),
    (c_int64, "cache_bytes"),
    (c_int64 * 16, "gpu_cache_bytes"),
    (c_int64, "compute_bytes n_graphs_reused n_shapes shapes_bytes n_cuda_graphs"),
    (c_char_p, "reads_all_since"),
)
Plan = _struct(
    "Plan",
    (c_int64, "n_tokens"),
    (c_void_p, "token pos seq_offset seq_id"),
    (c_int64, "n_seq_ids"),
    (c_void_p, "output"),
    (c_int64, "n_rows"),
    (c_void_p, "rows"),
    (c_int64, "batch_us trim_us n_trim"),
    (c_void_p, "trim_seq trim_from"),
    (c_int64, "n_keep"),
    (c_void_p, "keep"),
)
Trie = _struct(
    "Trie",
    (c_int64, "n_queries n_nodes n_labels"),
    (c_void_p, "node_start label_start label_edge edge log_probability probability"),
    (c_int64, "all_finite"),
)


# Every function but qcls_abi: the arguments before its Error; a status is returned.
SIGNATURES: dict[str, list[Any]] = {
    "qcls_library_describe": [POINTER(Library)],
    "qcls_set_log": [LOG_FUNCTION, c_void_p],
    "qcls_device_describe": [c_int32, POINTER(Device)],
    "qcls_model_open": [POINTER(ModelParams), POINTER(c_void_p)],
    "qcls_model_close": [c_void_p],
    "qcls_model_describe": [c_void_p, POINTER(ModelFacts)],
    "qcls_tokenize": [c_void_p, c_char_p, c_int64, c_int32, c_void_p, c_int64, POINTER(c_int64)],
    "qcls_token_piece": [c_void_p, c_int32, c_char_p, c_int64, POINTER(c_int64), POINTER(c_int32)],
    "qcls_type_block": [c_int32, POINTER(c_int64), POINTER(c_int64)],
    "qcls_dequantise": [c_int32, c_void_p, c_int64, c_void_p, c_int64],
    "qcls_context_open": [c_void_p, POINTER(ContextParams), POINTER(c_void_p)],
    "qcls_context_close": [c_void_p],
    "qcls_context_describe": [c_void_p, POINTER(ContextFacts)],
    "qcls_context_set_label_tokens": [c_void_p, c_int64, c_void_p],
    "qcls_context_set_depths": [c_void_p, c_int64, c_void_p, c_int32],
    "qcls_context_keep_shapes": [c_void_p, c_int32],
    "qcls_seq_share": [c_void_p, c_int32, c_int32, c_int32, c_int32],
    "qcls_seq_trim": [c_void_p, c_int64, c_void_p, c_void_p],
    "qcls_state_save": [c_void_p, c_void_p, POINTER(c_int64)],
    "qcls_state_load": [c_void_p, c_char_p, c_int64],
    "qcls_decode": [c_void_p, POINTER(Plan)],
    "qcls_decode_rows": [c_void_p, c_void_p, c_int64],
    "qcls_trie_scores": [POINTER(Trie)],
}


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
        function.restype, function.argtypes = c_int32, [*arguments, POINTER(Error)]
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
    for pattern, words in _KNOWN:
        if known := re.search(pattern, message):
            return words.format(*known.groups())
    for pattern, words in _INNER:
        message = re.sub(pattern, words, message)
    message = message.strip("; \n")
    is_file = "could not load the model: " in message or "could not make a context: a check of its own" in message
    return f"{message}: {_AGAIN}" if is_file else message


_AGAIN = "fetch or convert the file again, or choose another"
_KNOWN = (
    (
        "unknown (?:model )?(architecture|pre-tokenizer|tokenizer)(?: type)?: '(.*?)'",
        "this version's llama.cpp does not know the {} '{}': install a newer qcls-gguf, or choose another file",
    ),
    (
        r"id_to_token\.size\(\) == token_to_id\.size\(\)",
        f"the vocabulary has the same token twice (tokenizer.ggml.tokens): {_AGAIN}",
    ),
    (
        r"cache type (\w+) with block size (\d+) does not divide n_embd_head_[kv]=(\d+)",
        "runtime.kv_type {} holds values in blocks of {}, which do not fit this model's heads of {}: set "
        "runtime.kv_type to f16",
    ),
    (
        "(?i)(?:quantized V cache.*requires? Flash Attention|V cache quantization requires flash_attn)",
        "runtime.kv_type needs flash attention: set runtime.flash_attn to true, or runtime.kv_type to f16",
    ),
    (r"wrong number of tensors; expected (\d+), got (\d+)", f"the file has {{}} tensors, and its model {{}}: {_AGAIN}"),
)
"""Patterns of llama.cpp's messages, and what the user reads instead."""
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
