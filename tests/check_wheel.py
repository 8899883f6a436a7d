"""What a wheel must hold, and what it must not: `make wheel` runs this on the one that it built."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from pathlib import PurePosixPath

SOURCES = (".c", ".cpp", ".cc", ".h", ".hpp", ".cu", ".cuh", ".patch")
LIBRARIES = ("libqcls", "libllama", "libggml", "libggml-base", "libggml-cpu")
TRIAL = "qcls_gguf/native/lib/qcls-trial"
TEXTS = ("qcls_gguf/native/lib/NOTICE", "qcls_gguf/native/lib/LICENSE.llama.cpp")


def faults(names: Sequence[str]) -> list[str]:
    """A line for each file of a wheel that should not be there, and for each that is missing."""
    paths = [PurePosixPath(name) for name in names]
    stems = {path.stem for path in paths if path.parent == PurePosixPath("qcls_gguf/native/lib")}
    found = [f"{path} is a source" for path in paths if path.suffix in SOURCES and str(path) not in TEXTS]
    found += [f"{path} is of no use in it" for path in paths if path.name == "README.md"]
    found += [f"{name} is missing" for name in LIBRARIES if name not in stems]
    found += [f"{name} is missing" for name in (*TEXTS, TRIAL) if name not in names]
    if not any(path.suffix == ".gguf" for path in paths):
        found.append("the embedded model is missing")
    return found


def main(path: str) -> None:
    with zipfile.ZipFile(path) as wheel:
        lines = faults(wheel.namelist())
        if TRIAL in wheel.namelist() and not wheel.getinfo(TRIAL).external_attr >> 16 & 0o100:
            lines.append(f"{TRIAL} is not executable")
    if lines:
        sys.exit("\n".join(f"{path}: {line}" for line in lines))
    print(f"{path}: libraries, models and Python files, no sources")


if __name__ == "__main__":
    main(*sys.argv[1:])
