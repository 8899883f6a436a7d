"""Too little memory for another graph: requests are answered with the graphs there are, and the process goes on."""

import json

import pytest
from conftest import RunPython
from hostile_rows import Row, sizes

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
def test_no_memory_for_a_graph_ends_no_process(
    row: Row, n: int, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
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
