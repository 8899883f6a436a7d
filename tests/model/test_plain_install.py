"""An installation without extras: every command works, or says which extra it needs."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from commands import PLAIN, write_plain_rows
from packaging.requirements import Requirement

MAIN = "import sys; sys.modules.update(dict.fromkeys({}.split())); from qcls_gguf.cli.command import main; main()"


def _add_needed(name: str, known: set[str]) -> None:
    """Add a distribution and all that it requires without extras."""
    if name not in known:
        known.add(name)
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                _add_needed(requirement.name.lower().replace("_", "-"), known)


@pytest.fixture(scope="module")
def not_there() -> str:
    """The modules that no distribution brings which the package requires."""
    needed: set[str] = set()
    _add_needed("qcls-gguf", needed)
    modules = metadata.packages_distributions().items()
    return " ".join(
        module for module, names in modules if not needed & {name.lower().replace("_", "-") for name in names}
    )


@pytest.mark.parametrize(("words", "code", "said"), PLAIN, ids=[words[:30] for words, _, _ in PLAIN])
def test_every_command_without_extras(words: str, code: int, said: str, not_there: str, tmp_path: Path) -> None:
    write_plain_rows(tmp_path)
    assert {"pyarrow", "matplotlib", "starlette", "sklearn", "pandas"} <= {*not_there.split()}
    command = [sys.executable, "-c", MAIN.format(repr(not_there)), *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
