"""Processes that are forked, and interpreters that end, while other threads decode: without a crash and at once."""

import pytest
from conftest import RunPython, WriteConfig
from hostile_rows import Row, sizes
from oracle import PromptSpec

from qcls_gguf.native import devices

HAS_GPU = any(device.is_gpu for device in devices())
PROMPT = PromptSpec(name="a", template="the colour of {query} is", labels=("red", "light blue", "light pink"))
QUERIES = ("red dress", "blue jeans", "a pink tee " * 6)

START = f"""
import os, random, signal, sys, threading, time, warnings
from qcls_gguf import Classifier, DecodeError, QclsError

warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
QUERIES = {QUERIES!r}
config, n, rng = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))

def answers(classifier):
    return [[(s.label, s.score) for s in classifier.classify(query).results[0].scores] for query in QUERIES]
"""
FORK = """
classifier = Classifier.from_config(config)
other = classifier.prompt_set(config)
wanted = answers(classifier)
stop = False

def ask():
    while not stop:
        classifier.classify("red dress " * 8)

threads = [threading.Thread(target=ask) for _ in range(2)]
for thread in threads:
    thread.start()

def child():
    signal.alarm(60)
    for refused in (
        lambda: classifier.classify("red dress"),
        lambda: classifier.check("red dress"),
        lambda: classifier.prompt_set(config),
        lambda: other.classify("red dress"),
        lambda: classifier.engine.context.clear(),
    ):
        try:
            refused()
        except DecodeError as e:
            assert "make one in every process after forking" in str(e), e
        else:
            raise SystemExit("no error")
    other.close()
    classifier.close()
    with Classifier.from_config(config) as own:
        assert answers(own) == wanted
    with Classifier.from_config(config, model=classifier.engine.model) as shared:
        assert answers(shared) == wanted

for i in range(n):
    time.sleep(rng.uniform(0, 0.02))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child()
            code = 0
        except BaseException as e:
            print(i, type(e).__name__, e, flush=True)
        finally:
            if i % 2:
                sys.exit(code)  # as a whole interpreter ends
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    if status:
        print(i, "status", status, flush=True)
stop = True
for thread in threads:
    thread.join()
assert answers(classifier) == wanted
classifier.close()
print("done")
"""


@pytest.mark.skipif(HAS_GPU, reason="a GPU's driver survives no fork")
@pytest.mark.parametrize("n_threads", [1, 2])
@sizes(2, 200)
def test_forked_while_another_thread_decodes(
    row: Row, n: int, n_threads: int, write_config: WriteConfig, run_python: RunPython
) -> None:
    row.name, row.n = f"forks, {n_threads} threads", n
    config = write_config("qwen3", [PROMPT], n_threads=n_threads)
    done = run_python(START + FORK, config, n, row.seed, timeout=60 + 5 * n)
    *lines, last = done.stdout.splitlines() or [""]
    row.wrong += lines
    row.kinds["answered"] = n - len(lines)
    row.check(last == "done" and done.returncode == 0, f"{done.returncode} {last} {done.stderr[-500:]}")


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("n_gpu_layers", [0, "all"])
def test_a_child_with_a_gpu_is_refused(
    n_gpu_layers: int | str, write_config: WriteConfig, run_python: RunPython
) -> None:
    code = """
classifier = Classifier.from_config(config)
pid = os.fork()
if pid == 0:
    for action in (lambda: classifier.classify("red"), lambda: Classifier.from_config(config)):
        try:
            action()
        except QclsError as e:
            print(type(e).__name__, e, flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1])
"""
    config = write_config("qwen3", [PROMPT], n_gpu_layers=n_gpu_layers)
    done = run_python(START + code, config, 1, 1)
    asked, opened, status = done.stdout.splitlines()
    assert asked.startswith("DecodeError this Classifier was made in another process")
    assert opened.startswith("ModelError ")
    assert "a GPU's driver survives no fork: start processes by spawn or forkserver" in opened
    assert status == "0"


ASKING = """
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
def test_python_ends(row: Row, n: int, n_threads: int, write_config: WriteConfig, run_python: RunPython) -> None:
    row.name, row.n = f"exits, {n_threads} threads", n
    config = write_config("qwen3", [PROMPT], n_threads=n_threads)
    for case, rng in row.cases():
        end = list(ENDS)[case % len(ENDS)]
        done = run_python(ASKING + ENDS[end], config, rng.uniform(0, 0.03))
        row.kinds[f"{end}: {done.returncode}"] += 1
        row.check((done.returncode, done.stderr) == (0, ""), f"seed {case}: {end}: {done.returncode} {done.stderr}")
