"""Waiting for an answer, as long as its client does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from .bodies import Scope
from .protocol import Protocol
from .refusal import ClientGoneError

T = TypeVar("T")


async def answered(work: Coroutine[Any, Any, T], scope: Scope) -> T:
    """What `work` returns; where the client leaves before that, it is cancelled, and ClientGoneError raised.

    scope: of a request whose body has been read.
    """
    connection = Protocol.of(scope)
    if connection is None:
        return await work
    task = asyncio.current_task()
    assert task is not None
    is_gone = False

    def leave() -> None:
        nonlocal is_gone
        is_gone = True
        task.cancel()

    connection.on_lost = leave
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        connection.on_lost = None
