"""Tables of cases for tests, and files of them."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])


def cases(*rows: Any, ids: Any = None) -> Callable[[Test], Test]:
    """Run a test once with each row: values of its first parameters, or the value of its first one."""

    def decorate(test: Test) -> Test:
        n = len(rows[0]) if isinstance(rows[0], tuple) else 1
        names = [*inspect.signature(test).parameters][:n]
        pytest.mark.parametrize(",".join(names), rows, ids=ids)(test)  # which marks the test itself
        return test

    return decorate


def written(path: Path, content: str | bytes | bytearray, encoding: str = "utf-8") -> Path:
    """The path of a file that has this content now."""
    path.write_bytes(content.encode(encoding) if isinstance(content, str) else content)
    return path
