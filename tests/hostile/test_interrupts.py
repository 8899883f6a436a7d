"""KeyboardInterrupt in the middle of requests, at any moment of any stage, while another thread asks, too."""

from __future__ import annotations

from conftest import MakeModel, RunPython, WriteConfig
from hostile_rows import Row, sizes
from oracle import PromptSpec

PROMPT = PromptSpec(name="a", template="the colour of {query} is", labels=("red", "light blue", "light pink"))

CODE = """
import faulthandler, random, signal, sys, threading, time
from qcls_gguf import Classifier

QUERIES = ("red dress", "blue jeans", "a pink tee " * 4)
config, n, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
classifier = Classifier.from_config(config)

def scores(result):
    return [(each.label, each.score) for each in result.results[0].scores]

wanted = {query: scores(classifier.classify(query)) for query in QUERIES}
stop = False
n_wrong = 0
n_others = 0

def others():
    global n_wrong, n_others
    while not stop:
        query = QUERIES[n_others % len(QUERIES)]
        n_wrong += scores(classifier.classify(query)) != wanted[query]
        n_others += 1
        time.sleep(0.001)

inside = False

def interrupt(_number, _frame):
    if inside:
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
start = time.perf_counter()
for _ in range(50):
    classifier.classify(QUERIES[0])
usual_s = (time.perf_counter() - start) / 50
thread = threading.Thread(target=others)
thread.start()
n_interrupted = n_asked = 0
while n_interrupted < n:
    faulthandler.dump_traceback_later(60, exit=True)  # a lock that nobody leaves
    query = QUERIES[n_asked % len(QUERIES)]
    n_asked += 1
    try:
        inside = True
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 3 * usual_s))
        found = classifier.classify(query)
        inside = False
    except KeyboardInterrupt:
        inside = False
        n_interrupted += 1
        time.sleep(2 * usual_s)  # for the other thread's turn
    else:
        n_wrong += scores(found) != wanted[query]
    signal.setitimer(signal.ITIMER_REAL, 0)
faulthandler.dump_traceback_later(60, exit=True)
n_wrong += any(scores(classifier.classify(query)) != wanted[query] for query in QUERIES)
stop = True
thread.join()
classifier.close()
print(n_interrupted, n_asked, n_others, n_wrong)
"""


@sizes(100, 20_000)
def test_an_interrupted_request_locks_nothing(
    row: Row, n: int, make_model: MakeModel, write_config: WriteConfig, run_python: RunPython
) -> None:
    row.name, row.n = "interrupts", n
    config = write_config(make_model(), [PROMPT], kept_queries=2)
    done = run_python(CODE, config, n, row.seed, timeout=120 + n / 5)
    row.check(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}")
    if done.returncode == 0:
        n_interrupted, n_asked, n_others, n_wrong = map(int, done.stdout.split())
        row.kinds.update({"interrupted": n_interrupted, "answered": n_asked - n_interrupted, "of others": n_others})
        row.check(n_wrong == 0, f"{n_wrong} wrong answers")
        assert n_interrupted == n
        assert n_others > n / 200, "another thread must have asked meanwhile"
