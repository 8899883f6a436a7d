"""The end of the interpreter at any moment, while other threads classify: it ends, without a crash and at once."""

import pytest
from conftest import RunPython, WriteConfig
from hostile_rows import Row, sizes
from oracle import PromptSpec

PROMPT = PromptSpec(name="a", template="the colour of {query} is", labels=("red", "light blue", "light pink"))
START = """
import asyncio, sys, threading, time
from qcls_gguf import Classifier, QclsError

classifier = Classifier.from_config(sys.argv[1])

def ask():
    while True:
        try:
            classifier.classify("red dress " * 8)
        except QclsError:
            return

def ask_as_a_task():
    try:
        asyncio.run(classifier.aclassify("red"))
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
    "a task of the engine's thread": ("threading.Thread(target=ask_as_a_task, daemon=True).start()"),
    "another classifier": "Classifier.from_config(sys.argv[1])",
}


@pytest.mark.parametrize("n_threads", [1, 2])
@sizes(3, 200)
def test_the_interpreter_ends(
    row: Row, n: int, n_threads: int, write_config: WriteConfig, run_python: RunPython
) -> None:
    row.name, row.n = f"exits, {n_threads} threads", n
    config = write_config("qwen3", [PROMPT], n_threads=n_threads)
    for case, rng in row.cases():
        end = list(ENDS)[case % len(ENDS)]
        done = run_python(START + ENDS[end], config, rng.uniform(0, 0.03))
        row.kinds[f"{end}: {done.returncode}"] += 1
        row.check((done.returncode, done.stderr) == (0, ""), f"seed {case}: {end}: {done.returncode} {done.stderr}")
