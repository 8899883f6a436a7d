"""The files that come with the package: the embedded model and the configurations."""

import os
from pathlib import Path

from ..errors import ConfigError, ModelError

_PACKAGE = Path(__file__).resolve().parent.parent
EMBEDDED_MODEL = "fashion-tiny-Q8_0.gguf"
DEFAULT_CONFIG = "fashion-8"
"""of the configurations that come with the package, the one that is used where none is named"""
_SUFFIX = ".yaml"
SCHEMA = "config.schema.json"
SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA}\n"
"""begins a configuration that editors complete and check by the schema beside it"""
EMBEDDED = "(embedded)"
"""the name of the embedded model wherever models are named"""
OLLAMA = "ollama:"
"""what a path begins with that is the name of a model of Ollama's; a file of such a name is given as ./ollama:NAME"""
PACKAGE = "package:"
"""likewise the name of an installed Python package with a model in it"""


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


def is_embedded(path: Path) -> bool:
    """Whether a model's file came with the package."""
    return path.resolve().parent == _folder("models").resolve()


def config_names() -> list[str]:
    """The names of the configurations that come with the package, such as `fashion-8`."""
    return sorted(path.stem for path in _folder("configs").glob(f"*{_SUFFIX}"))


def config_path(name: str | Path) -> Path:
    """The file of a configuration: that of a path, or, for a bare name without one, that of the package.

    A file of the working folder with that very name goes first. Raises ConfigError for a bare name that neither has.
    """
    path = Path(name)
    if path.name == f"{path.stem}{_SUFFIX}" and path.stem in config_names() and not os.path.exists(path.expanduser()):
        raise ConfigError(f"{name}: no such file; the configuration that comes with the package is named {path.stem}")
    if path.suffix or path.name != str(name) or os.path.isfile(path):
        return path
    bundled = _folder("configs") / f"{name}{_SUFFIX}"
    if not os.path.isfile(bundled):
        raise ConfigError(
            f"{name}: the configuration cannot be read: no such file, and none of this name comes with the package, "
            f"which has {', '.join(config_names())}"
        )
    return bundled


def schema_path() -> Path:
    """The JSON Schema of a configuration, for editors."""
    return _folder("configs") / SCHEMA
