"""Methods of `qcls-gguf compare` in a child process: what dies there is listed, and the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from child_methods import TIMED_MS, Failing, Told
from comparisons import compared
from conftest import MakeModel, WriteConfig
from oracle import COLOR

from qcls_gguf import load_config
from qcls_gguf.compare import Peers
from qcls_gguf.compare.child_process import InChild
from qcls_gguf.compare.method import Answer, Method, Workload
from qcls_gguf.compare.run import METHODS, Kind

PROMPTS = [COLOR]
QUERIES = ("red dress", "红色连衣裙")

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(make_model: MakeModel, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A comparison with naive and with a method of the test's, which takes the place of llama-server."""
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")]))

    def run(open_method: Callable[[Workload, Peers], Method]) -> dict[str, Any]:
        monkeypatch.setitem(METHODS, "llama-server", Kind(open_method, "a method of the test's", True))
        config = load_config(write_config(make_model(), PROMPTS))
        return compared(config, "llama-server", "naive", queries=QUERIES, n_rounds=2)

    return run


@pytest.mark.parametrize(
    ("where", "how", "reason", "started"),
    [
        ("open", "a null pointer", "its process died of SIGSEGV: it wrote nothing", True),
        ("open", "exit", "its process ended with exit code 1: no such device", True),
        ("answers", "a failed assertion", "its process died of SIGABRT: some.c:12: GGML_ASSERT(n > 0) failed", True),
        ("rounds", "killed", "its process died of SIGKILL: it wrote nothing", True),
        ("open", "absent", "not to be had", False),
        ("open", "an error", "KeyError: 'blk.0'", False),
        ("rounds", "an error", "KeyError: 'blk.0'", True),
    ],
)
def test_a_method_that_fails_is_listed_and_the_others_go_on(
    where: str, how: str, reason: str, started: bool, run: Run
) -> None:
    record = run(partial(InChild, partial(Failing, where, how)))
    assert record["absent"] == [{"name": "llama-server", "reason": reason, "asked_for": True, "started": started}]
    assert [method["name"] for method in record["methods"]] == ["qcls", "naive"]


def test_answers_tokens_and_times_are_those_of_the_child(run: Run) -> None:
    found: list[tuple[list[Answer], list[list[int]]]] = []
    workloads: list[Workload] = []

    class Recording(InChild):
        def ask(self, query: str, exact: bool = False) -> list[Answer]:
            found.append(
                (super().ask(query, exact), [[n_cached, *new] for n_cached, new in workloads[0].inputs[query]])
            )
            return [Answer(label=None) for _ in workloads[0].prompts]

    def opened(workload: Workload, peers: Peers) -> Method:
        workloads.append(workload)
        return Recording(Told, workload, peers)

    record = run(opened)
    assert record["absent"] == []
    assert len(found) == len(QUERIES)
    pids = {answer.label for answers, _ in found for answer in answers}
    assert len(pids) == 1
    assert str(os.getpid()) not in pids
    for answers, tokens in found:
        assert [list(answer.joint) for answer in answers] == tokens
    method = record["methods"][-1]
    assert method["note"] == "a remark from the child; timed in a process of its own"
    assert method["p50_ms"] > TIMED_MS  # with the time of our tokenizer
    with pytest.raises(ProcessLookupError):  # it was waited for, too
        os.kill(int(pids.pop() or ""), 0)


def test_the_child_ends_with_the_process_that_started_it() -> None:
    """The child holds the output that is waited for here."""
    code = """
import os, subprocess, sys
from multiprocessing import Pipe
ours, theirs = Pipe()
serve = f"from qcls_gguf.compare.child_process import serve; serve({theirs.fileno()}); print('ended')"
subprocess.Popen([sys.executable, "-c", serve], pass_fds=[theirs.fileno()])
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "ended\n", "")
