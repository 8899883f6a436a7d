"""Where a model's file is: named, of an installed package, of Ollama's store or of the Hugging Face hub.

Ollama's store: `manifests/HOST/NAMESPACE/NAME/TAG` is a JSON manifest, and its layer of type
`application/vnd.ollama.image.model` names the file `blobs/sha256-DIGEST`, which is the GGUF file itself.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Literal

from ..config.resources import EMBEDDED, OLLAMA, PACKAGE, embedded_model
from ..config.schema import ModelConfig
from ..errors import ConfigError, ModelError
from .files import BLOB
from .hub import cached_models, fetch_model

_DEFAULT, _TAG = ("registry.ollama.ai", "library"), "latest"
_PART = re.compile(r"[A-Za-z0-9_][\w.:-]*", re.ASCII)
_MODEL_LAYER = "application/vnd.ollama.image.model"
_ADAPTER_LAYER = "application/vnd.ollama.image.adapter"
_SERVICE_STORE = Path("/usr/share/ollama/.ollama/models")
_MAX_MANIFEST_BYTES = 1 << 20

Source = Literal["embedded", "package", "ollama", "hub"]


def find_model(model: ModelConfig, *, offline: bool) -> Path:
    """The model's file: one of Ollama's store, of a Python package, one of the hub, the one named, or the embedded one.

    Raises ConfigError or ModelError.
    """
    if model.ollama:
        return find_ollama_model(model.ollama)
    if model.package:
        return find_packaged_model(model.package)
    if model.hf_repo:
        return fetch_model(model.hf_repo, offline=offline)
    return model.path or embedded_model()


def local_models() -> Iterator[tuple[Source, str, Path]]:
    """(source, name, file) of every model on this machine, the embedded one first.

    The name is what a configuration's `path` or, for the hub, `hf_repo` takes. No file is read.
    """
    with suppress(ModelError):
        yield "embedded", EMBEDDED, embedded_model()
    yield from (("package", f"{PACKAGE}{name}", path) for name, path in packaged_models())
    yield from (("ollama", f"{OLLAMA}{name}", path) for name, path in installed())
    yield from (("hub", name, path) for name, path in cached_models())


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
    matches = [path for path in files if not wanted or path.name == wanted]
    if len(matches) != 1:
        names = ", ".join(path.name for path in files)
        has = f"{names}: name one, as in {PACKAGE}{name}/{files[0].name}" if files else "no GGUF file: name another"
        raise ModelError(f"{PACKAGE}{text}: the package has {has}")
    return matches[0]


def packaged_models() -> Iterator[tuple[str, Path]]:
    """(name, GGUF file) of every model in the other installed packages, by name."""
    models = {
        f"{package.metadata['Name']}/{path.name}" if len(files) > 1 else package.metadata["Name"]: path
        for package in distributions()
        if package.metadata["Name"] != "qcls-gguf"
        for files in [_gguf_files(package)]
        for path in files
    }
    yield from sorted(models.items())


def _gguf_files(package: Distribution) -> list[Path]:
    """Those that are there, in the order of their names."""
    paths = [Path(str(package.locate_file(file))) for file in package.files or () if file.suffix == ".gguf"]
    return sorted(path for path in paths if path.is_file())


def manifest_of(text: str) -> str:
    """Where the manifest of `[[HOST/]NAMESPACE/]NAME[:TAG]` is below `manifests`. Raises ConfigError."""
    *before, last = text.split("/")
    name, colon, tag = last.partition(":")
    parts = [*before, name, *([tag] if colon else [])]
    if len(before) > 2 or not all(_PART.fullmatch(part) for part in parts) or ":" in tag:
        raise ConfigError(f"{OLLAMA}{text} is not of the form {OLLAMA}[[HOST/]NAMESPACE/]NAME[:TAG]: correct it")
    return "/".join([*_DEFAULT[: 2 - len(before)], *before, name, tag or _TAG])


def shown(manifest: str) -> str:
    """The name of a manifest, as short as Ollama prints it: without what is the default."""
    name, _, tag = manifest.rpartition("/")
    return f"{name.removeprefix('/'.join(_DEFAULT) + '/').removeprefix(f'{_DEFAULT[0]}/')}:{tag}"


def stores() -> list[Path]:
    """The folders where a store may be: that of OLLAMA_MODELS if it is set, else the user's and the service's."""
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named)]
    return [Path(os.path.expanduser("~/.ollama/models")), _SERVICE_STORE]


def find_ollama_model(text: str) -> Path:
    """The GGUF file of a model in Ollama's store; nothing is copied or hashed.

    text: the name without `ollama:`. Raises ConfigError for an unusable name, ModelError for a model that is not
    there, may not be read, or is more than one GGUF file.
    """
    manifest = manifest_of(text)
    for store in stores():
        try:
            return _blob(store, manifest)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as e:
            what = f"{e.filename} of Ollama's store cannot be read ({e.strerror or e})"
            raise ModelError(f"{what}: let your user read it, or set OLLAMA_MODELS to a store of yours") from None
    if names := ", ".join(name for name, _ in installed()):
        there = f"it has {names}; `ollama pull` fetches others"
    else:
        folders = " or ".join(map(str, stores()))
        there = f"no model is in {folders}; set OLLAMA_MODELS to where it is, or `ollama pull` one"
    raise ModelError(f"Ollama's store has no {shown(manifest)}: {there}")


def installed() -> Iterator[tuple[str, Path]]:
    """(name, GGUF file) of every model that can be read in the stores, in the order of their names."""
    seen = set()
    for store in stores():
        top = store / "manifests"
        with suppress(OSError):
            for path in sorted(path for path in top.glob("*/*/*/*") if path.is_file()):
                manifest = path.relative_to(top).as_posix()
                if manifest not in seen:
                    seen.add(manifest)
                    with suppress(ModelError, OSError):
                        yield shown(manifest), _blob(store, manifest)


def _blob(store: Path, name: str) -> Path:
    """The file of a model's weights. Raises OSError where its manifest cannot be read, ModelError."""
    manifest = store / "manifests" / name
    try:
        with manifest.open("rb") as file:
            layers = json.loads(file.read(_MAX_MANIFEST_BYTES))["layers"]
        kinds = [layer["mediaType"] for layer in layers]
        weights = [layer for layer in layers if layer["mediaType"] == _MODEL_LAYER]
        digests = [BLOB.fullmatch(layer["digest"])["hex"] for layer in weights]  # type: ignore[index]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ModelError(f"{manifest} is no manifest of a model: pull the model again") from None
    n_adapters = kinds.count(_ADAPTER_LAYER)
    if (len(weights), n_adapters) != (1, 0):
        what = f"{OLLAMA}{shown(name)} has {len(weights)} layers with weights and {n_adapters} adapters"
        raise ModelError(f"{what}, and only one GGUF file is read here: merge them into one, and give that file")
    return store / "blobs" / f"sha256-{digests[0]}"
