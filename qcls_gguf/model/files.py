"""From a configured model, or from all that this machine has, to files that were checked before llama.cpp sees them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Literal, Self

from ..config.resources import EMBEDDED, OLLAMA, PACKAGE, embedded_model
from ..config.schema import ModelConfig
from ..config.words import listed
from ..errors import ModelError
from .header import DECISION_KINDS, GgufHeader, TensorInfo, read_header
from .hub import SPLIT_NAME, cached_models, fetch_model
from .ollama import find_ollama_model, installed
from .placement import weights_of

_MAX_PARTS = 99_999
_COMPANIONS = ("clip", "controlvector", "imatrix")
"""Architectures of files that accompany a model."""

Source = Literal["embedded", "package", "ollama", "hub"]


@dataclass(frozen=True)
class ModelFile:
    """A whole model on disk, whose headers follow the rules."""

    headers: tuple[GgufHeader, ...]
    """of all parts; the first has the metadata"""
    n_first: int = 0
    """above 0: only so many of the first layers are loaded, and no LM head's matrix"""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Refuse a file that cannot be a whole GGUF model, with all its parts.

        Raises ModelError that names what is wrong and the remedy.
        """
        header = read_header(path)
        kind = header.scalars.get("general.type", "model")
        if kind != "model" or header.arch in _COMPANIONS:
            raise ModelError(
                f"{path} holds no language model ({header.arch or kind}): give the file of the model itself"
            )
        n_embd, n_out = (header.scalars.get(f"{header.arch}.embedding_length{end}", 0) for end in ("", "_out"))
        has_own_head = header.decision_kind in DECISION_KINDS  # outside of llama.cpp's graph
        if n_out not in (0, n_embd) and not has_own_head:
            raise ModelError(f"{path} gives {n_out!r} values a token, its head takes {n_embd!r}: choose another file")
        parts = model_parts(header)
        file = cls((header, *map(read_header, parts[1:])))
        for number, part in enumerate(file.headers[1:], 1):
            found = part.scalars.get("split.no"), part.scalars.get("split.count")
            if found != (number, len(parts)):
                raise ModelError(f"{part.path} is not part {number + 1} of {path}: fetch all parts of one model again")
        if not file.tensors:
            raise ModelError(f"{path} has no tensors, only a vocabulary: choose a file with a whole model")
        n_tensors = header.scalars.get("split.tensors.count", 0) if len(parts) > 1 else 0
        if n_tensors not in (0, n_found := sum(len(part.tensors) for part in file.headers)):
            raise ModelError(f"{path} announces {n_tensors} tensors, its parts have {n_found}: fetch all parts again")
        return file

    @property
    def header(self) -> GgufHeader:
        """The header with the metadata, of the first part."""
        return self.headers[0]

    @property
    def path(self) -> Path:
        """The first part."""
        return self.header.path

    @property
    def parts(self) -> list[Path]:
        """All files, in order."""
        return [header.path for header in self.headers]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(header.size_bytes for header in self.headers)

    @property
    def n_parameters(self) -> int:
        """The number of weights."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def n_layer(self) -> int:
        """How many layers are loaded."""
        return self.n_first or self.header.n_layer

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """The loaded tensors of all files by name."""
        above = [f"blk.{layer}." for layer in range(self.n_layer, self.header.n_layer)]
        left_out = (*above, "output.weight") if self.n_first else ()
        tensors = {name: tensor for header in self.headers for name, tensor in header.tensors.items()}
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(left_out)}

    @property
    def weights(self) -> tuple[int, ...]:
        """The bytes of each layer that is loaded; see `weights_of`."""
        return weights_of(self.tensors, self.n_layer, head=self.n_first == 0)


