"""What the first command shows while it builds: how far it is, and the end of the log where it fails."""

import shutil
import subprocess
import sys
from pathlib import Path

INSTALL = Path(__file__).parents[2] / "vendor" / "install.py"
BACKEND = """
def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    print("*** Building project with Ninja...")
    for i in range(1, 21):
        print(f"[{i}/20] Building CXX object a.o")
    raise SystemExit("the compiler's last words")
def get_requires_for_build_editable(config_settings=None):
    return []
def build_wheel(*args, **kwargs):
    raise SystemExit(1)
"""


def test_the_build_tells_its_progress_and_shows_the_end_of_its_log_where_it_fails(tmp_path: Path) -> None:
    (tmp_path / "vendor").mkdir()
    shutil.copy(INSTALL, tmp_path / "vendor")
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
    assert [line.partition(",")[0] for line in lines[1:-1]] == [
        "compiling: 1 of 20 (5%)",
        *(f"compiling: {2 * i} of 20 ({i}0%)" for i in range(1, 11)),
    ]
    assert lines[-1].startswith("failed in ")
    assert "the compiler's last words" in done.stderr
    assert f"all of it: {tmp_path / 'build' / 'install.log'}" in done.stderr
