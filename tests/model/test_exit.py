"""The end of the interpreter while other threads classify: it ends, without a crash and at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from conftest import MakeModel, RunPython, WriteConfig
from oracle import PromptSpec

PROMPT = PromptSpec(name="a", template="the colour of {query} is", labels=("red", "light blue", "light pink"))
START = """
import os, signal, sys, threading, time
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
time.sleep(float(sys.argv[2]))
"""
ENDS = {
    "the end of the script": "",
    "an exception": "raise SystemExit(0)",
    "another thread in close": "threading.Thread(target=classifier.close, daemon=True).start()",
    "close": "classifier.close()",
    "a task of the engine's thread": "classifier._batcher.submit_future([(classifier.configured.active, 'red')])",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("delay_s", [0.0, 0.013])
def test_the_interpreter_ends(
    end: str, delay_s: float, make_model: MakeModel, write_config: WriteConfig, run_python: RunPython
) -> None:
    done = run_python(START + ENDS[end], write_config(make_model(), [PROMPT]), delay_s)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_that_python_does_not_handle_ends_it(make_model: MakeModel, write_config: WriteConfig) -> None:
    code = START + "print('ready', flush=True); time.sleep(60)"
    command = [sys.executable, "-X", "faulthandler", "-c", code, str(write_config(make_model(), [PROMPT])), "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
