"""An interrupt right behind the n-th call of a method, or before the n-th line of some files, as of Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest


@dataclass(slots=True)
class Calls:
    """Calls of the method, or lines, that are left until the interrupt; 0 or less: it came."""

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


@contextmanager
def interrupted_before_line(files: tuple[str, ...], n: int) -> Iterator[Calls]:
    """The n-th line inside of functions of these files (ends of their paths) is not run, and ends what is inside."""
    lines = Calls(n)

    def in_function(_frame: FrameType, event: str, _argument: Any) -> Any:
        lines.left -= event == "line"
        if event == "line" and lines.left == 0:
            raise KeyboardInterrupt
        return in_function

    before = sys.gettrace()
    sys.settrace(lambda frame, _event, _argument: in_function if frame.f_code.co_filename.endswith(files) else None)
    try:
        with suppress(KeyboardInterrupt):
            yield lines
    finally:
        sys.settrace(before)
