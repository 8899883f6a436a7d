"""The ctypes declarations against the C header that they mirror."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from qcls_gguf.native.abi import ABI, SIGNATURES, Parse, Status, Struct, TokenKind

HEADER = Path(__file__).parents[2] / "qcls_gguf" / "native" / "src" / "qcls.h"
TEXT = HEADER.read_text(encoding="utf-8")
DECLARATION = re.compile(r"^QCLS_API [^(]*?\*? ?(qcls_\w+)\(([^;]*)\);", re.MULTILINE)
STRUCTS = {
    "qcls_" + re.sub(r"(?<!^)(?=[A-Z])", "_", struct.__name__).lower(): struct for struct in Struct.__subclasses__()
}


def members(struct: type[Struct]) -> list[str]:
    return [field[0] for field in struct._fields_]


def test_every_function_has_a_signature_with_as_many_arguments() -> None:
    declared = dict(DECLARATION.findall(TEXT))
    assert len(declared) == TEXT.count("QCLS_API ") - 1  # the macro itself
    assert declared.keys() == SIGNATURES.keys() | {"qcls_abi"}
    for name, signature in SIGNATURES.items():
        arguments = declared[name].split(",")
        assert arguments[-1].strip() == "qcls_error * error", name
        assert len(arguments) == len(signature) + 1, name


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_structs_and_statuses_are_the_compilers(tmp_path: Path) -> None:
    lines = ['printf("QCLS_ABI %d\\n", QCLS_ABI);']
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for member in members(struct):
            place = f"offsetof({name}, {member}), sizeof((({name} *) 0)->{member})"
            lines.append(f'printf("{name}.{member} %zu %zu\\n", {place});')
    lines += [f'printf("QCLS_{status.name} %d\\n", QCLS_{status.name});' for status in Status]
    lines += [f'printf("%d\\n", QCLS_PARSE_{parse.name});' for parse in Parse]
    lines += [f'printf("%d\\n", QCLS_TOKEN_{kind.name});' for kind in TokenKind]
    source = tmp_path / "layout.c"
    body = "\n    ".join(lines)
    source.write_text(
        f'#include "{HEADER}"\n#include <stddef.h>\n#include <stdio.h>\n'
        f"int main(void) {{\n    {body}\n    return 0;\n}}\n"
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = ["cc", *flags, str(source), "-o", str(tmp_path / "layout")]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()

    expected = [f"QCLS_ABI {ABI}"]
    for name, struct in STRUCTS.items():
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for member in members(struct):
            field = getattr(struct, member)
            expected.append(f"{name}.{member} {field.offset} {field.size}")
    expected += [f"QCLS_{status.name} {status.value}" for status in Status]
    expected += [str(parse.value) for parse in Parse] + [str(kind.value) for kind in TokenKind]
    assert printed == expected