def model_parts(header: GgufHeader) -> tuple[Path, ...]:
    """The files of the model that starts with this one: all parts, in order, of one named `X-00001-of-0000N.gguf`.

    Raises ModelError for another part than the first, a part that is missing, and files that were renamed.
    """
    # Not resolved: in the Hub's cache the names are links, and what they point to has other names.
    path, name = header.path, SPLIT_NAME.fullmatch(header.path.name)
    number, n_parts = (header.scalars.get(f"split.{key}", default) for key, default in (("no", 0), ("count", 1)))
    if not (type(number) is int and type(n_parts) is int and 0 <= number < n_parts <= _MAX_PARTS):
        number, n_parts = 0, 1
    if name is None or int(name["n_parts"]) != n_parts or int(name["part"]) != number + 1:
        if n_parts > 1:
            raise ModelError(
                f"{path} is part {number + 1} of {n_parts} of a split model, and its name does not say so: name all "
                f"parts X-00001-of-{n_parts:05}.gguf and so on, in one folder, and give the first"
            )
        return (path,)
    names = [f"{name['prefix']}-{part:05}-of-{n_parts:05}.gguf" for part in range(1, n_parts + 1)]
    if number:
        raise ModelError(f"{path} is part {number + 1} of {n_parts} of a split model: give its first, {names[0]}")
    paths = (path, *map(path.with_name, names[1:]))
    if missing := listed([part.name for part in paths if not part.exists()]):
        what = f"{path} is part 1 of {n_parts} of a split model, which lacks {missing}"
        raise ModelError(f"{what}: fetch all parts into the same folder")
    return paths


def find_model(model: ModelConfig, *, offline: bool) -> Path:
    """The model's file: one of Ollama's store, of a Python package, one of the hub, the one named, or the embedded one.

    Raises ConfigError or ModelError.
    """
    if model.ollama:
        return find_ollama_model(model.ollama)
    if model.package:
        return find_packaged_model(model.package)
    if model.hf_repo:
        return fetch_model(model.hf_repo, model.quantization, model.revision, offline=offline)
    return model.path or embedded_model()


def local_models() -> Iterator[tuple[Source, str, Path]]:
    """(source, name, file) of every model on this machine, the embedded one first.

    The name is what a configuration's `path` or, for the hub, `hf_repo` takes. No file is read.
    """
    with suppress(ModelError):
        yield "embedded", EMBEDDED, embedded_model()
    for name, path in packaged_models():
        yield "package", f"{PACKAGE}{name}", path
    for name, path in installed():
        yield "ollama", f"{OLLAMA}{name}", path
    for name, path in cached_models():
        yield "hub", name, path


def find_packaged_model(text: str) -> Path:
    """The GGUF file of an installed package.

    text: NAME, or NAME/FILE where the package has several. Raises ModelError for a package that is not installed, and
    where the file is missing or not the only one.
    """
    name, _, wanted = text.partition("/")
    try:
        files = _gguf_files(distribution(name))
    except (PackageNotFoundError, ValueError):
        raise ModelError(f"{PACKAGE}{text}: no such package is installed: `pip install {name}`") from None
    found = [path for path in files if not wanted or path.name == wanted]
    if len(found) != 1:
        names = ", ".join(path.name for path in files)
        raise ModelError(
            f"{PACKAGE}{text}: the package has "
            + (f"{names}: name one, as in {PACKAGE}{name}/{files[0].name}" if files else "no GGUF file: name another")
        )
    return found[0]


def packaged_models() -> Iterator[tuple[str, Path]]:
    """(name, GGUF file) of every model in the other installed packages, by name."""
    found = {
        f"{each.metadata['Name']}/{path.name}" if len(files) > 1 else each.metadata["Name"]: path
        for each in distributions()
        if each.metadata["Name"] != "qcls-gguf"
        for files in [_gguf_files(each)]
        for path in files
    }
    yield from sorted(found.items())


def _gguf_files(package: Distribution) -> list[Path]:
    """Those that are there, in the order of their names."""
    paths = [Path(str(package.locate_file(file))) for file in package.files or () if file.suffix == ".gguf"]
    return sorted(path for path in paths if path.is_file())
