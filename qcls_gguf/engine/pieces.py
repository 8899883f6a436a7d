"""Long prefixes are decoded in pieces, so that other callers wait for one piece at most."""

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
    """Store all of some prefixes except their last pieces, serving one turn of waiting callers before each piece.

    check_open() raises if the engine has been closed meanwhile. Returns the stored beginnings, which are pinned: call
    `Engine.forget` when the whole prefixes are stored. A beginning for which there is no room is left out.
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
    """Store one more piece of a prefix in place of its shorter beginning; None if less than a piece is missing."""
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
