"""The compiled library: where it is, what it was built from, and llama.cpp's log."""

import ctypes
import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import ModelError
from . import abi
from .abi import LOG_FUNCTION, Error, bind, check

_NAME = "libqcls.dylib" if sys.platform == "darwin" else "libqcls.so"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInfo:
    """What the loaded library was built from."""

    llama_cpp_commit: str
    llama_cpp_python_version: str
    source_digest: str
    """The first 16 hex digits of a sha256 over the checksums of the sdist, every patch, and the kernels they call."""
    backend: str
    max_sequences: int
    """that a context can have"""

    @property
    def is_cuda(self) -> bool:
        return self.backend.startswith("CUDA")

    @property
    def architectures(self) -> tuple[str, ...]:
        """Of GPUs, as in CUDAARCHS, such as 75 or 86-real; none in a build for CPUs."""
        return tuple(self.backend.partition("architectures ")[2].split())


def library_folder() -> Path:
    """The folder that holds libqcls and the patched libllama.

    Raises ModelError where the package was not built.
    """
    # An editable install keeps the compiled files apart from the sources: the package's path names both.
    for folder in sys.modules[__package__].__path__:
        if (Path(folder) / "lib" / _NAME).is_file():
            return Path(folder) / "lib"
    raise ModelError(f"{_NAME} is not installed beside {__package__}: build the package with pip install")


@cache
def library() -> Any:
    """libqcls, loaded once.

    Raises ModelError if it is missing, has another ABI, or was compiled for another kind of processor.
    """
    folder = library_folder()
    check_processor(folder / f"libqcls-processor{Path(_NAME).suffix}")
    return bind(folder / _NAME)


def check_processor(path: Path) -> None:
    """Ask the library at this path, which every processor can load, whether this processor can run the others.

    Raises ModelError if it cannot: it would kill the process without a message.
    """
    if names := processor_text(path, "qcls_processor_lacks").split():
        what = f"{path.parent}: was compiled for a processor with {', '.join(names)}, which this one lacks"
        how = "on this machine (pip install . in the source tree), or for every processor (QCLS_PORTABLE=ON)"
        raise ModelError(f"{what}: build it {how}")


def processor_text(path: Path, name: str) -> str:
    """What a function of the library says of this processor. Raises ModelError if the library cannot be loaded."""
    try:
        function = getattr(ctypes.CDLL(str(path)), name)
    except (OSError, AttributeError) as e:
        raise ModelError(f"{path} cannot be loaded: {e}: install the package again") from None
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode()


def call(name: str, *arguments: Any, path: Path | None = None) -> None:
    """Call a function of the library. Raises the error of its status, with the file if one is given."""
    error = Error()
    check(getattr(library(), name)(*arguments, byref(error)), error, path)


@cache
def build_info() -> BuildInfo:
    """What the loaded library was built from."""
    built = abi.Library()
    call("qcls_library_describe", byref(built))
    return built.to(BuildInfo)


log = logging.getLogger("qcls_gguf.llama")
"""What llama.cpp says while it loads a model."""
logging.getLogger("qcls_gguf").addHandler(logging.NullHandler())  # quiet unless somebody listens
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_NOTHING = re.compile(r"^\w+: +|\*{4,}")  # the names of functions, and lines around other lines
_n_loads, _loads_lock = 0, threading.Lock()


def _pass_on(level: int, text: bytes, _user: Any) -> None:
    number = _LEVELS.get(level, logging.DEBUG)
    if log.isEnabledFor(number) and (words := _NOTHING.sub("", text.decode(errors="replace")).strip(" .\n")):
        log.log(number, "%s", words)


_forward_log = LOG_FUNCTION(_pass_on)  # never replaced: C may be calling it while the log is changed


@contextmanager
def heard() -> Iterator[None]:
    """What llama.cpp says inside goes to `log`."""
    global _n_loads
    with _loads_lock:
        _n_loads += 1
        call("qcls_set_log", _forward_log, None)
    try:
        yield
    finally:
        with _loads_lock:
            _n_loads -= 1
            if _n_loads == 0:
                call("qcls_set_log", LOG_FUNCTION(), None)
