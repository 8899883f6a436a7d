"""What `make wheel` says of a wheel's files."""

import pytest
from check_wheel import CPU, LIBRARIES, TEXTS, TRIAL, VARIANTS, faults, foreign

GOOD = [
    *(f"qcls_gguf/native/lib/{name}.so" for name in LIBRARIES),
    *(f"qcls_gguf/native/lib/{CPU}-{name}.so" for name in VARIANTS["x86_64"]),
    *TEXTS,
    "qcls_gguf-0.1.0.dist-info/licenses/LICENSE",
    "qcls_gguf-0.1.0.data/scripts/qcls-gguf",
    TRIAL,
    "qcls_gguf/models/m.gguf",
    "qcls_gguf/a.py",
]


def test_a_wheel_that_is_whole() -> None:
    assert faults(GOOD, "x86_64") == []
    for_one_processor = [name for name in GOOD if f"/{CPU}-" not in name]
    assert faults([*for_one_processor, f"qcls_gguf/native/lib/{CPU}.so"], "x86_64") == []
    assert faults(GOOD, "aarch64") == [f"{CPU}-{name} is missing" for name in VARIANTS["aarch64"]]


@pytest.mark.parametrize("name", GOOD[:-1])
def test_what_is_missing_is_named(name: str) -> None:
    assert len(faults([other for other in GOOD if other != name], "x86_64")) == 1


@pytest.mark.parametrize(
    "name", ["native/src/qcls.h", "native/src/decode.cpp", "native/cuda/mmq.cuh", "native/new/a.c"]
)
def test_sources_are_named(name: str) -> None:
    assert faults([*GOOD, f"qcls_gguf/{name}"], "x86_64") == [f"qcls_gguf/{name} is a source"]


def test_libraries_that_others_may_not_have_are_told() -> None:
    assert foreign([], cuda=False) == []
    assert foreign(["libgomp.so.1", "libcuda.so.1"], cuda=False) == ["libgomp.so.1", "libcuda.so.1"]
    assert foreign(["libgomp.so.1", "libcuda.so.1", "libcublas.so.13", "libcudart.so.13"], cuda=True) == [
        "libgomp.so.1"
    ]
