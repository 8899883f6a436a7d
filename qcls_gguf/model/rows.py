"""Rows of the LM head, and its bias, read from the model file.

llama.cpp may repack weights when it loads them, so that they can't be read back; the file has them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import ModelError, PlanError
from ..native import dequantised
from .header import GgufHeader, TensorInfo, read_header
from .identity import model_parts

Float32Array = npt.NDArray[np.float32]


class HeadRows:
    """The rows of one model's LM head; what was read once is kept."""

    def __init__(self, path: Path) -> None:
        """path: the model's first file. Raises ModelError where the file has no head."""
        self._path = path
        headers = [(part, read_header(part)) for part in model_parts(path)]
        head = _find(headers, "output.weight") or _find(headers, "token_embd.weight")  # where the two are tied
        if head is None:
            raise ModelError(f"{path} has neither output.weight nor token_embd.weight: it is no language model")
        self._part, self._tensor = head
        self._bias_tensor = _find(headers, "output.bias")
        self._bias: Float32Array | None = None
        self._rows: dict[int, Float32Array] = {}

    def of(self, tokens: Iterable[int]) -> dict[int, Float32Array]:
        """The dequantised rows of some tokens, each float32 of shape (n_embd,).

        Raises ModelError where the head has a type that cannot be dequantised, or a row is not finite.
        """
        tokens = list(tokens)
        if missing := [token for token in tokens if token not in self._rows]:
            self._rows |= self._read(missing)
        return {token: self._rows[token] for token in tokens}

    def biases(self, tokens: Iterable[int]) -> dict[int, float]:
        """The values of output.bias for some tokens. Raises ModelError where the file has none."""
        if self._bias is None:
            if self._bias_tensor is None:
                raise ModelError(f"{self._path} has no output.bias, which its model adds to the logits")
            part, tensor = self._bias_tensor
            try:
                self._bias = np.fromfile(part, "<f4", tensor.shape[0], offset=tensor.offset)  # biases are F32 always
            except OSError as e:
                raise _unreadable(part, e) from e
            if not np.isfinite(self._bias).all():
                raise _damaged(part, tensor)
        return {token: float(self._bias[token]) for token in tokens}

    def _read(self, tokens: Sequence[int]) -> dict[int, Float32Array]:
        part, tensor = self._part, self._tensor
        n_embd, n_rows = tensor.shape
        row_bytes = tensor.n_bytes // n_rows
        raw = np.empty((len(tokens), row_bytes), np.uint8)
        try:
            with part.open("rb") as file:
                for row, token in zip(raw, tokens, strict=True):
                    file.seek(tensor.offset + token * row_bytes)
                    if file.readinto(row.data) != row_bytes:
                        raise ModelError(f"{part} ends before its {tensor.name}: it has changed since it was opened")
            values = dequantised(tensor.ggml_type, raw.ravel(), len(tokens) * n_embd)
        except OSError as e:
            raise _unreadable(part, e) from e
        except PlanError as e:
            raise ModelError(f"{part}: {tensor.name} cannot be read as numbers: {e}") from e
        if not np.isfinite(values).all():
            raise _damaged(part, tensor)
        return dict(zip(tokens, values.reshape(-1, n_embd), strict=True))


def _unreadable(part: Path, error: OSError) -> ModelError:
    return ModelError(f"{part} cannot be read ({error.strerror}): check that it is still there")


def _damaged(part: Path, tensor: TensorInfo) -> ModelError:
    return ModelError(f"{part}: {tensor.name} holds values that are not finite: the file is damaged, fetch it again")


def _find(headers: Sequence[tuple[Path, GgufHeader]], name: str) -> tuple[Path, TensorInfo] | None:
    """The part of a model that has a tensor, and where it lies in it."""
    return next(((part, header.tensors[name]) for part, header in headers if name in header.tensors), None)
