"""Rows of the LM head, and its bias, read from the model file.

llama.cpp may repack weights when it loads them, so that they can't be read back; the file has them as they are.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import ModelError, PlanError
from ..native import dequantised
from .files import ModelFile
from .header import GgufHeader, TensorInfo
from .identity import stamp_of

Float32Array = npt.NDArray[np.float32]

_KEPT_BYTES = 64 << 20
"""Rows to keep: labels that requests bring may in time have every token, 2.3 GiB of an 8B model's head."""


class HeadRows:
    """The rows of one model's LM head; the last that were read are kept."""

    def __init__(self, file: ModelFile) -> None:
        """Raises ModelError where a model has no head, or the part with it is another file by now."""
        head = _find(file, "output.weight") or _find(file, "token_embd.weight")  # where the two are tied
        if head is None:
            raise ModelError(f"{file.path} has neither output.weight nor token_embd.weight: it is no language model")
        self._path = file.path
        self._head = head
        self._bias_tensor = _find(file, "output.bias")
        self._bias: Float32Array | None = None
        self._rows: dict[int, Float32Array] = {}

    def of(self, tokens: Iterable[int]) -> dict[int, Float32Array]:
        """The dequantised rows of some tokens, each float32 of shape (n_embd,).

        Raises ModelError where the head has a type that cannot be dequantised, or a row is not finite.
        """
        tokens = list(tokens)
        kept = self._rows
        if missing := [token for token in tokens if token not in kept]:
            if 4 * self._head.info.shape[0] * (len(kept) + len(missing)) > _KEPT_BYTES:
                missing, kept = tokens, {}
                self._rows = kept  # another thread goes on with the former ones
            kept |= self._read(missing)
        return {token: kept[token] for token in tokens}

    def biases(self, tokens: Iterable[int]) -> dict[int, float]:
        """The values of output.bias for some tokens. Raises ModelError where the file has none."""
        if self._bias is None:
            if self._bias_tensor is None:
                raise ModelError(f"{self._path} has no output.bias, which its model adds to the logits")
            tensor = self._bias_tensor
            self._bias = np.frombuffer(tensor.read(0, 4 * tensor.info.shape[0]), "<f4")  # biases are F32 always
            if not np.isfinite(self._bias).all():
                raise tensor.damaged()
        return {token: float(self._bias[token]) for token in tokens}

    def _read(self, tokens: Sequence[int]) -> dict[int, Float32Array]:
        info = self._head.info
        # a file may name more of the four dimensions that ggml has, which are 1 then
        n_embd, n_rows = info.shape[:2]
        n_bytes = info.n_bytes // n_rows
        raw = b"".join([self._head.read(token * n_bytes, n_bytes) for token in tokens])
        try:
            values = dequantised(info.ggml_type, np.frombuffer(raw, np.uint8), len(tokens) * n_embd)
        except PlanError as e:
            raise ModelError(f"{self._head.part}: {info.name} cannot be read as numbers: {e}") from e
        if not np.isfinite(values).all():
            raise self._head.damaged()
        return dict(zip(tokens, values.reshape(-1, n_embd), strict=True))


class _Tensor:
    """A tensor in its file. The file stays open, so that rows are read from the file that llama.cpp has loaded even if
    another one has taken its name."""

    def __init__(self, header: GgufHeader, info: TensorInfo) -> None:
        self.part, self.info = header.path, info
        try:
            self._file = os.open(self.part, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise ModelError(
                f"{self.part} cannot be read ({e.strerror}): it was there when the model was opened"
            ) from e
        weakref.finalize(self, os.close, self._file)
        found = os.fstat(self._file)
        self._changed_ns = found.st_mtime_ns
        if stamp_of(self.part, found) != header.stamp:
            raise _changed(self.part)

    def read(self, start: int, n_bytes: int) -> bytes:
        """Bytes of the tensor. Raises ModelError where the file was written to since it was opened."""
        try:
            content = os.pread(self._file, n_bytes, self.info.offset + start)
        except OSError as e:
            raise ModelError(f"{self.part} cannot be read ({e.strerror})") from e
        if len(content) < n_bytes or os.fstat(self._file).st_mtime_ns != self._changed_ns:
            raise _changed(self.part)
        return content

    def damaged(self) -> ModelError:
        return ModelError(
            f"{self.part}: {self.info.name} holds values that are not finite: the file is damaged, fetch it again"
        )


def _changed(part: Path) -> ModelError:
    return ModelError(f"{part} has changed since the model was opened: open it again")


def _find(file: ModelFile, name: str) -> _Tensor | None:
    """A tensor in the part of a model that has it."""
    return next((_Tensor(each, each.tensors[name]) for each in file.headers if name in each.tensors), None)
