"""Starts a classifier on mutated model files, each in a process of its own, and counts how these end.

`python tests/mutated_models.py --seed 1 --count 1000` prints a line for each file that ended a process, and counts.
The processes are forked from one that has loaded everything but the model, so that one takes milliseconds.
"""

from __future__ import annotations

import argparse
import faulthandler
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
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gguf_mutator import mutate, put_together, take_apart
from random_models import write_model

from qcls_gguf import Classifier, Config, ModelConfig, PromptConfig, QclsError, RuntimeConfig
from qcls_gguf.model.identity import check_gguf
from qcls_gguf.model.trial import try_model
from qcls_gguf.native import build_info

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
_REFUSED, _TRACEBACK = 10, 11
_MARK = "\1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one process ended."""

    seed: int
    what: str
    """what was changed"""
    how: str
    """label, the name of an error, traceback, hang or the name of a signal"""
    text: str
    """an error's message, or what was printed"""

    @property
    def is_bad(self) -> bool:
        return self.how in ("traceback", "hang") or self.how.startswith("SIG")


def write_bases(folder: Path) -> list[Path]:
    """The files that are mutated: small models with random weights."""
    return [write_model(folder / f"base-{i}.gguf", name, **options) for i, (name, options) in enumerate(BASES)]


def try_all(seeds: Iterable[int], folder: Path, **runtime: Any) -> Iterator[Ended]:
    """Mutate a base by each seed and start a classifier on it.

    What is refused by the header or by the trial, in steps that run here as in every start, needs no other process.
    """
    bases = [take_apart(path) for path in write_bases(folder)]
    build_info()  # loads the library
    path, out = folder / f"mutated-{os.getpid()}.gguf", folder / f"out-{os.getpid()}"
    settings = _settings(**runtime)
    for seed in seeds:
        file = bases[seed % len(bases)].copy()
        what = mutate(file, seed)
        path.write_bytes(put_together(file))
        try:
            check_gguf(path)
            try_model([path], path.stat().st_size, 0, settings)
        except QclsError as e:
            how, text = type(e).__name__, str(e)
        except Exception:
            how, text = "traceback", traceback.format_exc()
        else:
            how, text = start_in_child(path, out, **runtime)
        yield Ended(seed=seed, what=what, how=how, text=text)


def _settings(**runtime: Any) -> RuntimeConfig:
    return RuntimeConfig(n_threads=1, max_query_tokens=32, max_batch=1, state_cache=False, **runtime)


def start_in_child(path: Path, out: Path, **runtime: Any) -> tuple[str, str]:
    """(how it ended, what it said) of a process that starts a classifier on a file and asks it once."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            _child(path, out, **runtime)
        finally:
            os._exit(99)
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hang", f"more than {_TIMEOUT_S} s"
        time.sleep(0.002)
    text = out.read_text(errors="replace")
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name, text
    code = os.waitstatus_to_exitcode(status)
    if code == _REFUSED:
        name, _, message = text.rpartition(_MARK)[2].partition(" ")  # behind warnings
        return name, message
    return {0: "label", _TRACEBACK: "traceback"}.get(code, f"exit {code}"), text


def _child(path: Path, out: Path, **runtime: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.environ["GGML_NO_BACKTRACE"] = "1"  # which would start a debugger
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.disable()
    prompt = PromptConfig(
        name="color",
        prompt_template="<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\ncolor:",
        labels=("light blue", "light pink", "red", "none"),
        scoring="joint" if path.stat().st_size % 3 == 0 else "tree",
    )
    config = Config(prompts=(prompt,), model=ModelConfig(path=path), runtime=_settings(**runtime))
    try:
        with Classifier.from_config(config) as classifier:
            print(classifier.classify("red dress 红色").results[0].label, flush=True)
    except QclsError as e:
        print(_MARK + type(e).__name__, e, flush=True)
        os._exit(_REFUSED)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(_TRACEBACK)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1, help="of the first file")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further file is tried")
    parser.add_argument("--json", action="store_true", help="print every file's end as a line of JSON")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        seeds = range(arguments.seed, arguments.seed + arguments.count)
        in_time = itertools.takewhile(lambda _: time.monotonic() - began < arguments.seconds, seeds)
        for ended in try_all(in_time, Path(folder)):
            counts[ended.how] += 1
            if arguments.json:
                print(json.dumps({**asdict(ended), "is_bad": ended.is_bad}), flush=True)
            elif ended.is_bad:
                print(ended.seed, ended.how, "|", ended.what, "|", ended.text.strip()[-400:], flush=True)
    if not arguments.json:
        print(dict(counts.most_common()), f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
