"""Whether the compiled code can run on this processor; otherwise it would kill the process without a message."""

from __future__ import annotations

import ctypes
from pathlib import Path

from ..errors import ModelError


def lacking(needs: str, has: str) -> tuple[str, ...]:
    """The instruction sets that are needed but missing; both arguments are names separated by spaces."""
    there = set(has.split())
    return tuple(name for name in needs.split() if name not in there)


def check_processor(path: Path) -> None:
    """Ask the library at this path, which every processor can load, whether this processor can run the others.

    Raises ModelError if it cannot.
    """
    if names := lacking(*needs_and_has(path)):
        raise ModelError(
            f"{path.parent}: was compiled for a processor with {', '.join(names)}, which this one lacks: build it on "
            "this machine (pip install . in the source tree), or for every processor (QCLS_PORTABLE=ON pip install ., "
            "or a wheel by make wheel)"
        )


def needs_and_has(path: Path) -> tuple[str, str]:
    """The instruction sets that the CPU code needs, and those that this processor has and the system lets it use.

    Raises ModelError where the library cannot be loaded.
    """
    return _text(path, "qcls_processor_needs"), _text(path, "qcls_processor_has")


def _text(path: Path, name: str) -> str:
    try:
        function = getattr(ctypes.CDLL(str(path)), name)
    except (OSError, AttributeError) as e:
        raise ModelError(f"{path} cannot be loaded: {e}: install the package again") from None
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode()
