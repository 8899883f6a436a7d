"""What a process that is started for a device sees of the machine's GPUs."""

from __future__ import annotations

import pytest

from qcls_gguf.errors import ConfigError
from qcls_gguf.labelling.processes import check_used, visible_gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("lent", "device", "seen"),
    [(None, "3", "3"), (None, "cpu", ""), ("GPU-1f, GPU-2e", "1", "GPU-2e"), ("2", "9", None)],
)
def test_a_device_is_one_of_those_that_this_process_may_see(
    lent: str | None, device: str, seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    if lent is not None:
        monkeypatch.setenv(VISIBLE, lent)
    if seen is None:
        with pytest.raises(ConfigError, match="`devices` 9: CUDA_VISIBLE_DEVICES=2 lets"):
            visible_gpus(device)
    else:
        assert visible_gpus(device) == seen


def test_a_process_for_a_gpu_must_use_it() -> None:
    check_used("cpu", 0)
    check_used("1", 20)
    with pytest.raises(ConfigError, match="`devices` 1: no layer of the model is on that GPU"):
        check_used("1", 0)
