"""A portable build on other processors: the same queries under qemu's models of them, beside this machine's answers.

    python tests/cpu_models.py PORTABLE [NATIVE]

PORTABLE and NATIVE are interpreters of environments with a portable build and with one for this processor; `make cpus`
makes the first and runs it. Labels must be equal, and probabilities within 0.001; the native build must say on the
least processor that it cannot run there. It takes minutes and needs qemu-user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODELS = ("Nehalem", "Haswell", "Skylake-Server", "EPYC-Rome")
"""SSE 4.2 alone; AVX2; the same for qemu, which has no AVX-512; AMD's AVX2."""
QUERIES = (
    "red summer dress for girls",
    "cheap slim fit jeans for men",
    "孕妇连衣裙 棉 宽松",
    "when does the shop open",
)
WITHIN = 0.001
QEMU = "qemu-x86_64"
# numpy's OpenBLAS takes qemu's Nehalem for a Haswell, and dies of its first vector instruction.
ENVIRONMENT = {**os.environ, "OPENBLAS_CORETYPE": "Nehalem"}
PROGRAM = """
import dataclasses, json, sys
from qcls_gguf import Classifier, RuntimeConfig, load_config
from qcls_gguf.native.features import cpu_variant, instruction_sets

config = load_config("fashion-8")
runtime = RuntimeConfig(n_threads=1, try_model=False, state_cache=False)
with Classifier.from_config(dataclasses.replace(config, runtime=runtime)) as classifier:
    answers = [
        {each.prompt: {score.label: score.probability for score in each.scores} for each in result.results}
        for result in (classifier.classify(query) for query in json.loads(sys.argv[1]))
    ]
print(json.dumps({"variant": cpu_variant(), "sets": instruction_sets(), "answers": answers}))
"""


def command(python: str, model: str | None) -> list[str]:
    """What runs a Python interpreter under a model of a processor; none: on this one."""
    return [QEMU, "-cpu", model, python] if model else [python]


def ask(python: str, model: str | None, queries: Sequence[str]) -> dict[str, Any]:
    """The answers of a build there, and which variant of it computed."""
    done = subprocess.run(
        [*command(python, model), "-c", PROGRAM, json.dumps(queries)],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    if done.returncode != 0:
        sys.exit(f"{model or 'this processor'}: exit code {done.returncode}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def difference(here: Sequence[dict[str, Any]], there: Sequence[dict[str, Any]]) -> tuple[int, float]:
    """(prompts of queries with another label, the largest difference of a probability)."""
    pairs = [(one[prompt], other[prompt]) for one, other in zip(here, there, strict=True) for prompt in one]
    n_other = sum(max(one, key=one.__getitem__) != max(other, key=other.__getitem__) for one, other in pairs)
    return n_other, max(abs(one[label] - other[label]) for one, other in pairs for label in one)


def refusal(python: str, model: str) -> str:
    """What the command of a build for another kind of processor says before it ends with exit code 3."""
    script = Path(python).parent / "qcls-gguf"
    words = [*command(python, model), str(script), "run", "--query", QUERIES[0]]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    said = [line for line in done.stderr.splitlines() if line.startswith("qcls-gguf: ")]
    if done.returncode != 3 or not said:
        sys.exit(f"{model}, a build for another processor: exit code {done.returncode}, wanted 3\n{done.stderr}")
    return said[0]


def main(portable: str, native: str | None = None) -> None:
    if shutil.which(QEMU) is None:
        sys.exit(f"{QEMU} is not installed: it comes with qemu-user")
    here = ask(portable, None, QUERIES)
    if here["variant"] is None:
        sys.exit(f"{portable}: its build is for one kind of processor: give one with a portable build")
    print(f"this processor: {here['variant']}: {' '.join(here['sets'])}")
    wrong = []
    for model in MODELS:
        there = ask(portable, model, QUERIES)
        n_other, most = difference(here["answers"], there["answers"])
        print(f"{model}: {there['variant']}: {n_other} labels differ, probabilities by at most {most:.6f}", flush=True)
        if n_other or most > WITHIN:
            wrong.append(model)
    if wrong:
        sys.exit(f"other answers than here: {', '.join(wrong)}")
    if native:
        print(f"{MODELS[0]}, a build for this processor: exit code 3: {refusal(native, MODELS[0])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
