"""Models inside installed Python packages: from a package's name, as pip takes it, to its GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from ..config.resources import PACKAGE
from ..errors import ModelError


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
