"""The Python that threads need."""

from __future__ import annotations

import sys

import pytest

from qcls_gguf import Classifier, ConfigError


def test_a_python_without_its_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(ConfigError, match="start it with PYTHON_GIL=1 or -X gil=1"):
        Classifier.from_config("mission")
