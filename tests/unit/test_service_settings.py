"""Settings of the service that are texts."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic_core")

from qcls_gguf.errors import ConfigError
from qcls_gguf.service.settings import check_origins


def test_origins_are_compared_as_browsers_write_them() -> None:
    given = ["*", "HTTPS://Example.COM", "http://localhost:3000", "http://[::1]:3000", "chrome-extension://abc"]
    assert check_origins(given) == ("*", "https://example.com", *given[2:])


@pytest.mark.parametrize(
    "origin", ["null", "example.com", "http://", "http://example.com:", "http://example.com/", "http://a b"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"^`cors_origin` "):
        check_origins([origin])
