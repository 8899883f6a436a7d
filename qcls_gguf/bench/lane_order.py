"""The variant with weights in lane order: the model loaded once more, where lane order can matter and memory allows it.

Lane order is made as a model is loaded, so two contexts of one loaded model cannot differ in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ModelError
from ..model import Model
from ..model.gpu_code import RunningCode, running_code
from ..model.placement import GPU_RESERVE_BYTES
from ..native import NativeModel, build_info
from ..native.cuda_driver import first_cuda_device
from ..native.kernel_steps import LANE_ORDER
from ..report.machine import gpu_free_bytes

_GIB = 1 << 30


@contextmanager
def loaded_in_lane_order(model: Model) -> Iterator[NativeModel | str]:
    """The model's file, loaded once more with its weights in lane order and closed in the end; or why it is left out.

    The environment says that lane order is wanted: kernel_steps.switched.
    """
    device = first_cuda_device() if build_info().is_cuda else None
    code = running_code(build_info().architectures, device.capability) if device else None
    if why := why_left_out(code, _bytes_on_gpu(model), gpu_free_bytes() or 0):
        yield why
        return
    try:
        second = NativeModel(model.path, n_gpu_layers=model.n_gpu_layers)
    except ModelError as e:  # what was measured before is worth more
        yield f"the model could not be loaded a second time: {e}"
        return
    with second:
        yield (
            second
            if second.facts.n_lane_ordered
            else ("the model has nothing to rearrange: no matrix of Q8_0 or Q6_K in its layers on the GPU")
        )


def why_left_out(code: RunningCode | None, n_bytes: int, n_free: int) -> str | None:
    """Why lane order is not compared, in one line; None where it can be.

    code: that the GPU runs, None where there is none; n_bytes: of the GPU's memory that the model takes; n_free: bytes
    free there.
    """
    if code is None or code.architecture // 10 != 7:
        runs = f", and this one runs code for {code.architecture / 10:.1f}" if code else ""
        return f"it is for cards that run code for 7.5{runs}"
    needed = n_bytes + GPU_RESERVE_BYTES
    if n_free < needed:
        return (
            f"loading the model a second time needs {needed / _GIB:.1f} GiB of the GPU's memory, and "
            f"{n_free / _GIB:.1f} are free: measure with {LANE_ORDER.variable}=1 in the environment and without it"
        )
    return None


def _bytes_on_gpu(model: Model) -> int:
    return model.facts.size_bytes * model.n_gpu_layers // (model.header.n_layer + 1)
