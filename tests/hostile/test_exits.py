"""The end of the interpreter at any moment, while other threads classify: it ends, without a crash and at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from conftest import MakeModel, RunPython, WriteConfig
from hostile_rows import Row, sizes
from oracle import PromptSpec

PROMPT = PromptSpec(name="a", template="the colour of {query} is", labels=("red", "light blue", "light pink"))
START = """
import asyncio, os, signal, sys, threading, time
from qcls_gguf import Classifier, QclsError

classifier = Classifier.from_config(sys.argv[1])

def ask():
    while True:
        try:
            classifier.classify("red dress " * 8)
        except QclsError:
            return

for _ in range(4):
    threading.Thread(target=ask, daemon=True).start()
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""
ENDS = {
    "the end of the script": "",
    "an exception": "raise SystemExit(0)",
    "another thread in close": "threading.Thread(target=classifier.close, daemon=True).start()",
    "close": "classifier.close()",
    "a task of the engine's thread": (
        "threading.Thread(target=lambda: asyncio.run(classifier.aclassify('red')), daemon=True).start()"
    ),
    "another classifier": "Classifier.from_config(sys.argv[1])",
}


@pytest.mark.parametrize("n_threads", [1, 2])
@sizes(3, 200)
def test_the_interpreter_ends(
    row: Row, n: int, n_threads: int, make_model: MakeModel, write_config: WriteConfig, run_python: RunPython
) -> None:
    row.name, row.n = f"exits, {n_threads} threads", n
    config = write_config(make_model(), [PROMPT], n_threads=n_threads)
    for case, rng in row.cases():
        end = list(ENDS)[case % len(ENDS)]
        done = run_python(START + ENDS[end], config, rng.uniform(0, 0.03))
        row.kinds[f"{end}: {done.returncode}"] += 1
        row.check((done.returncode, done.stderr) == (0, ""), f"seed {case}: {end}: {done.returncode} {done.stderr}")


@sizes(2, 100)
def test_a_signal_that_python_does_not_handle(
    row: Row, n: int, make_model: MakeModel, write_config: WriteConfig
) -> None:
    row.name, row.n = "exits, SIGTERM", n
    config = write_config(make_model(), [PROMPT], n_threads=2)
    command = [sys.executable, "-X", "faulthandler", "-c", START, str(config), "60"]
    for case, rng in row.cases():
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                process.wait(rng.uniform(0, 0.05))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            row.kinds[str(code)] += 1
            row.check(code == -signal.SIGTERM, f"seed {case}: {code}")
