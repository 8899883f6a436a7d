"""Whether the compiled code can run on this processor; otherwise it would kill the process without a message."""

from __future__ import annotations

import ctypes
from pathlib import Path

from ..errors import ModelError


def check_processor(path: Path) -> None:
    """Ask the library at this path, which every processor can load, whether this processor can run the others.

    Raises ModelError if it cannot.
    """
    if names := processor_text(path, "qcls_processor_lacks").split():
        raise ModelError(
            f"{path.parent}: was compiled for a processor with {', '.join(names)}, which this one lacks: build it on "
            "this machine (pip install . in the source tree), or for every processor (QCLS_PORTABLE=ON pip install ., "
            "or a wheel by make wheel)"
        )


def processor_text(path: Path, name: str) -> str:
    """What a function of the library says of this processor. Raises ModelError if the library cannot be loaded."""
    try:
        function = getattr(ctypes.CDLL(str(path)), name)
    except (OSError, AttributeError) as e:
        raise ModelError(f"{path} cannot be loaded: {e}: install the package again") from None
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode()
