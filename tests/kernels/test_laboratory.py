"""The laboratory: variants in turns, and the run for owners of a T4.

On a CPU the steps change nothing but attention, so every variant must return stock's hidden states to the last bit.
"""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cases import written
from commands import COMMANDS, check_usage
from conftest import ROOT, OpenClassifier, sees_cuda_gpu
from oracle import PromptSpec

from kernels.variants import LANES, compare_variants, variants
from qcls_gguf.native import build_info
from qcls_gguf.native.device import STEPS

SPECS = [PromptSpec(name="item", template="query: {query}\nlabel:", labels=("dress", "coat", "none"))]


def test_variants_take_turns_on_one_model(open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEPS["direct"], "0")
    outside = dict(os.environ)
    classifier = open_classifier("qwen3", SPECS, n_gpu_layers="auto")
    model = classifier.engine.model.native
    done: list[int] = []
    found = compare_variants(classifier, [1, 3, 17], 2, lambda: done.append(len(model.contexts)))
    assert dict(os.environ) == outside
    assert done == [1 + len(variants())] * 6  # beside the classifier's own
    assert (len(model.contexts), [size.n_tokens for size in found.sizes]) == (1, [1, 3, 17])
    for size in found.sizes:
        assert [name for name in size.variants if name != LANES] == list(variants())
        for name, samples in size.variants.items():
            assert [len(times) for times in samples.rounds_ms] == [5, 5]
            if not build_info().is_cuda:
                assert samples.n_cuda_graphs == 0
                assert max(samples.differences) <= (1e-3 if name == "+ visible cells" else 0)
            elif sees_cuda_gpu():
                assert max(samples.differences) < 0.05
    assert found.parts()[0] is not None


def test_the_commands_for_a_t4_are_valid() -> None:
    """With programs that print how they are called."""
    with TemporaryDirectory() as folder:
        for name in ("python", "qcls-gguf"):
            program = written(Path(folder, name), '#!/bin/sh\necho "$@"\n')
            program.chmod(0o755)
        models = ["Qwen/Qwen3-8B-GGUF:Q4_K_M", str(ROOT / "models/fashion-tiny-Q8_0.gguf")]
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        subprocess.run([str(ROOT / "tests/kernels/t4.sh"), f"{folder}/t4", *models], check=True, env=environment)
        called = [path.read_text().split() for path in sorted(Path(folder, "t4").glob("*.json"))]
        assert Path(folder, "t4", "ended.txt").read_text().count("0 ") == len(called) == 11
    for words in called:
        if words[0] in COMMANDS:
            check_usage(words[0], words[1:])
        else:
            assert words[:2] in (["-m", "pytest"], ["-m", "kernels"])


def test_the_notebook_runs_what_there_is() -> None:
    """Its Python is valid, with what it leaves to the shell, and its commands are the Makefile's and the package's."""
    cells = json.loads((ROOT / "docs/t4.ipynb").read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells)
    shell = "\n".join(re.findall(r"^\s*!(.*)$", "\n".join(codes), re.M))
    for code in codes:
        compile(re.sub(r"^(\s*)!.*$", r"\1pass", code, flags=re.M), "t4.ipynb", "exec")
    subprocess.run(["bash", "-n"], input=shell, text=True, check=True)
    targets = re.findall(r"^([\w.$()/-]+):", (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv"), re.M)
    asked = re.findall(r"\bmake --no-print-directory (\S+)", shell)
    assert asked == [".venv/.built", "t4"]
    assert set(asked) <= set(targets)
    for name, rest in re.findall(r"bin/qcls-gguf (\w+) (.*)$", shell, re.M):
        check_usage(name, shlex.split(rest))
