"""The types of tensors, as ggml numbers them: their blocks, and their values as float32."""

from __future__ import annotations

from ctypes import byref, c_int64
from functools import cache

import numpy as np
import numpy.typing as npt

from ..statistics import Float32Array
from .abi import FLOAT32, Error, Status, address, check
from .library import call, library

_UINT8 = np.dtype(np.uint8)
_UNKNOWN = int(Status.BAD_ARGUMENT)
_LARGEST = (1 << 31) - 1


@cache
def type_block(kind: int) -> tuple[int, int] | None:
    """The values and the bytes of a block of a type; None where ggml has no such type."""
    n_values, n_bytes, error = c_int64(), c_int64(), Error()
    if kind > _LARGEST:
        return None
    status = library().qcls_type_block(kind, byref(n_values), byref(n_bytes), byref(error))
    if status == _UNKNOWN:
        return None
    check(status, error)
    return n_values.value, n_bytes.value


def dequantised(kind: int, data: npt.NDArray[np.uint8], n_values: int) -> Float32Array:
    """The values, shape (n_values,), of whole blocks of a type, uint8 of shape (n_bytes,).

    Raises PlanError for a type that is not one of weights, or blocks of another number of values.
    """
    found = np.empty(n_values, np.float32)
    source, target = address(data, _UINT8, 1, data.size), address(found, FLOAT32, 1, n_values)
    call("qcls_dequantise", kind, source, data.size, target, n_values)
    return found
