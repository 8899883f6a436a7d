"""Every way by its name, and what each needs from the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .cappr_way import Cappr
from .http_peer import check_url
from .llama_python import LlamaPython
from .llama_server import LlamaServer
from .ollama import Ollama
from .ours import Qcls
from .stock import Batched, Naive, Prefix
from .torch_sdpa import TorchSdpa
from .way import Task, Way

QCLS = Qcls.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Where the peers are that do not come with a package."""

    llama_server: str | None = None
    spawn_llama_server: Path | None = None
    ollama: str | None = None
    ollama_model: str | None = None
    hf_folder: Path | None = None
    synthetic: bool = False


WAYS: dict[str, Callable[[Task, Peers], Way]] = {
    QCLS: lambda task, _: Qcls(task),
    Naive.name: lambda task, _: Naive(task),
    Prefix.name: lambda task, _: Prefix(task),
    Batched.name: lambda task, _: Batched(task),
    LlamaPython.name: lambda task, _: LlamaPython(task),
    Cappr.name: lambda task, _: Cappr(task),
    TorchSdpa.name: lambda task, peers: TorchSdpa(task, peers.hf_folder, synthetic=peers.synthetic),
    LlamaServer.name: lambda task, peers: LlamaServer(task, peers.llama_server, peers.spawn_llama_server),
    Ollama.name: lambda task, peers: Ollama(task, peers.ollama, peers.ollama_model),
}


def check_peers(peers: Peers) -> None:
    """Refuse options that contradict each other or lead nowhere. Raises ConfigError."""
    if peers.llama_server is not None and peers.spawn_llama_server is not None:
        raise ConfigError("`llama_server` and `spawn_llama_server` are both given: keep one of them")
    if peers.hf_folder is not None and peers.synthetic:
        raise ConfigError("`hf_folder` and `synthetic` are both given: keep one of them")
    if (peers.ollama is None) != (peers.ollama_model is None):
        raise ConfigError("`ollama` and `ollama_model` belong together: give both or neither")
    for url, name in ((peers.llama_server, "`llama_server`"), (peers.ollama, "`ollama`")):
        if url is not None:
            check_url(url, name)
    if peers.hf_folder is not None and not (peers.hf_folder / "config.json").is_file():
        raise ConfigError(f"`hf_folder` {peers.hf_folder}: has no config.json: give a model's folder of Hugging Face")


def check_ways(names: tuple[str, ...]) -> tuple[str, ...]:
    """The ways that were asked for, ours first. Raises ConfigError for a name that none has."""
    for name in names:
        if name not in WAYS:
            raise ConfigError(f"`way` {name}: is not one of {', '.join(WAYS)}")
    return tuple(name for name in WAYS if name == QCLS or name in names)
