"""What is closed at the end of a `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """Base of objects that hold memory or files until they are closed."""

    def close(self) -> None:
        """Free what it holds; may be called again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
