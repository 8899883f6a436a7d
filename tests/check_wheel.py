"""What a wheel must hold, and what it must not: `make wheel` runs this on the one that it built.

    python tests/check_wheel.py WHEEL [--tag] [--run]

--tag: name it for the C library that it needs, so that pip takes it on no system with an older one. --run tries it in a
fresh environment.
"""

import json
import os
import platform
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from commands import PLAIN, write_plain_rows

SOURCES = (".c", ".cpp", ".cc", ".h", ".hpp", ".cu", ".cuh", ".patch")
LIBRARIES = ("libqcls", "libqcls-processor", "libllama", "libggml", "libggml-base")
CPU = "libggml-cpu"
"""the CPU code of a build for one kind of processor; a portable one has variants, such as libggml-cpu-haswell"""
VARIANTS = {"x86_64": ("x64", "haswell", "sapphirerapids"), "aarch64": ("armv8.0_1", "armv8.2_2", "armv9.2_2")}
"""that every portable build for a machine has: for any processor, for a usual one, for the newest"""
TRIAL = "qcls_gguf/native/lib/qcls-trial"
TEXTS = (
    "qcls_gguf/native/src/qcls.h",
    "qcls_gguf/native/messages.txt",
    "qcls_gguf/config/removed.txt",
    "qcls_gguf/drafting/wordings.yaml",
    "qcls_gguf/report/page.html",
    "qcls_gguf/native/lib/NOTICE",
    "qcls_gguf/native/lib/LICENSE.llama.cpp",
    "qcls_gguf/py.typed",
    "qcls_gguf/configs/fashion-8.yaml",
    "qcls_gguf/configs/config.schema.json",
)


def faults(names: Sequence[str], machine: str) -> list[str]:
    """A line for each file of a wheel for a machine that should not be there, and for each that is missing."""
    paths = [PurePosixPath(name) for name in names]
    stems = {path.stem for path in paths if path.parent == PurePosixPath("qcls_gguf/native/lib")}
    found = [f"{path} is a source" for path in paths if path.suffix in SOURCES and str(path) not in TEXTS]
    found += [f"{path} is of no use in it" for path in paths if path.name == "README.md"]
    cpu_code = [] if CPU in stems else [f"{CPU}-{name}" for name in VARIANTS[machine]]
    found += [f"{name} is missing" for name in (*LIBRARIES, *cpu_code) if name not in stems]
    found += [f"{name} is missing" for name in (*TEXTS, TRIAL) if name not in names]
    if not any(path.name == "LICENSE" and path.parent.parent.suffix == ".dist-info" for path in paths):
        found.append("this project's LICENSE is missing")
    if not any(path.name == "qcls-gguf" and path.parent.name == "scripts" for path in paths):
        found.append("the command is missing")
    if not any(path.suffix == ".gguf" for path in paths):
        found.append("the embedded model is missing")
    return found


def output_of(*words: str) -> str:
    """What a Python module, run with these words, prints."""
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True).stdout


def run_bare(wheel: str) -> None:
    """Run every command in a fresh environment without extras, in which no program but the wheel's own is found."""
    with TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        bin_folder = f"{folder}/bin"
        install = [f"{bin_folder}/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, str(Path(wheel).resolve())], check=True)
        environment = {"PATH": bin_folder, "HOME": folder, "LANG": os.environ.get("LANG", "C.UTF-8")}
        write_plain_rows(Path(folder))
        for words, code, said in PLAIN:
            print("$ qcls-gguf", words, flush=True)
            command = [f"{bin_folder}/qcls-gguf", *words.split()]
            done = subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode != code or said not in done.stderr:
                sys.exit(f"exit code {done.returncode}, wanted {code} and {said!r}: {done.stderr}")


def main(path: str, *options: str) -> None:
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        lines = faults(names, platform.machine())
        if TRIAL in names and not wheel.getinfo(TRIAL).external_attr >> 16 & 0o100:
            lines.append(f"{TRIAL} is not executable")
    if lines:
        sys.exit("\n".join(f"{path}: {line}" for line in lines))
    n_variants = sum(PurePosixPath(name).stem.startswith(f"{CPU}-") for name in names)
    what = f"CPU code in {n_variants} variants" if n_variants else "CPU code for one kind of processor"
    print(f"{path}: {Path(path).stat().st_size / 1e6:.1f} MB, {what}, models and Python files, licences, no sources")
    # `sym_tag`: the platforms whose C library is new enough; `external_libs`: what is not the system's
    found = json.loads(output_of("auditwheel", "show", "--json", path))
    # a build for CUDA needs libraries that come with the toolkit and the driver
    with_cuda = any(PurePosixPath(name).stem == "libggml-cuda" for name in names)
    theirs = r"lib(cuda|cudart|cublas|cublasLt)\.so"
    if needed := [name for name in found["external_libs"] if not (with_cuda and re.match(theirs, name))]:
        sys.exit(f"{path}: needs libraries that others may not have: {', '.join(needed)}")
    print(f"{path}: auditwheel: {found['sym_tag']}, needs {', '.join(found['external_libs']) or 'nothing else'}")
    if "--tag" in options:
        name = output_of("wheel", "tags", "--remove", "--platform-tag", found["sym_tag"], path).strip()
        path = str(Path(path).parent / name)
        print(f"{path}: its name for pip")
    if "--run" in options:
        run_bare(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
