"""What a wheel must hold, and what it must not: `make wheel` runs this on the one that it built."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

SOURCES = (".c", ".cpp", ".cc", ".h", ".hpp", ".cu", ".cuh", ".patch")
LIBRARIES = ("libqcls", "libllama", "libggml", "libggml-base", "libggml-cpu")
TRIAL = "qcls_gguf/native/lib/qcls-trial"
TEXTS = (
    "qcls_gguf/native/lib/NOTICE",
    "qcls_gguf/native/lib/LICENSE.llama.cpp",
    "qcls_gguf/py.typed",
    "qcls_gguf/configs/fashion-8.yaml",
    "qcls_gguf/configs/config.schema.json",
)
PROGRAM = """\
from qcls_gguf import Classifier, QclsError, Result

with Classifier.from_config() as classifier:
    answer: Result = classifier.classify("red dress")
    labels: dict[str, str] = answer.labels
    both: list[Result] = classifier.classify_batch(["red dress"])
    some: list[Result | QclsError] = classifier.classify_batch(["red dress"], errors="return")
    classifier.classify(7)
"""
"""what a user's mypy must accept, but for its last line"""


def faults(names: Sequence[str]) -> list[str]:
    """A line for each file of a wheel that should not be there, and for each that is missing."""
    paths = [PurePosixPath(name) for name in names]
    stems = {path.stem for path in paths if path.parent == PurePosixPath("qcls_gguf/native/lib")}
    found = [f"{path} is a source" for path in paths if path.suffix in SOURCES and str(path) not in TEXTS]
    found += [f"{path} is of no use in it" for path in paths if path.name == "README.md"]
    found += [f"{name} is missing" for name in LIBRARIES if name not in stems]
    found += [f"{name} is missing" for name in (*TEXTS, TRIAL) if name not in names]
    if not any(path.name == "qcls-gguf" and path.parent.name == "scripts" for path in paths):
        found.append("the command is missing")
    if not any(path.suffix == ".gguf" for path in paths):
        found.append("the embedded model is missing")
    return found


def untyped(wheel: str) -> str | None:
    """What mypy, in a fresh environment with the wheel, says of a program other than that its last line is wrong."""
    with TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, str(Path(wheel).resolve()), "mypy"], check=True)
        (Path(folder) / "program.py").write_text(PROGRAM)
        command = [python, "-m", "mypy", "--strict", "program.py"]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
    errors = [line for line in said.splitlines() if "error:" in line]
    last = f"program.py:{len(PROGRAM.splitlines())}:"
    return None if len(errors) == 1 and errors[0].startswith(last) and "[arg-type]" in errors[0] else said


def main(path: str, *options: str) -> None:
    with zipfile.ZipFile(path) as wheel:
        lines = faults(wheel.namelist())
        if TRIAL in wheel.namelist() and not wheel.getinfo(TRIAL).external_attr >> 16 & 0o100:
            lines.append(f"{TRIAL} is not executable")
    if lines:
        sys.exit("\n".join(f"{path}: {line}" for line in lines))
    print(f"{path}: libraries, models and Python files, no sources")
    if "--types" in options:
        if said := untyped(path):
            sys.exit(f"{path}: its types are not what a program needs:\n{said}")
        print(f"{path}: typed, for mypy in a fresh environment")


if __name__ == "__main__":
    main(*sys.argv[1:])
