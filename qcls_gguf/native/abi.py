"""The C ABI of libqcls in ctypes, in one file: structs, signatures, statuses. src/qcls.h says what each of them means.

`tests/abi/test_header.py` compares all of it with the header.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

from ..config.words import printable_lines
from ..errors import DecodeError, ModelError, PlanError, QclsError

ABI = 10

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


class WeightOrder(IntEnum):
    """How the weights of Q8_0 and Q6_K matrices lie in a GPU's memory, as far as they can.

    BY_DEVICE: in lane order on cards of compute capability 7.5, but QCLS_LANE_ORDER says otherwise if it is set.
    FILE: as the file has them, which llama.cpp's own kernels read. LANES: in lane order wherever code for 7.5 runs.
    """

    BY_DEVICE = 0
    FILE = 1
    LANES = 2


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


def int32(value: int, name: str = "") -> int:
    """The value, if it fits into 32 bits; ctypes would silently truncate it. Raises PlanError if it does not fit."""
    if not -(1 << 31) <= value < 1 << 31:
        raise PlanError(f"{name}{': ' if name else ''}{value} does not fit 32 bits")
    return value


class Struct(ctypes.Structure):
    """A struct of the ABI: the members given as keywords are set, the others are zero, their default."""

    def __init__(self, **members: Any) -> None:
        """Raises PlanError for an integer that its member cannot hold; ctypes would silently truncate it."""
        super().__init__(**members)
        for name, value in members.items():
            if isinstance(value, SupportsIndex) and (getattr(self, name) or 0) != value:
                raise PlanError(f"{name} is {value}: it does not fit {type(self).__name__}.{name}")


class Error(Struct):
    """Why a call failed."""

    _fields_: ClassVar = [("message", ctypes.c_char * 2048)]


class Library(Struct):
    _fields_: ClassVar = [
        ("llama_cpp_commit", c_char_p),
        ("llama_cpp_python_version", c_char_p),
        ("source_digest", c_char_p),
        ("backend", c_char_p),
        ("max_sequences", c_int32),
    ]


class Device(Struct):
    _fields_: ClassVar = [
        ("kind", c_int32),
        ("free_bytes", c_uint64),
        ("total_bytes", c_uint64),
        ("name", ctypes.c_char * 256),
        ("cpu_features", c_char_p),
        ("cpu_variant", c_char_p),
    ]


class Operation(Struct):
    _fields_: ClassVar = [
        ("kind", c_int32),
        ("device", c_int32),
        ("n_threads", c_int32),
        ("weight_type", c_int32),
        ("n_inner", c_int32),
        ("n_rows", c_int32),
        ("n_columns", c_int32),
        ("n_bytes", c_int64),
        ("budget_s", c_double),
    ]


class Seconds(Struct):
    _fields_: ClassVar = [("best", c_double), ("median", c_double)]


class ModelParams(Struct):
    _fields_: ClassVar = [
        ("path", c_char_p),
        ("n_gpu_layers", c_int32),
        ("weight_order", c_int32),
        ("share", c_void_p),
        ("n_gpus", c_int64),
        ("without_weights", c_int32),
        ("progress", PROGRESS_FUNCTION),
        ("user", c_void_p),
    ]


class ModelFacts(Struct):
    _fields_: ClassVar = [
        ("n_vocab", c_int32),
        ("n_embd", c_int32),
        ("n_layer", c_int32),
        ("n_ctx_train", c_int32),
        ("token_bos", c_int32),
        ("token_eos", c_int32),
        ("token_eot", c_int32),
        ("add_bos", c_int32),
        ("n_lane_ordered", c_int32),
        ("size_bytes", c_int64),
        ("n_params", c_int64),
        ("state_bytes", c_int64),
        ("description", ctypes.c_char * 128),
    ]


class ContextParams(Struct):
    _fields_: ClassVar = [
        ("n_ctx", c_int32),
        ("n_batch", c_int32),
        ("n_seq_max", c_int32),
        ("n_outputs_max", c_int32),
        ("n_threads", c_int32),
        ("hidden_only", c_int32),
        ("flash_attn", c_int32),
        ("visible_cells", c_int32),
        ("batch_invariant", c_int32),
        ("kv_type", c_char_p),
        ("label_token", c_void_p),
        ("n_label_tokens", c_int64),
    ]


class ContextFacts(Struct):
    _fields_: ClassVar = [
        ("n_ctx", c_int32),
        ("n_batch", c_int32),
        ("n_seq_max", c_int32),
        ("n_outputs_max", c_int32),
        ("row_size", c_int32),
        ("hidden_only", c_int32),
        ("has_bias", c_int32),
        ("scale", c_float),
        ("cap", c_float),
        ("n_gpus", c_int32),
        ("cache_bytes", c_int64),
        ("gpu_cache_bytes", c_int64 * 16),
        ("compute_bytes", c_int64),
        ("n_graphs_reused", c_int64),
        ("n_shapes", c_int64),
        ("shapes_bytes", c_int64),
        ("n_cuda_graphs", c_int64),
        ("reads_all_since", c_char_p),
    ]


class Plan(Struct):
    _fields_: ClassVar = [
        ("n_tokens", c_int64),
        ("token", c_void_p),
        ("pos", c_void_p),
        ("seq_offset", c_void_p),
        ("seq_id", c_void_p),
        ("n_seq_ids", c_int64),
        ("output", c_void_p),
        ("n_rows", c_int64),
        ("rows", c_void_p),
        ("batch_us", c_int64),
        ("trim_us", c_int64),
        ("n_trim", c_int64),
        ("trim_seq", c_void_p),
        ("trim_from", c_void_p),
        ("n_keep", c_int64),
        ("keep", c_void_p),
    ]


class Trie(Struct):
    _fields_: ClassVar = [
        ("n_queries", c_int64),
        ("n_nodes", c_int64),
        ("n_labels", c_int64),
        ("node_start", c_void_p),
        ("label_start", c_void_p),
        ("label_edge", c_void_p),
        ("edge", c_void_p),
        ("log_probability", c_void_p),
        ("probability", c_void_p),
        ("all_finite", c_int64),
    ]


STRUCTS: dict[str, type[Struct]] = {
    "qcls_error": Error,
    "qcls_library": Library,
    "qcls_device": Device,
    "qcls_operation": Operation,
    "qcls_seconds": Seconds,
    "qcls_model_params": ModelParams,
    "qcls_model_facts": ModelFacts,
    "qcls_context_params": ContextParams,
    "qcls_context_facts": ContextFacts,
    "qcls_plan": Plan,
    "qcls_trie": Trie,
}

# Every function but qcls_abi; each returns a status, and takes an Error after the arguments listed.
SIGNATURES: dict[str, list[Any]] = {
    "qcls_library_describe": [POINTER(Library)],
    "qcls_set_log": [LOG_FUNCTION, c_void_p],
    "qcls_device_describe": [c_int32, POINTER(Device)],
    "qcls_device_measure": [POINTER(Operation), POINTER(Seconds)],
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
    found = library.qcls_abi()  # before anything else is looked up: an older library lacks some of it
    if found != ABI:
        raise ModelError(f"{path} has ABI {found}, this package {ABI}: build and install them together")
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int32, [*arguments, POINTER(Error)]
    return library


def check(status: int, error: Error, path: Path | None = None) -> None:
    """Raise the error of a status other than OK, with the library's message, and the file if one is given."""
    if status != _OK:
        # the message may quote bytes of a model file
        message = printable_lines(error.message.decode(errors="backslashreplace"))
        raise _ERRORS.get(status, QclsError)(f"{path}: {message}" if path else message)
