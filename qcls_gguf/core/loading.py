"""How prompt sets come onto an engine: their prefixes are cached, their answers calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..config.calibration_file import Calibration
from ..config.prompt import PromptConfig
from ..config.schema import Config
from ..engine.prefix_cache import Prefix, Tokens
from ..errors import PlanError
from ..prompts.prompt_set import PromptSet
from ..score.adjustment import adjustments_of
from .core import Core
from .handle import LoadedPrompts

PIECE = 64
"""tokens of a piece of a prefix: about as many as a request of several prompts feeds"""


def load_prompts(
    core: Core,
    compiled: PromptSet,
    calibration: Calibration | None,
    *,
    sources: Sequence[PromptConfig],
    config: Config,
) -> LoadedPrompts:
    """Add a prompt set while requests are answered. sources, config: see LoadedPrompts.

    Long prefixes are decoded in pieces between turns, so that other callers wait for one piece at most. Raises
    PlanError where there is no room for its prefixes, ConfigError for a content-free query that cannot be labelled, and
    DecodeError; then nothing has changed.
    """
    begun = _begin_prefixes(core, compiled.prefixes)

    def load() -> LoadedPrompts:
        prompts = add(core, compiled, _hold(core, compiled, begun), sources=sources, config=config)
        try:
            calibrate(core, prompts, calibration)
        except BaseException:
            core.remove(prompts)
            raise
        return prompts

    return core.run(load)


def add(
    core: Core,
    compiled: PromptSet,
    held: Sequence[Prefix],
    *,
    sources: Sequence[PromptConfig],
    config: Config,
    is_configured: bool = False,
) -> LoadedPrompts:
    """A prompt set whose prefixes the engine holds; its answers are not calibrated yet. For the executor thread.

    The prefixes are released where this fails.
    """
    try:
        prompts = LoadedPrompts(core, compiled, held, sources=sources, config=config, is_configured=is_configured)
        core.add(prompts)
    except BaseException:
        core.engine.release(held)
        raise
    return prompts


def calibrate(core: Core, prompts: LoadedPrompts, calibration: Calibration | None) -> None:
    """Calibrate a set's answers from now on, as its settings or a calibration file say. For the executor thread.

    Raises ConfigError for a content-free query that cannot be labelled.
    """
    raw_scores = partial(core.raw_scores, prompts)
    prompts.answers.adjust(adjustments_of(prompts.compiled.settings, calibration, raw_scores))


def _hold(core: Core, compiled: PromptSet, begun: Sequence[Prefix]) -> list[Prefix]:
    """Cache the prefixes, and release their beginnings; release them first if there is no room for both."""
    try:
        held = core.engine.hold(compiled.prefixes)
    except PlanError:
        core.engine.forget(begun)
        return core.engine.hold(compiled.prefixes)
    except BaseException:
        core.engine.forget(begun)
        raise
    core.engine.forget(begun)
    return held


def _begin_prefixes(core: Core, wanted: Sequence[Tokens]) -> list[Prefix]:
    """Cache each prefix except its last piece; other turns come between two pieces.

    Returns the beginnings, which are pinned; one for which there is no room is left out.
    """
    begun: list[Prefix] = []
    try:
        for tokens in dict.fromkeys(wanted):
            held: list[Prefix] = []
            while len(tokens) > PIECE:
                longer = core.run(_next_piece, core, tokens, held)
                if longer is None:
                    break
                held = longer
            begun += held
    except BaseException:
        core.run(core.engine.forget, begun)
        raise
    return begun


def _next_piece(core: Core, tokens: Tokens, held: Sequence[Prefix]) -> list[Prefix] | None:
    """Cache one more piece of a prefix in place of its shorter beginning; None if less than a piece is missing."""
    engine = core.engine
    n_cached = engine.cache.match(tokens)[1]
    if len(tokens) - n_cached <= PIECE:
        return None
    try:
        longer = engine.hold([tokens[: n_cached + PIECE]])
    except PlanError:
        return None
    engine.forget(held)
    return longer
