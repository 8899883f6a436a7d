"""Put the pinned, patched llama.cpp tree at vendor/llama.cpp.

CMake runs this at configure time. The tree is a function of pin.toml and patches/: when neither changed, nothing is
done; when only a patch changed, unchanged files keep their times, so that a build compiles only what the patch touches.

    python vendor/fetch.py            fetch with pip, check, unpack, patch
    python vendor/fetch.py --pin      print version;commit of the pin, a CMake list, and do nothing else
    QCLS_LLAMA_CPP_SDIST=FILE …       take the sdist from FILE instead (a machine without a package registry)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

VENDOR = Path(__file__).resolve().parent
PATCHES = VENDOR.parent / "patches"
TREE = VENDOR / "llama.cpp"
STAMP = TREE / ".qcls-stamp"
DOWNLOADS = VENDOR / "downloads"

# Large folders that no build target reads; one vocabulary stays for the tests and the synthetic models.
# `.git` is a submodule's pointer, which leads git astray.
LEFT_OUT = (".git", "docs/", "media/", "benches/", "examples/", "models/")
KEPT = ("models/ggml-vocab-qwen2.gguf",)


def fail(message: str) -> NoReturn:
    """End the build with one clear line."""
    sys.exit(f"qcls-gguf: {message}")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def patch_files() -> list[Path]:
    names = [line.strip() for line in (PATCHES / "series").read_text().splitlines()]
    return [PATCHES / name for name in names if name and not name.startswith("#")]


def stamp_text(sha256: str) -> str:
    """What the unpacked tree depends on: the sdist and every patch, in order."""
    return "\n".join([f"sdist {sha256}"] + [f"{path.name} {sha256_of(path)}" for path in patch_files()]) + "\n"


@contextmanager
def alone() -> Iterator[None]:
    """While no other build changes the tree."""
    DOWNLOADS.mkdir(exist_ok=True)
    with (DOWNLOADS / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("-- qcls-gguf: waiting for another build that makes the source tree", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_made(wanted: str) -> bool:
    return STAMP.exists() and STAMP.read_text() == wanted


def check_sdist(path: Path, sha256: str) -> Path:
    if not path.is_file():
        fail(f"QCLS_LLAMA_CPP_SDIST={path}: no such file")
    found = sha256_of(path)
    if found != sha256:
        fail(
            f"{path}: wrong checksum: sha256 {found}, the pin in vendor/pin.toml wants {sha256}; "
            "remove the file and fetch it again, or give the sdist of the pinned version"
        )
    return path


def fetch_sdist(version: str, sha256: str) -> Path:
    """The checked sdist: the file named by the user, an earlier download, or a new one."""
    if given := os.environ.get("QCLS_LLAMA_CPP_SDIST"):
        return check_sdist(Path(given).expanduser(), sha256)
    path = DOWNLOADS / f"llama_cpp_python-{version}.tar.gz"
    if not path.exists():
        DOWNLOADS.mkdir(exist_ok=True)
        print(f"-- qcls-gguf: fetching llama-cpp-python {version} (73 MiB) with pip", flush=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=llama-cpp-python"]
        command += ["--quiet", "--disable-pip-version-check", f"--dest={DOWNLOADS}", f"llama-cpp-python=={version}"]
        if subprocess.run(command).returncode != 0 or not path.exists():
            fail(
                f"pip could not download llama-cpp-python {version} (its words are above); "
                "with no registry, set QCLS_LLAMA_CPP_SDIST to a copy of its sdist"
            )
    return check_sdist(path, sha256)


def unpack(sdist: Path) -> None:
    """Unpack vendor/llama.cpp of the sdist; file times are the archive's, so unchanged files stay unchanged."""
    shutil.rmtree(TREE, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        # Python up to 3.11.3 (Debian 12 has 3.11.2) knows no filters; what is unpacked has the pinned checksum.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        for member in archive:
            folder, _, name = member.name.partition("/vendor/llama.cpp/")
            if "/" in folder or not name or not member.isfile() or (name.startswith(LEFT_OUT) and name not in KEPT):
                continue
            member.name = name
            archive.extract(member, TREE)


def apply_patches() -> None:
    git, patch = shutil.which("git"), shutil.which("patch")
    if not git and not patch:
        fail("neither git nor patch is installed, and one of them is needed to apply patches/")
    # Outside any repository, as far as git can tell: inside one it would skip paths of an ignored folder silently.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(VENDOR)}
    for path in patch_files():
        command = [git, "apply", "-p1", str(path)] if git else [str(patch), "-p1", "--batch", "-i", str(path)]
        result = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True)
        if result.returncode != 0:
            shutil.rmtree(TREE)
            fail(f"patches/{path.name} does not apply to the pinned tree:\n{result.stdout}{result.stderr}")


def main(arguments: list[str]) -> None:
    with (VENDOR / "pin.toml").open("rb") as file:
        pins = tomllib.load(file)
    pin = pins["llama-cpp-python"]
    if arguments == ["--pin"]:
        print(f"{pin['version']};{pins['llama']['cpp']['commit']}")
        return
    if arguments:
        fail(f"vendor/fetch.py {' '.join(arguments)}: the only argument is --pin")
    wanted = stamp_text(pin["sha256"])
    if is_made(wanted):
        return
    with alone():
        if is_made(wanted):
            return
        sdist = fetch_sdist(pin["version"], pin["sha256"])
        print("-- qcls-gguf: unpacking and patching llama.cpp", flush=True)
        unpack(sdist)
        apply_patches()
        STAMP.write_text(wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
