"""An engine with its prefixes cached: computed, or from the file of an earlier start."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter

from .. import __version__
from ..config.schema import RuntimeConfig
from ..errors import DecodeError
from ..folders import cache_folder
from ..native import NativeContext, NativeModel, build_info
from ..prompts.compiled import Prompt
from ..timing import Ledger
from .engine import Engine
from .prefix_file import StateCache, prefix_digest

WORTH_MS = 250.0
"""How long computing the prefixes must take for them to be saved."""


def cache_prefixes(
    runtime: RuntimeConfig,
    context: NativeContext,
    model: NativeModel,
    prompts: Sequence[Prompt],
    n_gpu_layers: int,
    model_sha256: Callable[[], str],
    ledger: Ledger,
) -> Engine:
    """The engine of a context, which it takes over; model_sha256 waits until it is known.

    On a GPU nothing is saved: prefixes are computed there before the model file is hashed. Raises DecodeError.
    """
    prefixes = [prompt.prefix for prompt in prompts]
    cache = None
    if runtime.state_cache and n_gpu_layers == 0 and (folder := cache_folder()):
        build = build_info()
        depends_on = {
            "tokens": prefix_digest(dict.fromkeys(prefixes)),
            "kv_type": runtime.kv_type,
            "flash_attn": runtime.flash_attn,
            "n_ctx": context.n_ctx,
            "n_seq_max": context.n_seq_max,
            "size_bytes": model.facts.size_bytes,
            "build": [build.source_digest, build.backend, __version__, platform.machine()],
        }
        cache = StateCache.of(folder / "prefixes", depends_on, model_sha256)
    state = cache.read() if cache else None
    if cache and state is not None:
        try:
            engine = Engine(model, context, prefixes, state)
        except DecodeError as e:
            warnings.warn(f"{cache.path}: {e}: the prefixes are computed anew", stacklevel=2)
        else:
            ledger.step("cache prefixes", f"{engine.n_cached} tokens of {engine.n_holders} prefixes, from {cache.path}")
            return engine
    began = perf_counter()
    engine = Engine(model, context, prefixes)
    if cache and (perf_counter() - began) * 1e3 >= WORTH_MS:
        cache.write(engine.saved_prefixes())
    ledger.step("cache prefixes", f"{engine.n_cached} tokens of {engine.n_holders} prefixes")
    return engine
