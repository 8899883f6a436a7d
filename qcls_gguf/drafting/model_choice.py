"""Which model a new configuration names: the given one, or one that the machine has memory for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.schema import OLLAMA
from ..config.words import shown
from ..errors import ConfigError
from ..model.header import read_header
from ..model.ollama import find_ollama_model
from ..report.machine import model_room
from .families import LARGEST_FIRST, Choice, Family

_LARGEST_ON_CPU = 2_000_000_000
"""a larger file makes a CPU of few cores take seconds for a text"""
_N_SEQUENCES = 64
"""about as many as eight prompts open, each of which may need a state"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A model as a configuration names it."""

    settings: dict[str, Any]
    """the keys of its section"""
    why: str
    """for the reader"""
    has_chat_template: bool = True


def given_model(path: str | None, repo: str | None, folder: Path | None = None) -> DraftModel | None:
    """The model that was named; None where none was. A file in the configuration's folder, or below it, is named from
    there, so that both can be moved together; any other by its whole path.

    Raises ModelError for a file that is no model, and ConfigError for a path that no configuration can hold.
    """
    if path is not None:
        is_ollama = path.startswith(OLLAMA)
        file = find_ollama_model(path.removeprefix(OLLAMA)) if is_ollama else Path(path).expanduser().absolute()
        if any("\ud800" <= character <= "\udfff" for character in str(file)):
            raise ConfigError(
                f"{shown(str(file))}: has bytes that are no UTF-8, which YAML cannot hold: rename it or give a link"
            )
        has_template = read_header(file).chat_template is not None
        why = "as given" if has_template else "as given; the file has no chat template, so the text below has no turns"
        name = path if is_ollama else _name_from(folder, file)
        return DraftModel(settings={"path": name}, why=why, has_chat_template=has_template)
    return None if repo is None else DraftModel(settings={"hf_repo": repo}, why="as given")


def _name_from(folder: Path | None, file: Path) -> str:
    if folder is None or not file.is_relative_to(folder):
        return str(file)
    name = str(file.relative_to(folder))
    return str(file) if name.startswith(("~", OLLAMA)) else name  # which a configuration takes for something else


def fitting_model(family: Family) -> DraftModel:
    """The largest model of a family that fits the free memory of the GPUs; without a GPU a small one."""
    room = model_room()
    chosen = choose(room.weights_bytes, on_gpu=room.on_gpu, family=family)
    where = "of GPU memory" if room.on_gpu else "of main memory, and no GPU"
    larger = "" if room.on_gpu else "; a larger one labels better and takes longer"
    states = f", {chosen.state_bytes >> 20} MiB of states a sequence" if chosen.state_bytes else ""
    return DraftModel(
        settings={"hf_repo": chosen.repo}
        | ({} if chosen.quantization is None else {"quantization": chosen.quantization}),
        why=f"about {chosen.size_bytes / 1e9:.1f} GB, fetched once{states}; chosen for {room.free_bytes / 1e9:.1f} GB "
        f"{where}{larger}. `qcls-gguf models` lists those that are here",
    )


def choose(room_bytes: int, *, on_gpu: bool, family: Family) -> Choice:
    """The largest model of a family that fits, with its states; the smallest where none does."""
    choices = LARGEST_FIRST[family]
    for choice in choices:
        needed = choice.size_bytes + _N_SEQUENCES * choice.state_bytes
        if needed <= room_bytes and (on_gpu or choice.size_bytes <= _LARGEST_ON_CPU):
            return choice
    return choices[-1]
