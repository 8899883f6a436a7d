"""The prefixes of the configured prompts: computed at start-up, or from the file of an earlier start."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from time import perf_counter

from ..config.schema import RuntimeConfig
from ..config.words import counted
from ..errors import DecodeError
from ..native import build_info
from ..native.device import instruction_sets
from ..system.folders import cache_folder
from ..system.timing import Ledger
from ..version import __version__
from .cores import threads
from .engine import Engine
from .prefix_cache import Prefix, Tokens
from .prefix_file import StateCache, prefix_digest

WORTH_MS = 250.0
"""Prefixes are saved if computing them takes longer than this."""


def hold_prefixes(
    engine: Engine, wanted: Sequence[Tokens], runtime: RuntimeConfig, ledger: Ledger
) -> tuple[list[Prefix], StateCache | None]:
    """Hold prefixes in an engine whose cache is empty; see Engine.hold. Also returns the file whose cells were loaded,
    if one was.

    On a GPU nothing is saved: prefixes are computed there before the model file is hashed.
    Raises PlanError, DecodeError.
    """
    file = _file(engine, wanted, runtime)
    state = file.read() if file else None
    if file and state is not None:
        try:
            held = engine.hold(wanted, state)
        except DecodeError as e:
            file.warn(str(e))
        else:
            ledger.step("cache prefixes", f"{_cached(engine)}, from {file.path}")
            return held, file
    began = perf_counter()
    held = engine.hold(wanted)
    if file and (perf_counter() - began) * 1e3 >= WORTH_MS:
        file.write(engine.saved_prefixes())
    ledger.step("cache prefixes", _cached(engine))
    return held, None


def _cached(engine: Engine) -> str:
    return f"{counted(engine.cache.n_cells, 'token')} of {counted(len(engine.cache), 'prefix', 'prefixes')}"


def _file(engine: Engine, wanted: Sequence[Tokens], runtime: RuntimeConfig) -> StateCache | None:
    folder = cache_folder()
    if not runtime.state_cache or engine.model.n_gpu_layers > 0 or folder is None:
        return None
    build = build_info()
    depends_on = {
        "tokens": prefix_digest(dict.fromkeys(wanted)),
        "kv_type": runtime.kv_type,
        "flash_attn": runtime.flash_attn,
        "visible_cells": engine.context.why_no_visible_cells is None,
        "n_ctx": engine.context.n_ctx,
        "n_batch": engine.context.n_batch,
        "n_threads": threads(runtime).n,
        "n_seq_max": engine.context.n_seq_max,
        "n_leaf_seqs": engine.capacity.n_seqs,
        "size_bytes": engine.model.facts.size_bytes,
        "build": [build.source_digest, build.backend, __version__, platform.machine(), *instruction_sets()],
    }
    return StateCache.of(folder / "prefixes", depends_on, lambda: engine.model.identity().sha256)
