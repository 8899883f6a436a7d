"""Install the package of this folder into the environment that runs this, and show how far the compiler has come.

    python vendor/install.py [EXTRAS]           EXTRAS: such as dev
    python vendor/install.py --packages-only    what the package and its checks import, without the package

pip is silent while it builds, for minutes the first time. On a terminal one line tells the progress, elsewhere a line
for each tenth. All that pip and the compiler say is in build/install.log, whose end is shown where they fail.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "build" / "install.log"
_STEP = re.compile(r"\[(\d+)/(\d+)\] ")
_STAGES = (
    ("-- qcls-gguf: fetching", "fetching the sources of llama.cpp"),
    ("Configuring CMake", "looking at the compiler"),
    ("Building project with", "compiling"),
)
_SHOWN_AT_THE_END = 40


class Progress:
    """One line that changes on a terminal, else a line for each tenth."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._is_terminal = sys.stdout.isatty()
        self._tenth = -1

    def stage(self, what: str) -> None:
        """A stage begins."""
        if not self._is_terminal:
            print(f"{what} …", flush=True)
        else:
            print(f"\r\033[K{what} …", end="", flush=True)

    def step(self, done: int, total: int) -> None:
        """So many of the compiler's steps are done."""
        text = f"compiling: {done} of {total} ({done / total:.0%}), {self._minutes()}"
        if self._is_terminal:
            print(f"\r\033[K{text}", end="", flush=True)
        elif total >= 10 and (tenth := done * 10 // total) > self._tenth:
            self._tenth = tenth
            print(text, flush=True)

    def end(self, what: str) -> None:
        """All is done."""
        print(f"{chr(13) + chr(27) + '[K' if self._is_terminal else ''}{what} in {self._minutes()}", flush=True)

    def _minutes(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def main(extras: str = "") -> None:
    """Install, and end with pip's exit code."""
    if extras == "--packages-only":
        sys.exit(subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *_packages()]).returncode)
    package = f".[{extras}]" if extras else "."
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-build-isolation"]
    LOG.parent.mkdir(exist_ok=True)
    progress = Progress()
    lock = LOG.with_suffix(".lock").open("w")  # until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress.stage("waiting for another build in this folder")
        fcntl.flock(lock, fcntl.LOCK_EX)
    with (
        LOG.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [*pip, "--verbose", "--editable", package],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if found := _STEP.search(line):
                progress.step(int(found[1]), int(found[2]))
            for words, stage in _STAGES:
                if words in line:
                    progress.stage(stage)
    progress.end("installed" if process.returncode == 0 else "failed")
    if process.returncode != 0:
        lines = LOG.read_text(encoding="utf-8").splitlines()
        print("\n".join(lines[-_SHOWN_AT_THE_END:]), f"\n\nall of it: {LOG}", file=sys.stderr)
    sys.exit(process.returncode)


def _packages() -> list[str]:
    """The requirements of the package and of its checks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    checks = [requirement for name in ("label", "serve", "dev") for requirement in extras[name]]
    return [*project["dependencies"], *(name for name in checks if not name.startswith(project["name"]))]


if __name__ == "__main__":
    main(*sys.argv[1:])
