"""The models that this machine has, as a record and a table, and whether they fit its memory."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from ..config.words import JsonObject, abbreviated
from ..errors import ModelError
from ..model.files import ModelFile
from ..model.find import Source
from ..report.document import TEXT, Document, Table
from ..report.environment import free_memory
from ..report.record import Record


class ModelOnDisk(Record):
    """A GGUF model that could be used."""

    source: Source = Field(description="this package, another Python package, Ollama's store, or the hub's cache")
    name: str = Field(description="what `model` or, for the hub, `hf_repo` takes")
    path: str = Field(description="the GGUF file, of a split model the first")
    arch: str | None = Field(default=None, description="such as qwen3; null, as all below, where it cannot be used")
    n_parameters: int | None = Field(default=None, description="its weights")
    quantization: str | None = Field(default=None, description="such as Q4_K_M")
    size_bytes: int | None = Field(default=None, description="of all its parts")
    fits: bool | None = Field(default=None, description="whether the weights fit into free memory, with 1 GiB to spare")
    error: str | None = Field(default=None, description="why the file cannot be used")


class ModelsRecord(Record):
    """The models of this machine."""

    memory: str = Field(description="`GPU`, or `RAM` where there is none: where a model is to fit")
    free_bytes: int = Field(description="what is free there")
    models: tuple[ModelOnDisk, ...] = Field(description="the embedded one, then those of packages, Ollama's, the hub's")


def models_record(models: Iterable[tuple[Source, str, Path]]) -> ModelsRecord:
    """The models that `local_models` finds, beside the memory that is free at this moment. Headers are read."""
    memory = free_memory()
    found = []
    for source, name, path in models:
        about: JsonObject
        try:
            file = ModelFile.read(path)
            kind = file.header.decision_kind
            arch = file.header.arch if kind is None else f"{file.header.arch} ({kind})"
            about = {"arch": arch, "n_parameters": file.n_parameters, "size_bytes": file.size_bytes}
            about |= {"quantization": file.header.quantization, "fits": file.size_bytes <= memory.weights_bytes}
        except ModelError as e:
            about = {"error": str(e)}
        found.append(ModelOnDisk(source=source, name=name, path=str(path), **about))
    kind = "GPU" if memory.on_gpu else "RAM"
    return ModelsRecord(memory=kind, free_bytes=memory.free_bytes, models=tuple(found))


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
