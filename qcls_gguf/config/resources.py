"""The files that come with the package: the embedded model and the configurations."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelError

_PACKAGE = Path(__file__).resolve().parent.parent
EMBEDDED_MODEL = "fashion-tiny-Q8_0.gguf"


def _folder(name: str) -> Path:
    """models/ or configs/: inside an installed package, or beside the package in a source tree."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def embedded_model() -> Path:
    """The model that is used where none is named. Raises ModelError where it is not installed."""
    path = _folder("models") / EMBEDDED_MODEL
    if not path.is_file():
        raise ModelError(f"the embedded model {path} is missing: install the package again, or name a model")
    return path


def config_path(name: str) -> Path:
    """A configuration that comes with the package, such as `fashion-8.yaml`."""
    return _folder("configs") / name
