"""llama-cpp-python's `Llama` on this package's library: its high-level class, prompt after prompt.

LLAMA_CPP_LIB_PATH names our library, so no second copy of it is loaded. The model is loaded a second time, since the
class takes a path.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..native import build_info, library_folder
from ..native.device import cpu_variant
from . import Peers
from .method import AbsentError, Answer, Method, Workload, WorkloadPrompt

_INSTALL = (
    "CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install 'qcls-gguf[peers]', which compare gives this package's library; "
    "elsewhere LLAMA_CPP_LIB_PATH names it (docs/building.md)"
)


def _import_llama_cpp() -> Any:
    """The module, on our library. Raises AbsentError."""
    if importlib.util.find_spec("llama_cpp") is None:
        raise AbsentError(f"llama-cpp-python is not installed: {_INSTALL}")
    from importlib.metadata import version as version_of  # takes long to load, and only this method asks

    version, wanted = version_of("llama_cpp_python"), build_info().llama_cpp_python_version
    if version != wanted:
        raise AbsentError(f"llama-cpp-python {version} does not fit the library, which is that of {wanted}: {_INSTALL}")
    os.environ["LLAMA_CPP_LIB_PATH"] = str(library_folder())
    cpu_variant()  # loads the CPU code of a portable build, which llama-cpp-python does not
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as e:
        raise AbsentError(f"llama-cpp-python cannot be imported: {e}") from e
    return llama_cpp


class LlamaPython(Method):
    """`Llama.generate` of one token a prompt, whose own prefix match keeps what two prompts in turn begin with."""

    def __init__(self, workload: Workload, peers: Peers) -> None:
        self._workload, self._module = workload, _import_llama_cpp()
        n_ctx = max(256, workload.n_longest + 2)
        self._llama = self._module.Llama(
            model_path=workload.model.path,
            n_ctx=n_ctx,
            n_batch=n_ctx,
            n_ubatch=n_ctx,
            n_threads=workload.n_threads,
            n_threads_batch=workload.n_threads,
            n_gpu_layers=workload.model.n_gpu_layers,
            flash_attn=workload.flash_attn is not False,
            verbose=False,
        )

    def _rows(self, prompt: WorkloadPrompt, query: str) -> Iterator[npt.NDArray[np.float32]]:
        """At each read node the logits (n_vocab,), a view that the next one overwrites."""
        compiled = prompt.compiled
        text = (compiled.before + query + compiled.after).encode()
        fragment = self._llama.tokenize(text, add_bos=False, special=False) if text else []
        for node in prompt.trie.read:
            tokens = [*compiled.head, *fragment, *compiled.tail, *prompt.node_path(node)]
            next(self._llama.generate(tokens, temp=0.0))
            pointer = self._module.llama_get_logits_ith(self._llama.ctx, -1)
            yield np.asarray(np.ctypeslib.as_array(pointer, shape=(self._llama.n_vocab(),)))

    def ask(self, query: str, exact: bool = False) -> list[Answer]:
        prompts = self._workload.prompts
        return [prompt.answer_of_rows(self._rows(prompt, query), exact=exact) for prompt in prompts]

    def remarks(self) -> list[str]:
        n = sum(len(prompt.trie.read) for prompt in self._workload.prompts)
        return [f"{n} decodes a request: one for each choice between labels; the model is loaded a second time"]

    def close(self) -> None:
        self._llama.close()
