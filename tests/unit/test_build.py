"""The build: the patched tree and its log; and what an import of the package loads."""

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cases import cases
from conftest import RunPython

import qcls_gguf

VENDOR = Path(__file__).parents[2] / "vendor"
PATCH = """\
--- a/src/a.txt
+++ b/src/a.txt
@@ -1,2 +1,2 @@
 one
-two
+three
"""


class Project:
    """A copy of the fetch script beside a pin, a patch and an sdist of a few files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "vendor" / "llama.cpp"
        (folder / "vendor").mkdir()
        (folder / "patches").mkdir()
        shutil.copy(VENDOR / "fetch.py", folder / "vendor")
        sdist = folder / "sdist.tar.gz"
        self.environment = os.environ | {"QCLS_LLAMA_CPP_SDIST": str(sdist)}
        self.command = [sys.executable, str(folder / "vendor" / "fetch.py")]
        with tarfile.open(sdist, "w:gz") as archive:
            for name, text in {
                "p-1/vendor/llama.cpp/src/a.txt": "one\ntwo\n",
                "p-1/vendor/llama.cpp/docs/long.txt": "left out",
                "p-1/vendor/llama.cpp/.git": "gitdir: elsewhere",
                "p-1/.git/modules/vendor/llama.cpp/HEAD": "not the tree",
                "p-1/setup.txt": "not the tree",
            }.items():
                member = tarfile.TarInfo(name)
                member.size, member.mtime = len(text), 1_000_000_000
                archive.addfile(member, io.BytesIO(text.encode()))
        self.write_pin(hashlib.sha256(sdist.read_bytes()).hexdigest())
        self.write_patch(PATCH)

    def write_pin(self, sha256: str) -> None:
        (self.folder / "vendor" / "pin.toml").write_text(
            f'[llama-cpp-python]\nversion = "1"\nsha256 = "{sha256}"\nsize_bytes = 1\n'
        )

    def write_patch(self, text: str) -> None:
        (self.folder / "patches" / "series").write_text("# a comment\n0001.patch\n")
        (self.folder / "patches" / "0001.patch").write_text(text)

    def fetch(self, **environment: str) -> subprocess.CompletedProcess[str]:
        environment = self.environment | environment
        return subprocess.run(self.command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("is_repository", [False, True])
def test_unpacks_the_tree_and_patches_it(is_repository: bool, project: Project) -> None:
    if is_repository:
        subprocess.run(["git", "init", "-q"], cwd=project.folder, check=True)
        (project.folder / ".gitignore").write_text("/vendor/llama.cpp/\n")
    assert project.fetch().returncode == 0
    files = {str(path.relative_to(project.tree)) for path in project.tree.rglob("*") if path.is_file()}
    assert files == {"src/a.txt", ".qcls-stamp"}
    assert (project.tree / "src" / "a.txt").read_text() == "one\nthree\n"


def test_the_tree_is_made_anew_for_another_patch_alone(project: Project) -> None:
    project.fetch()
    (project.tree / "mark").touch()
    assert project.fetch(QCLS_LLAMA_CPP_SDIST="/nowhere").returncode == 0
    assert (project.tree / "mark").exists()
    project.write_patch(PATCH.replace("three", "four"))
    assert (project.fetch().returncode, (project.tree / "src" / "a.txt").read_text()) == (0, "one\nfour\n")


def test_two_builds_make_the_tree_one_after_the_other(project: Project) -> None:
    (project.folder / "vendor" / "downloads").mkdir()
    with (project.folder / "vendor" / "downloads" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = subprocess.Popen(project.command, env=project.environment, stdout=subprocess.PIPE, text=True)
        assert waiting.stdout is not None
        assert "waiting for another build" in waiting.stdout.readline()
        assert not project.tree.exists()
    assert "unpacking" in waiting.communicate()[0]
    assert (waiting.returncode, (project.tree / "src" / "a.txt").read_text()) == (0, "one\nthree\n")


def test_patch_that_does_not_apply_is_named_and_leaves_no_tree(project: Project) -> None:
    project.write_patch(PATCH.replace("-two", "-zwei"))
    result = project.fetch()
    assert result.returncode != 0
    assert "patches/0001.patch does not apply" in result.stderr
    assert not project.tree.exists()


BACKEND = """
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    print("*** Building project with Ninja...")
    for i in range(1, 21):
        print(f"[{i}/20] Building CXX object a.o")
    raise SystemExit("the compiler's last words")
"""


def test_the_build_tells_its_progress_and_shows_the_end_of_its_log_where_it_fails(tmp_path: Path) -> None:
    (tmp_path / "vendor").mkdir()
    shutil.copy(VENDOR / "install.py", tmp_path / "vendor")
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "x"\nversion = "1"\n'
    )
    command = [sys.executable, "vendor/install.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    lines = done.stdout.splitlines()
    assert lines[0] == "compiling …"
    steps = ["1 of 20 (5%)", *(f"{2 * i} of 20 ({i}0%)" for i in range(1, 11))]
    assert [line.partition(",")[0] for line in lines[1:-1]] == [f"compiling: {step}" for step in steps]
    assert lines[-1].startswith("failed in ")
    assert "the compiler's last words" in done.stderr
    assert f"all of it: {tmp_path / 'build' / 'install.log'}" in done.stderr


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'qcls_gguf' has no attribute 'Clasifier'"):
        _ = qcls_gguf.Clasifier  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        exec("from qcls_gguf import Clasifier")


def test_tables_say_which_package_they_need(run_python: RunPython) -> None:
    done = run_python("import sys; sys.modules['pyarrow'] = None; import qcls_gguf.labelling")
    assert "ImportError: qcls_gguf.labelling needs pyarrow: pip install 'qcls-gguf[label]'" in done.stderr


HELP = """
from typer.testing import CliRunner
from qcls_gguf.cli.app import app
import sys
assert "pydantic" not in sys.modules  # which typer itself imports for the options of a command
for words in (["--help"], ["run", "--help"], ["bench", "--help"]):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and "Usage" in result.output, result.output
"""


@cases(
    ("from qcls_gguf import QclsError", ["numpy", "pydantic", "qcls_gguf.native"]),
    ("from qcls_gguf import Classifier", ["asyncio", "gguf", "huggingface_hub", "rich"]),
    (HELP, ["numpy", "qcls_gguf.config.load", "qcls_gguf.classifier", "rich"]),
)
def test_what_is_not_needed_is_not_imported(code: str, others: list[str], run_python: RunPython) -> None:
    """To catch errors, what computes; for a classifier, what only some users need; for help, what computes."""
    done = run_python(f"{code}\nimport sys\nprint('MODULES', *sys.modules)")
    assert done.returncode == 0, done.stderr
    assert not {*others} & {*done.stdout.rpartition("MODULES")[2].split()}
