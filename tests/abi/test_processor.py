"""A build for another kind of processor says so: what it needs, and what the processor has (`make cpus`: refusals)."""

import platform
import re
from pathlib import Path

import pytest

from qcls_gguf import ModelError
from qcls_gguf.native.library import check_processor, library_folder, processor_text

LIBRARY = library_folder() / "libqcls-processor.so"
LINUX_NAMES = {
    "SSE3": "pni", "LZCNT": "abm", "BMI": "bmi1", "AVXVNNI": "avx_vnni", "AVXIFMA": "avx_ifma",
    "AVXVNNIINT8": "avx_vnni_int8", "AVXNECONVERT": "avx_ne_convert", "AVX512VBMI2": "avx512_vbmi2",
    "AVX512VNNI": "avx512_vnni", "AVX512BITALG": "avx512_bitalg", "AVX512VPOPCNTDQ": "avx512_vpopcntdq",
    "AVX512FP16": "avx512_fp16", "AVX512BF16": "avx512_bf16",
}  # fmt: skip
"""Of those whose name in /proc/cpuinfo is another than the compiler's in small letters."""
CPUINFO = Path("/proc/cpuinfo")
on_x86 = pytest.mark.skipif(
    platform.machine() != "x86_64" or not CPUINFO.exists(), reason="reads Linux's list for x86-64"
)


@on_x86
def test_the_processor_has_what_the_system_says() -> None:
    found = re.search(r"^flags\s*: (.*)$", CPUINFO.read_text(), re.MULTILINE)
    assert found
    flags = set(found[1].split())
    has = processor_text(LIBRARY, "qcls_processor_has")
    source = (Path(__file__).parents[2] / "qcls_gguf/native/host/processor.h").read_text()
    names = re.findall(r"^    X\((\w+),", source, re.MULTILINE)
    assert len(names) > 30
    assert has.split() == [name for name in names if LINUX_NAMES.get(name, name.lower()) in flags]


def test_the_build_lacks_nothing_where_it_runs() -> None:
    assert processor_text(LIBRARY, "qcls_processor_lacks") == ""


def test_a_library_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "libqcls-processor.so").write_text("none")
    with pytest.raises(ModelError, match=r"libqcls-processor\.so cannot be loaded: .*: install the package again"):
        check_processor(tmp_path / "libqcls-processor.so")
