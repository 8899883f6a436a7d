"""What `make wheel` says of a wheel's files."""

from __future__ import annotations

import pytest
from check_wheel import LIBRARIES, TEXTS, TRIAL, faults

GOOD = [
    *(f"qcls_gguf/native/lib/{name}.so" for name in LIBRARIES),
    *TEXTS,
    "qcls_gguf-0.1.0.data/scripts/qcls-gguf",
    TRIAL,
    "qcls_gguf/models/m.gguf",
    "qcls_gguf/a.py",
]


def test_a_wheel_that_is_whole() -> None:
    assert faults(GOOD) == []


@pytest.mark.parametrize("name", GOOD[:-1])
def test_what_is_missing_is_named(name: str) -> None:
    assert len(faults([other for other in GOOD if other != name])) == 1


@pytest.mark.parametrize(
    "name", ["native/src/qcls.h", "native/src/decode.cpp", "native/cuda/mmq.cuh", "native/new/a.c"]
)
def test_sources_are_named(name: str) -> None:
    assert faults([*GOOD, f"qcls_gguf/{name}"]) == [f"qcls_gguf/{name} is a source"]
