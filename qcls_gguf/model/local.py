"""The GGUF models that this machine has: the embedded one, those of Ollama's store and of the hub's cache."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config.resources import embedded_model
from ..config.schema import OLLAMA
from ..errors import ModelError
from .file_types import quantization_name
from .header import GgufHeader
from .hub import cached_models
from .identity import check_gguf
from .ollama import installed

Source = Literal["embedded", "ollama", "hub"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model on disk. What its header does not tell is None, all of it where the file cannot be used."""

    source: Source
    name: str
    """what a configuration's `path` or, for the hub, `hf_repo` takes; empty for the embedded model"""
    path: Path
    arch: str | None = None
    n_parameters: int | None = None
    quantization: str | None = None
    size_bytes: int | None = None
    error: str | None = None
    """why it cannot be used"""


def local_models() -> Iterator[LocalModel]:
    """Every model found, the embedded one first. Files are looked at, not loaded."""
    with suppress(ModelError):
        yield _described("embedded", "", embedded_model())
    for name, path in installed():
        yield _described("ollama", f"{OLLAMA}{name}", path)
    for spec, path in cached_models():
        yield _described("hub", spec, path)


def n_parameters(headers: Iterable[GgufHeader]) -> int:
    """The number of weights in a model's parts."""
    return sum(math.prod(tensor.shape) for header in headers for tensor in header.tensors.values())


def _described(source: Source, name: str, path: Path) -> LocalModel:
    try:
        headers = check_gguf(path)
    except ModelError as e:
        return LocalModel(source=source, name=name, path=path, error=str(e))
    return LocalModel(
        source=source,
        name=name,
        path=path,
        arch=headers[0].arch,
        n_parameters=n_parameters(headers),
        quantization=quantization_name(headers[0].file_type),
        size_bytes=sum(header.size_bytes for header in headers),
    )
