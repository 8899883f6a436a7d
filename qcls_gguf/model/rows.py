"""Rows of the output matrix, and its bias, read from the model file.

llama.cpp may repack weights when it loads them, so that they can't be read back; the file has them as they are.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import ModelError, PlanError
from ..native.arithmetic import dequantised
from ..statistics import Float32Array
from .files import ModelFile
from .header import GgufHeader, TensorInfo
from .identity import stamp_of

_KEPT_BYTES = 64 << 20
"""Rows to keep: labels that requests bring may in time have every token, 2.3 GiB of an 8B model's output matrix."""

_CHANGED = "has changed since the model was opened: open it again"


class OutputRows:
    """The rows of one model's output matrix; the last that were read are kept."""

    def __init__(self, file: ModelFile) -> None:
        """Raises ModelError where a model has no such matrix, or the part with it is another file by now."""
        matrix = _find(file, "output.weight") or _find(file, "token_embd.weight")  # where the two are tied
        if matrix is None:
            raise ModelError(f"{file.path} has neither output.weight nor token_embd.weight: it is no language model")
        self._file, self._path = file, file.path
        self._matrix = matrix
        self._bias = _find(file, "output.bias")
        self._rows: dict[int, Float32Array] = {}

    def of(self, tokens: Iterable[int]) -> dict[int, Float32Array]:
        """The dequantised rows of some tokens, each float32 of shape (n_embd,).

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
        found = _find(self._file, name)
        return None if found is None else found.values([0], 1).reshape(found.info.shape[::-1])

    def biases(self, tokens: Iterable[int]) -> dict[int, float]:
        """The values of output.bias for some tokens. Raises ModelError where the file has none."""
        if self._bias is None:
            raise ModelError(f"{self._path} has no output.bias, which its model adds to the logits")
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
        found = os.fstat(self._file)
        self._changed_ns = found.st_mtime_ns
        if stamp_of(self.part, found) != header.stamp:
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
    return next((_Tensor(each, each.tensors[name]) for each in file.headers if name in each.tensors), None)
