"""Trying a model file in a process of its own, before this one loads it.

llama.cpp ends the process on some damaged or odd files, in the middle of a decode, where nothing can catch it. So a
file that is not known to work is first loaded by a small program, which tokenises and decodes; if that program dies,
an error is raised here. Files that worked are remembered by path, size, times of change and build, so that only a small
file is read for a known one. The models that come with the package are not tried.
"""

import signal
import subprocess
import warnings

from ..config.resources import is_embedded
from ..config.schema import RuntimeConfig
from ..config.words import digest_of, printable
from ..errors import ModelError
from ..native.abi import with_remedy
from ..native.context import FLASH_ATTN
from ..native.device import instruction_sets
from ..native.library import build_info, library_folder
from ..system.folders import remember, remembered
from ..system.lifetimes import Ledger
from ..system.stops import undone_by_a_stop
from .files import ModelFile
from .placement import Placement, flash_attention

_REFUSED = 3
_LEAST_S = 120.0
_SLOWEST_BYTES_S = 20e6
"""A trial has _LEAST_S and the time that so slow a disk takes: a damaged file can make llama.cpp loop."""
_LONGEST_REASON = 500
_KNOWN = "tried.json"
"""The models that worked, by a digest of all that this depends on."""


def try_model(file: ModelFile, placed: Placement, runtime: RuntimeConfig, ledger: Ledger) -> None:
    """Try a model unless it is known to work. ledger: gets the step.

    Raises ModelError if llama.cpp refuses it, or would have ended this process.
    """
    path = file.path
    if not runtime.try_model or is_embedded(path):
        return
    attention = FLASH_ATTN[flash_attention(runtime, placed.n_gpu_layers)]
    build = build_info()  # with all that the outcome depends on
    way = [build.source_digest, build.backend, instruction_sets(), placed.n_gpus, attention]
    stamps = [header.stamp for header in file.headers]
    key = digest_of([stamps, way, runtime.kv_type, file.n_first])[:32]
    if key in remembered(_KNOWN):
        return
    limit_s = _LEAST_S + file.size_bytes / _SLOWEST_BYTES_S
    layers = map(str, placed.gpu_layers)
    arguments = [str(path), str(attention), runtime.kv_type, str(file.n_first), *layers]
    command = [str(library_folder() / "qcls-trial"), *arguments]
    try:
        pipe = subprocess.PIPE
        with (
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, errors="replace") as process,
            undone_by_a_stop(process.kill),
        ):
            try:
                said, complaint = process.communicate(timeout=limit_s)
            finally:
                process.kill()
        code = process.returncode
    except subprocess.TimeoutExpired:
        what = f"{path}: llama.cpp did not load it and decode within {limit_s:.0f} s"
        raise ModelError(f"{what}: fetch it again, or set runtime.try_model to false if it takes so long") from None
    except OSError as e:
        code, complaint = 1, str(e.strerror)
    if code > 0 and code != _REFUSED:
        why = _shown(complaint) or f"exit code {code}"
        warnings.warn(f"{path} is loaded untried: {command[0]} did not run: {why}", stacklevel=2)
        return
    if code == _REFUSED:
        raise ModelError(f"{path}: {with_remedy(_shown(said))}")
    if code == -signal.SIGKILL:
        what = f"{path}: the process that tried it was killed, as the system does where memory is lacking"
        needs = (
            f"the model has {file.size_bytes / (1 << 30):.2f} GiB, and needs twice that while weights are rearranged"
        )
        raise ModelError(f"{what}: {needs}")
    if code:
        said = with_remedy(_shown(complaint)) or "it said nothing"
        remedy = "the file is damaged, or of an unknown kind: fetch it again, or choose another"
        raise ModelError(f"{path}: llama.cpp ends the process on it (signal {-code}): {said}; {remedy}")
    remember(_KNOWN, key, str(path))
    ledger.step("try model", "in a process of its own, once for this file, build and number of GPUs")


def _shown(text: str) -> str:
    """What was printed, in one line that moves no cursor."""
    return printable("; ".join(text.split("\n")).strip("; "))[-_LONGEST_REASON:]
