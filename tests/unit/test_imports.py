"""What `import qcls_gguf` gives, and what it and `qcls-gguf --help` leave alone."""

import subprocess
import sys

import pytest

import qcls_gguf


def modules_after(code: str) -> set[str]:
    """Which modules a fresh interpreter has after running code."""
    printed = f"{code}\nimport sys\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", printed], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES")[2].split())


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'qcls_gguf' has no attribute 'Clasifier'"):
        _ = qcls_gguf.Clasifier  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        exec("from qcls_gguf import Clasifier")


def test_tables_say_which_package_they_need() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import qcls_gguf.labelling"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: qcls_gguf.labelling needs pyarrow: pip install 'qcls-gguf[label]'" in done.stderr


def test_errors_can_be_caught_without_what_computes() -> None:
    assert not {"numpy", "pydantic", "qcls_gguf.native"} & modules_after("from qcls_gguf import QclsError")


def test_a_classifier_is_imported_without_what_only_some_users_need() -> None:
    assert not {"asyncio", "gguf", "huggingface_hub", "rich"} & modules_after("from qcls_gguf import Classifier")


def test_help_is_printed_without_what_computes() -> None:
    code = """
from typer.testing import CliRunner
from qcls_gguf.cli.app import app
import sys
assert "pydantic" not in sys.modules  # which typer itself imports for the options of a command
for words in (["--help"], ["run", "--help"], ["bench", "--help"]):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and "Usage" in result.output, result.output
"""
    assert not {"numpy", "qcls_gguf.config.load", "qcls_gguf.classifier", "rich"} & modules_after(code)
