"""The same prompts, labels and queries by other methods, timed request by request in one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Where the programs and weights are that do not come with a Python package, and what kernels run."""

    kernels: Literal["stock", "ours"] = "stock"
    """those of the other methods that use this llama.cpp"""
    llama_server: str | None = None
    """URL of a running llama-server"""
    spawn_llama_server: Path | None = None
    """a llama-server program to start and stop"""
    ollama: str | None = None
    """URL of a running Ollama"""
    ollama_model: str | None = None
    """its name for the model, made from the same file"""
