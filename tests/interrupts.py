"""An interrupt right after the n-th call of a method, as of Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest


@dataclass(slots=True)
class Calls:
    """Calls of the method that are left until the interrupt; 0 or less: it came."""

    left: int


@contextmanager
def interrupted_behind(owner: object, method: str, n: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """The n-th call of the method inside is made, and then interrupted, which ends what is inside."""
    call, calls = getattr(owner, method), Calls(n)

    def counted(*arguments: object, **options: object) -> object:
        calls.left -= 1
        answer = call(*arguments, **options)
        if calls.left == 0:
            raise KeyboardInterrupt
        return answer

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(owner, method, counted)
        yield calls
