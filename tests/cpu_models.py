"""A portable build on other processors: the same queries with each of its variants, and under qemu's models.

    python tests/cpu_models.py PORTABLE NATIVE [MODEL...]

PORTABLE and NATIVE are interpreters of environments with a portable build and with one for this processor; `make cpus`
makes both and runs it. Every variant of the CPU code that this processor can run answers here, then the build as it is
under qemu's models of other processors: labels must be equal, and probabilities within 0.005. The native build must say
on two of them that it cannot run there. It takes minutes and needs qemu-user.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MODELS = ("Nehalem", "SandyBridge", "Denverton", "Haswell", "Skylake-Server", "Cascadelake-Server", "EPYC-Rome")
"""SSE 4.2; AVX; an Atom, which has no AVX; AVX2; the same for qemu, which has no AVX-512 (twice); AMD's AVX2."""
FOREIGN = ("Nehalem", "Haswell")
"""Where a build for this processor has to refuse."""
QUERIES = ("red summer dress for girls", "cheap slim fit jeans for men", "孕妇连衣裙 棉 宽松", "when do you open")
WITHIN = 0.005
"""Without AVX2 products are llama.cpp's, whose activations are rounded more: 0.0033 in 112 answers to other queries."""
QEMU = "qemu-x86_64"
GET_QEMU = f"{QEMU} is not installed: on Debian and Ubuntu apt-get install qemu-user, on Fedora dnf install qemu-user"
# numpy's OpenBLAS takes qemu's Nehalem for a Haswell, and dies of its first vector instruction.
ENVIRONMENT = {**os.environ, "OPENBLAS_CORETYPE": "Nehalem"}
LACKS_CODE = "has no CPU code"
"""What a portable build says where none of its variants runs."""
PROGRAM = """
import dataclasses, json, sys
from time import process_time
from qcls_gguf import Classifier, RuntimeConfig, load_config
from qcls_gguf.native.library import library_folder
from qcls_gguf.native.device import cpu_variant

config = load_config("fashion-8")
runtime = RuntimeConfig(n_threads=1, try_model=False, state_cache=False)
with Classifier.from_config(config.changed(runtime=runtime)) as classifier:
    answers = [
        {each.prompt: {score.label: score.probability for score in each.scores} for each in result.results}
        for result in (classifier.classify(query) for query in json.loads(sys.argv[1]))
    ]
libraries = str(library_folder())
print(json.dumps({"variant": cpu_variant(), "libraries": libraries, "seconds": process_time(), "answers": answers}))
"""
Answers = list[dict[str, dict[str, float]]]
"""Of each query, of each prompt, the probability of each label."""


def run(python: str, model: str | None, *words: str, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A finished Python interpreter, under a model of a processor, none: on this one; packages: where it looks for them
    first, before its own."""
    environment = {**ENVIRONMENT, "PYTHONPATH": str(packages)} if packages else ENVIRONMENT
    command = [*([QEMU, "-cpu", model] if model else []), python, "-P", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def ask(python: str, model: str | None, packages: Path | None = None) -> dict[str, Any] | None:
    """`answers`, the `variant` that gave them, its `seconds` of CPU time, the folder of the `libraries`.

    None where no variant runs.
    """
    done = run(python, model, "-c", PROGRAM, json.dumps(QUERIES), packages=packages)
    if done.returncode and LACKS_CODE in done.stderr:
        return None
    if done.returncode:
        sys.exit(f"{model or 'this processor'}: exit code {done.returncode}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def link_with(package: Path, variant: Path, folder: Path) -> None:
    """The package again in this folder, by links, but of its variants of CPU code with this one alone."""

    def others(_: str, names: list[str]) -> list[str]:
        return [name for name in names if name.startswith("libggml-cpu-") and name != variant.name]

    shutil.copytree(package, folder / package.name, ignore=others, copy_function=os.symlink)


def refusal(python: str, model: str) -> str:
    """What the command of a build for another kind of processor says before exit code 3."""
    done = run(python, model, str(Path(python).parent / "qcls-gguf"), "run", "--query", QUERIES[0])
    said = [line for line in done.stderr.splitlines() if line.startswith("qcls-gguf: ")]
    if done.returncode != 3 or not said:
        sys.exit(f"{model}, a build for another processor: exit code {done.returncode}, wanted 3\n{done.stderr}")
    return said[0]


def add_row(here: Answers, name: str, there: dict[str, Any]) -> bool:
    """Print a row of what answered, beside the answers here. Returns whether they are the same."""
    pairs = [(one[prompt], other[prompt]) for one, other in zip(here, there["answers"], strict=True) for prompt in one]
    n_other = sum(max(one, key=one.__getitem__) != max(other, key=other.__getitem__) for one, other in pairs)
    most = max(abs(one[label] - other[label]) for one, other in pairs for label in one)
    labels = f"{n_other} of {len(pairs)}"
    print(f"| {name} | {there['variant']} | {labels} | {most:.6f} | {there['seconds']:.0f} |", flush=True)
    return n_other == 0 and bool(most <= WITHIN)


def main(portable: str, native: str, *models: str) -> None:
    if shutil.which(QEMU) is None:
        sys.exit(GET_QEMU)
    here = ask(portable, None)
    if here is None or here["variant"] is None:
        sys.exit(f"{portable}: its build is for one kind of processor: give one with a portable build")
    print(f"Beside what {here['variant']}, which is chosen here, answers:\n")
    print("| processor | variant | labels that differ | probabilities differ by at most | seconds of CPU time |")
    print("|---|---|---|---|---|", flush=True)
    are_same = True
    for module in sorted(Path(here["libraries"]).glob("libggml-cpu-*")):
        with TemporaryDirectory() as folder:
            link_with(module.parents[2], module, Path(folder))
            there = ask(portable, None, Path(folder))
        if there is None:
            name = module.stem.removeprefix("libggml-cpu-")
            print(f"| this one | {name} | this processor cannot run it | | |", flush=True)
        else:
            are_same &= add_row(here["answers"], "this one", there)
    for model in models or MODELS:
        if (there := ask(portable, model)) is None:
            sys.exit(f"{model}: no variant runs there")
        are_same &= add_row(here["answers"], f"{model}, by qemu", there)
    if not are_same:
        sys.exit("\nother answers than here: see the rows above")
    for model in FOREIGN:
        print(f"\nA build for this processor on {model}, exit code 3:\n{refusal(native, model)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
