"""`qcls-gguf bench` in this process."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from qcls_gguf.cli.app import app


def bench(*arguments: object) -> Result:
    """The command with a light probe: a start of the interpreter takes longer than what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("COPY_BYTES", 1 << 20), ("PROBE_SIDE", 256), ("PROBE_COLUMNS", 32), ("BUDGET_S", 0.02)):
            patch.setattr(f"qcls_gguf.bench.roofline.{name}", value)
        return CliRunner().invoke(app, ["bench", *map(str, arguments)])
