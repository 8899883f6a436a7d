"""Which model a new configuration names: the given one, or the largest that the machine has memory for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..config.resources import EMBEDDED, OLLAMA, PACKAGE
from ..config.words import shown
from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config.words import JsonObject

_LARGEST_ON_CPU = 2_000_000_000
"""a larger file makes a CPU of few cores take seconds for a text"""


class Choice(NamedTuple):
    """A model of the hub, which answers at once, without thinking."""

    repo: str
    quantization: str | None
    """None: what the repository has"""
    size_bytes: int
    """about; what is fetched tells"""


LARGEST_FIRST = (
    Choice("Qwen/Qwen3-8B-GGUF", "Q8_0", 8_709_518_112),
    Choice("Qwen/Qwen3-8B-GGUF", "Q4_K_M", 5_027_783_488),
    Choice("Qwen/Qwen3-4B-GGUF", "Q4_K_M", 2_500_000_000),
    Choice("Qwen/Qwen3-1.7B-GGUF", None, 1_830_000_000),
    Choice("Qwen/Qwen3-0.6B-GGUF", None, 640_000_000),
)
"""the models that are chosen from"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A model as a configuration names it."""

    settings: JsonObject
    """the keys of its section"""
    why: str
    """for the reader"""
    has_chat_template: bool = True


def given_model(path: str | None, repo: str | None, folder: Path | None = None) -> DraftModel | None:
    """The model that was named; None where none was. A file in the configuration's folder, or below it, is named from
    there, so that both can be moved together; any other by its whole path.

    Raises ModelError for a file that is no model, and ConfigError for a path that no configuration can hold.
    """
    from ..config.schema import ModelConfig
    from ..model.find import find_model
    from ..model.header import read_header  # here, because they import numpy

    if path is not None:
        is_name = path.startswith((OLLAMA, PACKAGE)) or path == EMBEDDED
        file = Path(path).expanduser().absolute()
        if is_name:
            file = find_model(ModelConfig(path=Path(path)), offline=True)
        if any("\ud800" <= character <= "\udfff" for character in str(file)):
            raise ConfigError(
                f"{shown(str(file))}: has bytes that are no UTF-8, which YAML cannot hold: rename it or give a link"
            )
        has_template = read_header(file).chat_template is not None
        why = "as given" if has_template else "as given; the file has no chat template, so the text below has no turns"
        name = path if is_name else _name_from(folder, file)
        return DraftModel(settings={"path": name}, why=why, has_chat_template=has_template)
    return None if repo is None else DraftModel(settings={"hf_repo": repo}, why="as given")


def _name_from(folder: Path | None, file: Path) -> str:
    if folder is None or not file.is_relative_to(folder):
        return str(file)
    name = str(file.relative_to(folder))
    if name.startswith("~"):  # a home folder, also with ./ before it
        return str(file)
    is_taken = name.startswith((OLLAMA, PACKAGE)) or name == EMBEDDED  # for something else
    return f"./{name}" if is_taken else name


def fitting_model() -> DraftModel:
    """The largest model that fits the free memory of the GPUs; without a GPU a small one."""
    from ..report.environment import free_memory  # as above

    free = free_memory()
    chosen = choose(free.weights_bytes, on_gpu=free.on_gpu)
    where = "of GPU memory" if free.on_gpu else "of main memory, and no GPU; a larger one labels better, takes longer"
    quantization = {} if chosen.quantization is None else {"quantization": chosen.quantization}
    return DraftModel(
        settings={"hf_repo": chosen.repo, **quantization},
        why=f"about {chosen.size_bytes / 1e9:.1f} GB, fetched once; chosen for {free.free_bytes / 1e9:.1f} GB {where}. "
        "`qcls-gguf models` lists those that are here",
    )


def choose(free_bytes: int, *, on_gpu: bool) -> Choice:
    """The largest model that fits; the smallest where none does."""
    return next(
        (
            choice
            for choice in LARGEST_FIRST
            if choice.size_bytes <= free_bytes and (on_gpu or choice.size_bytes <= _LARGEST_ON_CPU)
        ),
        LARGEST_FIRST[-1],
    )
