"""Starts a classifier on mutated model files, in processes of their own, and says how these end.

`python tests/mutated_models.py SEED COUNT SECONDS` prints every file's end as a line of JSON.
The processes are forked from one that has loaded everything but the model, so that a file takes milliseconds.
"""

import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from copy import deepcopy
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


def try_all(seeds: Iterable[int], until: float, folder: Path) -> None:
    """Mutate a base by each seed, start a classifier on it and print, up to a time: its `seed`, `what` was changed,
    `how` it ended (label, the name of an error, traceback, hang or the name of a signal), the `text` of an error or of
    what was printed, and whether it `is_bad`.

    What is refused by the header or by the trial, in steps that run here as in every start, needs no other process.
    """
    paths = [write_model(folder / f"base-{i}.gguf", name, **options) for i, (name, options) in enumerate(BASES)]
    bases = [take_apart(path) for path in paths]
    # few tokens, since plans are made at start-up for every length of a query up to it
    settings = RuntimeConfig(n_threads=1, max_query_tokens=8, max_batch=1, state_cache=False)
    _ask(paths[0], settings)  # so that no child has to import and compile what all need
    gc.freeze()
    path = folder / "mutated.gguf"
    for seed in seeds:
        if time.monotonic() >= until:
            return
        file = deepcopy(bases[seed % len(bases)])
        what = mutate(file, seed)
        path.write_bytes(put_together(file))
        try:
            try_model(ModelFile.read(path), ON_CPU, settings, Ledger())
        except QclsError as e:
            how, text = type(e).__name__, str(e)
        except Exception:
            how, text = "traceback", traceback.format_exc()
        else:
            how, text = _end_of(path, settings)
        is_bad = how in ("traceback", "hang") or how.startswith(("SIG", "exit"))
        print(json.dumps({"seed": seed, "what": what, "how": how, "text": text, "is_bad": is_bad}), flush=True)


def _end_of(path: Path, settings: RuntimeConfig) -> tuple[str, str]:
    """(how it ended, what it said): a classifier is started on a file and asked once, in a process of its own."""
    said, result = path.with_suffix(".said"), path.with_suffix(".json")
    result.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            _work(path, said, result, settings)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if result.exists():
        how, text = json.loads(result.read_text())
        return how, text
    text = said.read_text(errors="replace")
    if os.WIFEXITED(status):
        return f"exit {os.WEXITSTATUS(status)}", text
    how = signal.Signals(os.WTERMSIG(status)).name
    return ("hang", f"more than {_TIMEOUT_S} s: {text}") if how == "SIGALRM" else (how, text)


def _work(path: Path, said: Path, result: Path, settings: RuntimeConfig) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.environ["GGML_NO_BACKTRACE"] = "1"  # which would start a debugger
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.disable()
    signal.alarm(_TIMEOUT_S)
    try:
        how, text = "label", _ask(path, settings)
    except QclsError as e:
        how, text = type(e).__name__, str(e)
    except BaseException:
        how, text = "traceback", traceback.format_exc()
    result.write_text(json.dumps([how, text]))


def _ask(path: Path, settings: RuntimeConfig) -> str:
    """The label that a classifier on a file gives."""
    prompt = PromptConfig(
        name="color",
        prompt_template="<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\ncolor:",
        labels=("light blue", "light pink", "red", "none"),
        scoring="joint" if path.stat().st_size % 3 == 0 else "tree",
    )
    config = Config(prompts=(prompt,), model=ModelConfig(path=path), runtime=settings)
    with Classifier.from_config(config) as classifier:
        return classifier.classify("red 红").results[0].label


def main() -> None:
    first, n = map(int, sys.argv[1:3])
    until = time.monotonic() + float(sys.argv[3])
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try_all(range(first, first + n), until, Path(folder))


if __name__ == "__main__":
    main()
