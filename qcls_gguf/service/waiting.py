"""Waiting for an answer while watching whether its client still does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from .bodies import Receive
from .refusal import ClientGoneError

T = TypeVar("T")

LOOK_AFTER_S = 0.005
"""An answer that comes sooner is not worth watching for: the watch costs a task."""


async def answered(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """What `work` returns; where the client leaves before that, it is cancelled, and ClientGoneError raised.

    receive: of a request whose body has been read: the next message is that the client has gone.
    """
    task = asyncio.current_task()
    assert task is not None
    is_gone = False
    watch: asyncio.Task[None] | None = None

    async def look() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    def begin() -> None:
        nonlocal watch
        watch = asyncio.create_task(look())

    timer = asyncio.get_running_loop().call_later(LOOK_AFTER_S, begin)
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        timer.cancel()
        if watch is not None:
            watch.cancel()
