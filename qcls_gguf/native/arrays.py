"""numpy arrays on their way to C: dtype, dimensions and contiguity are checked here, once."""

from __future__ import annotations

import ctypes
from ctypes import c_char
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import PlanError

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
