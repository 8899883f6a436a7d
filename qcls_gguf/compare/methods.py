"""Every method by its name."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ConfigError
from .cappr import Cappr
from .child_process import InChild
from .http_peer import check_url
from .llama_python import LlamaPython
from .llama_server import LlamaServer
from .method import Method, Workload
from .ollama import Ollama
from .ours import Qcls
from .peers import Peers
from .stock import Batched, Naive, Prefix
from .torch_sdpa import TorchSdpa

QCLS = Qcls.name


METHODS: dict[str, Callable[[Workload, Peers], Method]] = {
    QCLS: lambda workload, _: Qcls(workload),
    Naive.name: lambda workload, _: Naive(workload),
    Prefix.name: lambda workload, _: Prefix(workload),
    Batched.name: lambda workload, _: Batched(workload),
    LlamaPython.name: lambda workload, _: InChild(LlamaPython(workload)),
    Cappr.name: lambda workload, _: InChild(Cappr(workload)),
    TorchSdpa.name: lambda workload, peers: InChild(TorchSdpa(workload, peers.hf_folder, synthetic=peers.synthetic)),
    LlamaServer.name: lambda workload, peers: LlamaServer(workload, peers.llama_server, peers.spawn_llama_server),
    Ollama.name: lambda workload, peers: Ollama(
        workload, peers.ollama, peers.ollama_model, other_weights=peers.other_weights
    ),
}


ON_OUR_MODEL = frozenset((Naive.name, Prefix.name, Batched.name))
"""those of other methods that decode on the model that is loaded for ours"""


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


def check_methods(names: tuple[str, ...]) -> tuple[str, ...]:
    """The named methods in the order of METHODS, ours always among them. Raises ConfigError for an unknown name."""
    for name in names:
        if name not in METHODS:
            raise ConfigError(f"`method` {name}: is not one of {', '.join(METHODS)}")
    return tuple(name for name in METHODS if name == QCLS or name in names)
