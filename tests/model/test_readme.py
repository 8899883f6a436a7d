"""The README's commands and files exist and work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qcls_gguf import load_config
from qcls_gguf.config.load import parse_config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def test_files_that_it_names_exist() -> None:
    named = set(re.findall(r"`((?:configs|models|vendor|patches)/[\w./-]*)`", README))
    assert len(named) >= 4
    for name in named:
        assert (ROOT / name).exists(), name


def test_configs_that_it_names_load() -> None:
    named = set(re.findall(r"configs/[\w-]+\.yaml", README))
    assert {"configs/fashion-8.yaml", "configs/mission.yaml", "configs/qwen3-8b-t4.yaml"} <= named
    for name in named:
        assert load_config(ROOT / name).prompts


def test_make_targets_that_it_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\$ make (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_configuration_is_complete_and_loads() -> None:
    text = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert text
    config = parse_config(text[1], folder=ROOT)
    assert config.prompts[0].prompt_template.endswith("label:")
    assert set(yaml.safe_load(text[1])["runtime"]) == set(config.runtime.__dataclass_fields__)


def test_its_python_example_runs(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code
    script = tmp_path / "example.py"
    script.write_text(code[1], encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'category': 'dress', 'audience': 'girl'" in done.stdout


def test_options_of_bench_that_it_names_exist() -> None:
    lines = re.findall(r"^\$ qcls-gguf bench (.*?)(?:\s+#.*)?$", README, re.MULTILINE)
    assert len(lines) >= 3
    command = [str(BIN / "qcls-gguf"), "bench", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env={"COLUMNS": "120"}).stdout
    for option in {word for line in lines for word in line.split() if word.startswith("-")}:
        assert re.search(rf"(?<!\S){option}[ ,]", text), option


@pytest.mark.parametrize("line", re.findall(r"^\$ (qcls-gguf run .*?)(?:\s+#.*)?$", README, re.MULTILINE))
def test_its_command_lines_are_valid(line: str, tmp_path: Path) -> None:
    """Those on the embedded model answer; those that need a download get as far as asking for it."""
    (tmp_path / "queries.txt").write_text("red dress\n")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    hub = "qwen3-8b" in line
    command = f"PATH={BIN}:$PATH HF_HOME={tmp_path} {line}" + (" --offline --query x" if hub else "")
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, input="", capture_output=True, text=True, check=False)
    assert done.returncode == (3 if hub else 0), done.stderr
    if hub:
        assert "Qwen/Qwen3-8B-GGUF" in done.stderr
