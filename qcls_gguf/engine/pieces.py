"""Long prefixes are stored piece by piece, so that callers who wait for a decode wait for one piece at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..errors import PlanError
from .batcher import Batcher
from .engine import Engine
from .prefix_cache import Prefix, Tokens

PIECE = 64
"""tokens of a piece: about as many as a request of several prompts feeds"""


def begin_prefixes(
    engine: Engine, batcher: Batcher[Any, Any], wanted: Sequence[Tokens], check_open: Callable[[], None]
) -> list[Prefix]:
    """Store all of some prefixes but for their last pieces, with a turn of those who wait before each piece.

    check_open() raises where the engine has been closed meanwhile. Returns the beginnings, held: `Engine.forget` them
    when the whole prefixes are held. Where there is no room for a beginning beside the others, it is left out.
    """
    begun: list[Prefix] = []
    try:
        for tokens in dict.fromkeys(wanted):
            held: list[Prefix] = []
            while len(tokens) > PIECE:
                longer = batcher.between_turns(partial(_next_piece, engine, tokens, held, check_open))
                if longer is None:
                    break
                held = longer
            begun += held
    except BaseException:
        batcher.run_alone(engine.forget, begun)
        raise
    return begun


def _next_piece(
    engine: Engine, tokens: Tokens, held: Sequence[Prefix], check_open: Callable[[], None]
) -> list[Prefix] | None:
    """The next longer beginning of a prefix instead of the one that is held; None where no whole piece is missing."""
    check_open()
    n_cached = engine.cache.match(tokens)[1]
    if len(tokens) - n_cached <= PIECE:
        return None
    try:
        longer = engine.hold([tokens[: n_cached + PIECE]])
    except PlanError:
        return None
    engine.forget(held)
    return longer
