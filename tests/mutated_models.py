"""Starts a classifier on mutated model files, in processes of their own, and says how these end.

`python tests/mutated_models.py --seed 1 --count 1000` prints every file's end as a line of JSON.
The processes are forked from one that has loaded everything but the model, so that a file takes milliseconds.
"""

import argparse
import contextlib
import faulthandler
import gc
import itertools
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gguf_mutator import mutate
from gguf_parts import put_together, take_apart
from random_models import write_model

from qcls_gguf import Classifier, Config, ModelConfig, PromptConfig, QclsError, RuntimeConfig
from qcls_gguf.model.files import ModelFile
from qcls_gguf.model.placement import ON_CPU
from qcls_gguf.model.trial import try_model
from qcls_gguf.system.lifetimes import Ledger

BASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("qwen3", {"weight_type": "Q8_0", "head_type": "Q8_0"}),
    ("qwen3", {"weight_type": "F32", "tied": True}),
    ("llama", {"vocab": "spm", "add_bos": True, "weight_type": "Q8_0", "head_type": "Q8_0"}),
    ("qwen2", {"weight_type": "F16", "head_type": "F16"}),
    ("qwen3moe", {"weight_type": "Q8_0", "head_type": "Q8_0"}),
    ("longrope", {"weight_type": "Q8_0", "head_type": "Q8_0"}),
    ("starcoder2", {"weight_type": "Q8_0", "head_type": "Q8_0"}),
    ("gemma3", {"weight_type": "Q8_0"}),
    ("gpt-oss", {"weight_type": "Q8_0", "head_type": "Q8_0"}),
)
_TIMEOUT_S = 120
_MEMORY = 6 << 30
_MOST_ASKED, _SETTLED = 100, 20
"""Files for one worker, and how many of these until its memory is looked at first."""
_MOST_GROWN = 40 << 20
"""What a worker may grow by between the two: half of the smallest model for each file. It is 5 MiB or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one process ended."""

    seed: int
    what: str
    """what was changed"""
    how: str
    """label, the name of an error, traceback, hang, leak or the name of a signal"""
    text: str
    """an error's message, or what was printed"""

    @property
    def is_bad(self) -> bool:
        return self.how in ("traceback", "hang", "leak") or self.how.startswith(("SIG", "exit"))


def write_bases(folder: Path) -> list[Path]:
    """The files that are mutated: small models with random weights."""
    return [write_model(folder / f"base-{i}.gguf", name, **options) for i, (name, options) in enumerate(BASES)]


def try_all(seeds: Iterable[int], folder: Path, **runtime: Any) -> Iterator[Ended]:
    """Mutate a base by each seed and start a classifier on it.

    What is refused by the header or by the trial, in steps that run here as in every start, needs no other process.
    """
    paths = write_bases(folder)
    bases = [take_apart(path) for path in paths]
    _ask(paths[0], **runtime)  # so that no child has to import and compile what all need
    gc.freeze()
    path, worker = folder / f"mutated-{os.getpid()}.gguf", Worker(folder / f"out-{os.getpid()}", **runtime)
    settings = _settings(**runtime)
    for seed in seeds:
        file = bases[seed % len(bases)].copy()
        what = mutate(file, seed)
        path.write_bytes(put_together(file))
        try:
            try_model(ModelFile.read(path), ON_CPU, settings, Ledger())
        except QclsError as e:
            how, text = type(e).__name__, str(e)
        except Exception:
            how, text = "traceback", traceback.format_exc()
        else:
            how, text = worker.ask(path)
        yield Ended(seed=seed, what=what, how=how, text=text)
    worker.close()


def _settings(**runtime: Any) -> RuntimeConfig:
    # few tokens, since plans are made at start-up for every length of a query up to it
    return RuntimeConfig(n_threads=1, max_query_tokens=8, max_batch=1, state_cache=False, **runtime)


class Worker:
    """A process that starts classifiers, forked from this one, and another in its place when a file has ended it.

    It works at many files one after the other, so that what one leaves behind is met by the next, and leaks add up.
    """

    def __init__(self, out: Path, **runtime: Any) -> None:
        self._out, self._runtime = out, runtime
        self._child = self._n_asked = self._first_bytes = 0

    def ask(self, path: Path) -> tuple[str, str]:
        """(how it ended, what it said): a classifier is started on a file and asked once."""
        if not self._child:
            self._fork()
        self._n_asked += 1
        self._requests.write(f"{path}\n")
        self._requests.flush()
        if answer := self._answers.readline():
            how, text, n_bytes = json.loads(answer)
            if self._n_asked == _SETTLED:
                self._first_bytes = n_bytes
            if self._n_asked == _MOST_ASKED:
                self.close()
                if n_bytes - self._first_bytes > _MOST_GROWN:
                    return "leak", f"{n_bytes - self._first_bytes} bytes in {_MOST_ASKED - _SETTLED} files up to this"
            return how, text
        status = self._wait()
        text = self._out.read_text(errors="replace")
        if os.WIFEXITED(status):
            return f"exit {os.WEXITSTATUS(status)}", text
        how = signal.Signals(os.WTERMSIG(status)).name
        return ("hang", f"more than {_TIMEOUT_S} s: {text}") if how == "SIGALRM" else (how, text)

    def close(self) -> None:
        if self._child:
            self._requests.close()
            self._wait()

    def _fork(self) -> None:
        (requests, to_child), (from_child, answers) = os.pipe(), os.pipe()
        sys.stdout.flush()
        self._child, self._n_asked = os.fork(), 0
        if self._child == 0:
            os.close(to_child)
            os.close(from_child)
            try:
                _work(requests, answers, self._out, **self._runtime)
            finally:
                os._exit(0)
        os.close(requests)
        os.close(answers)
        self._requests, self._answers = os.fdopen(to_child, "w"), os.fdopen(from_child)

    def _wait(self) -> int:
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        return status


def _work(requests: int, answers: int, out: Path, **runtime: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.environ["GGML_NO_BACKTRACE"] = "1"  # which would start a debugger
    said = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    faulthandler.disable()
    with os.fdopen(requests) as lines:
        for line in lines:
            os.ftruncate(said, 0)
            signal.alarm(_TIMEOUT_S)
            try:
                how, text = "label", _ask(Path(line[:-1]), **runtime)
            except QclsError as e:
                how, text = type(e).__name__, str(e)
            except BaseException:
                how, text = "traceback", traceback.format_exc()
            signal.alarm(0)
            with open("/proc/self/statm") as file:
                n_bytes = int(file.read().split()[1]) * resource.getpagesize()
            os.write(answers, f"{json.dumps([how, text, n_bytes])}\n".encode())


def _ask(path: Path, **runtime: Any) -> str:
    """The label that a classifier on a file gives."""
    prompt = PromptConfig(
        name="color",
        prompt_template="<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\ncolor:",
        labels=("light blue", "light pink", "red", "none"),
        scoring="joint" if path.stat().st_size % 3 == 0 else "tree",
    )
    config = Config(prompts=(prompt,), model=ModelConfig(path=path), runtime=_settings(**runtime))
    with Classifier.from_config(config) as classifier:
        return classifier.classify("red 红").results[0].label


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1, help="of the first file")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further file is tried")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        seeds = range(arguments.seed, arguments.seed + arguments.count)
        in_time = itertools.takewhile(lambda _: time.monotonic() - began < arguments.seconds, seeds)
        for ended in try_all(in_time, Path(folder)):
            print(json.dumps({**asdict(ended), "is_bad": ended.is_bad}), flush=True)


if __name__ == "__main__":
    main()
