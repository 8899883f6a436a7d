"""Tables of cases for tests."""

import inspect
from collections.abc import Callable
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
