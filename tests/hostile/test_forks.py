"""Processes that are forked, and interpreters that end, while other threads decode: without a crash and at once.

Threads that compute: none of them needs memory of its own, and where they cannot be started that is an error.

Too little memory for another graph: requests are answered with the graphs there are, and the process goes on.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MakeModel, RunPython, WriteConfig
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


# Threads that compute: none of them needs memory of its own, and where they cannot be started that is an error.


LIMITED = """
import asyncio, ctypes, os, sys
from pathlib import Path
import numpy as np
from qcls_gguf import Classifier, QclsError
from qcls_gguf.native import NativeContext, NativeModel

limits = ctypes.CDLL(os.environ["LD_PRELOAD"])

def opened(model, n_threads):
    return NativeContext(model, n_ctx=256, n_batch=64, n_seq_max=1, n_outputs_max=64, n_threads=n_threads)

def row(context):
    n = 24  # with which llama.cpp takes its tiled products
    output = np.arange(n) == n - 1
    rows = np.zeros((1, context.row_size), np.float32)
    each = np.arange(n, dtype=np.int32)
    context.decode(each, each, np.arange(n + 1, dtype=np.int32), np.zeros(n, np.int32), output, rows)
    return rows
"""
NO_MEMORY = """
for path in sys.argv[1:]:
    with NativeModel(Path(path)) as model, opened(model, 1) as one, opened(model, 2) as two:
        wanted = row(one)
        limits.set_refuse_memory(1)
        found = row(two)
        limits.set_refuse_memory(0)
        print(np.array_equal(found, wanted))
"""
NO_THREADS = """
path, config = map(Path, sys.argv[1:])

def refused(action, n_left=0):
    n_before = len(os.listdir("/proc/self/task"))
    limits.set_threads_left(n_left)
    try:
        action()
    except QclsError as e:
        print(type(e).__name__, e)
    limits.set_threads_left(-1)
    assert len(os.listdir("/proc/self/task")) <= n_before

def ask(classifier):
    return asyncio.run(classifier.aclassify("red dress")).labels

with NativeModel(path) as model:
    refused(lambda: NativeModel(path))
    refused(lambda: opened(model, 3))
    refused(lambda: opened(model, 3), n_left=1)
for n in (0, 2):
    refused(lambda: Classifier.from_config(config), n_left=n)
with Classifier.from_config(config) as classifier:
    print(ask(classifier) == classifier.classify("red dress").labels)
"""

WHY = " (can't start new thread): raise the process's limit of threads"
RunLimited = Callable[..., list[str]]


@pytest.fixture
def run_limited(tmp_path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch) -> RunLimited:
    """Runs code with tests/no_threads_memory.c loaded before; the lines that it prints."""
    library, source = tmp_path / "limits.so", Path(__file__).parents[1] / "no_threads_memory.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # a GPU's driver has threads of its own

    def run(code: str, *args: object) -> list[str]:
        done = run_python(LIMITED + code, *args, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


def test_no_thread_that_computes_needs_memory(make_model: MakeModel, run_limited: RunLimited) -> None:
    files = [make_model(), make_model("qwen3moe", weight_type="Q4_K")]
    assert run_limited(NO_MEMORY, *files) == ["True"] * len(files)


def test_threads_that_cannot_start(make_model: MakeModel, write_config: WriteConfig, run_limited: RunLimited) -> None:
    path = make_model()
    config = write_config(path, [PromptSpec(name="a", template="the colour of {query} is", labels=("red", "blue"))])
    assert run_limited(NO_THREADS, path, config) == [
        f"ModelError no thread can be started to load {path}{WHY}",
        *[f"ModelError {path}: 3 threads could not be started"] * 2,
        f"ModelError no thread can be started to hash {path}{WHY}",
        f"ModelError {path}: no thread can be started to serve requests{WHY}",
        "True",
    ]


CODE = """
import collections, json, random, resource, sys
from qcls_gguf import Classifier, Config, QclsError, RuntimeConfig, load_config

LARGEST_BYTES, N_SHAPES = 8 << 20, 16
seed, n_cases = map(int, sys.argv[1:])
prompts = load_config("fashion-8").prompts[:2]
classifier = Classifier.from_config(Config(prompts=prompts, runtime=RuntimeConfig(n_threads=1)))
queries = ["red " * n for n in range(1, N_SHAPES + 1)]  # each of another length
wanted = {query: classifier.classify(query).labels for query in queries}
context, ends, wrong = classifier.engine.context, collections.Counter(), []

def limit(n_bytes):
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes, resource.RLIM_INFINITY))

for case in range(seed, seed + n_cases):
    rng = random.Random(case)
    context.keep_shapes(N_SHAPES)  # frees those that there are
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit(used + rng.randrange(LARGEST_BYTES))
    try:
        for query in rng.sample(queries, len(queries)):
            try:
                labels = classifier.classify(query).labels
                ends["answered"] += 1
                if labels != wanted[query]:
                    wrong.append(f"seed {case}: {len(query)} characters: {labels}")
            except (QclsError, MemoryError) as e:
                ends[type(e).__name__] += 1
    finally:
        limit(resource.RLIM_INFINITY)
    ends["cases in which all graphs are kept"] += context.counters().n_shapes == N_SHAPES
    for query in rng.sample(queries, 3):
        if classifier.classify(query).labels != wanted[query]:
            wrong.append(f"seed {case}: {len(query)} characters, with memory again")
print(json.dumps([ends, wrong]))
"""


@sizes(4, 2_000)
def test_no_memory_ends_no_process(row: Row, n: int, run_python: RunPython, monkeypatch: pytest.MonkeyPatch) -> None:
    row.name, row.n = "memory for graphs", n
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # what a case frees goes back to the system
    done = run_python(CODE, row.seed, n, timeout=120 + n)
    row.check(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}")
    if done.returncode == 0:
        ends, wrong = json.loads(done.stdout)
        row.kinds.update(ends)
        row.wrong += wrong
        assert row.kinds["answered"] > 8 * n
        assert row.kinds["cases in which all graphs are kept"] < n, "memory must be lacking in some of them"
