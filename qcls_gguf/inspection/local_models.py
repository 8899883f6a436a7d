"""The models that this machine has, as a record and a table, and whether they fit its memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..config.words import abbreviated
from ..errors import ModelError
from ..model.files import ModelFile, Source
from ..report.document import TEXT, Document, Table
from ..report.environment import model_room
from ..report.record import Record


class ModelOnDisk(Record):
    """A GGUF model that could be used."""

    source: Source
    """where it was found: in this package, another Python package, Ollama's store, or the Hugging Face hub's cache"""
    name: str
    """what `model` or, for the hub, `hf_repo` takes"""
    path: str
    """the GGUF file, of a split model the first"""
    arch: str | None = None
    """the architecture, such as qwen3, or `qwen3 (lev)` of a decision model; null, as all below, where the file cannot
    be used"""
    n_parameters: int | None = None
    """its weights"""
    quantization: str | None = None
    """such as Q4_K_M"""
    size_bytes: int | None = None
    """of all its parts"""
    fits: bool | None = None
    """whether the weights fit into the free memory named in `memory`, with 1 GiB of each GPU, or of RAM, for all else;
    prompts may need more"""
    error: str | None = None
    """why the file cannot be used"""


class ModelsRecord(Record):
    """The models of this machine."""

    memory: str
    """`GPU`, or `RAM` where there is none: where a model is to fit"""
    free_bytes: int
    """what is free there"""
    models: tuple[ModelOnDisk, ...]
    """the embedded model first, then those of packages, Ollama's, and the hub's"""


def models_record(found: Iterable[tuple[Source, str, Path]]) -> ModelsRecord:
    """Each model, as `local_models` finds it, beside the memory that is free at this moment. Headers are read."""
    room = model_room()
    return ModelsRecord(
        memory="GPU" if room.on_gpu else "RAM",
        free_bytes=room.free_bytes,
        models=tuple(_on_disk(*model, room.weights_bytes) for model in found),
    )


def _on_disk(source: Source, name: str, path: Path, weights_bytes: int) -> ModelOnDisk:
    try:
        file = ModelFile.read(path)
    except ModelError as e:
        return ModelOnDisk(source=source, name=name, path=str(path), error=str(e))
    return ModelOnDisk(
        source=source,
        name=name,
        path=str(path),
        arch=file.header.purpose,
        n_parameters=file.n_parameters,
        quantization=file.header.quantization,
        size_bytes=file.size_bytes,
        fits=file.size_bytes <= weights_bytes,
    )


def models_document(record: ModelsRecord) -> Document:
    """A row a model; files that cannot be used are not in it."""
    texts = dict.fromkeys(("model", "architecture", "quantisation"), TEXT)
    columns = {**texts, "parameters": "", "GB": ".2f", f"fits {record.memory}": ""}
    rows = [
        [
            *(model.name, model.arch, model.quantization, abbreviated(model.n_parameters or 0)),
            *((model.size_bytes or 0) / 1e9, "yes" if model.fits else "no"),
        ]
        for model in record.models
        if model.error is None
    ]
    return Document(title="Models on this machine", parts=[Table(columns=columns, rows=rows)])
