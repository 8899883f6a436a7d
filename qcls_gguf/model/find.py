"""Where the file of a configured model lies."""

from __future__ import annotations

from pathlib import Path

from ..config.resources import embedded_model
from ..config.schema import ModelConfig
from .ollama import find_ollama_model


def find_model(model: ModelConfig, *, offline: bool) -> Path:
    """The model's file: the one named, Ollama's, one of the hub, or the embedded one.

    Raises ConfigError or ModelError.
    """
    if model.ollama:
        return find_ollama_model(model.ollama)
    if model.hf_repo:
        from .hub import fetch_model  # most models are files

        return fetch_model(
            model.hf_repo, quantization=model.quantization, revision=model.revision, offline=offline, progress=True
        )
    return model.path or embedded_model()
