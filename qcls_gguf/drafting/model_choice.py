"""Which model a new configuration names: the given one, or one that the machine has memory for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..config.schema import OLLAMA
from ..model.header import read_header
from ..model.ollama import find_ollama_model
from ..model.placement import GPU_RESERVE_BYTES
from ..report.machine import available_bytes, gpu_free_bytes


class Choice(NamedTuple):
    """A model of the hub."""

    repo: str
    quantization: str | None
    """None: what the repository has"""
    size_bytes: int
    """about; what is fetched tells"""


QWEN3_8B, QWEN3_4B = "Qwen/Qwen3-8B-GGUF", "Qwen/Qwen3-4B-GGUF"
LARGEST_FIRST = (
    Choice(QWEN3_8B, "Q8_0", 8_709_518_112),
    Choice(QWEN3_8B, "Q4_K_M", 5_027_783_488),
    Choice(QWEN3_4B, "Q4_K_M", 2_500_000_000),
    Choice("Qwen/Qwen3-1.7B-GGUF", None, 1_830_000_000),
    Choice("Qwen/Qwen3-0.6B-GGUF", None, 640_000_000),
)
"""the models that are chosen from"""
_LARGEST_ON_CPU = 2_000_000_000
"""a larger file makes a CPU of few cores take seconds for a text"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A model as a configuration names it."""

    settings: dict[str, Any]
    """the keys of its section"""
    why: str
    """for the reader"""
    has_chat_template: bool = True


def given_model(path: str | None, repo: str | None) -> DraftModel | None:
    """The model that was named; None where none was. Raises ModelError for a file that is no model."""
    if path is not None:
        is_ollama = path.startswith(OLLAMA)
        file = find_ollama_model(path.removeprefix(OLLAMA)) if is_ollama else Path(path).expanduser().absolute()
        has_template = read_header(file).chat_template is not None
        why = "as given" if has_template else "as given; the file has no chat template, so the text below has no turns"
        return DraftModel(settings={"path": path if is_ollama else str(file)}, why=why, has_chat_template=has_template)
    return None if repo is None else DraftModel(settings={"hf_repo": repo}, why="as given")


def fitting_model() -> DraftModel:
    """The largest model of LARGEST_FIRST that fits the free memory of the GPUs; without a GPU a small one."""
    gpu = gpu_free_bytes()
    free = available_bytes() if gpu is None else gpu
    chosen = choose(free, on_gpu=gpu is not None)
    where = "of main memory, and no GPU" if gpu is None else "of GPU memory"
    larger = "; a larger one labels better and takes longer" if gpu is None else ""
    return DraftModel(
        settings={"hf_repo": chosen.repo}
        | ({} if chosen.quantization is None else {"quantization": chosen.quantization}),
        why=f"about {chosen.size_bytes / 1e9:.1f} GB, fetched once; chosen for {free / 1e9:.1f} GB {where}{larger}. "
        "`qcls-gguf models` lists those that are here",
    )


def choose(free_bytes: int, *, on_gpu: bool) -> Choice:
    """The largest model that fits; the smallest where none does."""
    for choice in LARGEST_FIRST:
        if choice.size_bytes + GPU_RESERVE_BYTES <= free_bytes and (on_gpu or choice.size_bytes <= _LARGEST_ON_CPU):
            return choice
    return LARGEST_FIRST[-1]
