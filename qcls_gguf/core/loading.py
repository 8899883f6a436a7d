"""Adds prompt sets to an engine: caches their prefixes and calibrates their answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from ..config.calibration_file import Calibration
from ..config.prompt import PromptConfig
from ..engine.prefix_cache import Prefix, Tokens
from ..errors import DecodeError, PlanError
from ..prompts.prompt_set import PromptSet
from ..score.adjustment import adjustments_of
from .core import Core
from .handle import LoadedPrompts

PIECE = 64
"""tokens of a prefix that are decoded between two turns: about as many as a request of several prompts feeds"""


def load_prompts(core: Core, compiled: PromptSet, calibration: Calibration | None) -> LoadedPrompts:
    """Add a prompt set while requests are answered.

    Long prefixes are decoded in pieces between turns, so that other callers wait for one piece at most. Raises
    PlanError where there is no room for its prefixes, ConfigError for a content-free query that cannot be labelled, and
    DecodeError; then nothing has changed.
    """
    begun: list[Prefix] = []  # only the executor thread changes these two lists
    loaded: list[LoadedPrompts] = []

    def load() -> None:
        prompts = add(core, compiled, _hold(core, compiled, begun))
        loaded.append(prompts)
        calibrate(core, prompts, calibration)

    def undo() -> None:
        core.engine.forget(begun)
        for prompts in loaded:
            core.remove(prompts)

    try:
        for tokens in dict.fromkeys(compiled.prefixes):
            n_before = len(begun)
            while core.run(_has_grown, core, tokens, begun, n_before):
                pass
        core.run(load)
        return loaded[0]
    except BaseException:  # an interrupt leaves an action that still runs: it ends before this one
        with suppress(DecodeError):  # the classifier was closed, and its engine with it
            core.run(undo)
        raise


def add(
    core: Core,
    compiled: PromptSet,
    held: Sequence[Prefix],
    sources: Sequence[PromptConfig] | None = None,
) -> LoadedPrompts:
    """A prompt set whose prefixes the engine holds; its answers are not calibrated yet. For the executor thread.

    sources: see LoadedPrompts. The prefixes are released where this fails.
    """
    try:
        prompts = LoadedPrompts(core, compiled, held, sources)
        core.add(prompts)
    except BaseException:
        core.engine.release(held)
        raise
    return prompts


def some_of(loaded: LoadedPrompts, names: Sequence[str]) -> LoadedPrompts:
    """Some prompts of a set as a set of their own with the same calibration, until it is closed. For any thread.

    Raises DecodeError if the classifier was closed.
    """
    core, prompts = loaded.core, loaded.compiled.subset(names)
    calibrated = zip(loaded.prompts, loaded.adjustments, strict=True)
    adjustments = [adjustment for prompt, adjustment in calibrated if prompt.name in names]

    def load() -> LoadedPrompts:
        added = add(core, prompts, core.engine.hold(prompts.prefixes))
        added.is_configured = loaded.is_configured
        added.answers.adjust(adjustments)
        return added

    return core.run(load)


def calibrate(core: Core, prompts: LoadedPrompts, calibration: Calibration | None) -> None:
    """Calibrate a set's answers from now on, as its settings or a calibration file say. For the executor thread.

    Raises ConfigError for a content-free query that cannot be labelled.
    """
    raw_scores = partial(core.raw_scores, prompts)
    prompts.answers.adjust(adjustments_of(prompts.compiled.settings, calibration, raw_scores))


def _hold(core: Core, compiled: PromptSet, begun: list[Prefix]) -> list[Prefix]:
    """Cache the whole prefixes, then evict the pieces cached before; evict these first if there is no room for both."""
    held = None
    with suppress(PlanError):
        held = core.engine.hold(compiled.prefixes)
    core.engine.forget(begun)
    begun.clear()
    return core.engine.hold(compiled.prefixes) if held is None else held


def _has_grown(core: Core, tokens: Tokens, begun: list[Prefix], n_before: int) -> bool:
    """Cache one more piece of a prefix, unless it is the last one; returns whether it did.

    begun: the pinned beginnings of prefixes; first n_before of other ones, then at most one of this prefix, which the
    longer beginning replaces. Returns False also if there is no room.
    """
    engine = core.engine
    n_cached = engine.cache.match(tokens)[1]
    if len(tokens) - n_cached <= PIECE:
        return False
    try:
        longer = engine.hold([tokens[: n_cached + PIECE]])
    except PlanError:
        return False
    engine.forget(begun[n_before:])
    begun[n_before:] = longer
    return True
