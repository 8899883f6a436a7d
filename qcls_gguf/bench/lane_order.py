"""A model's file loaded once more, with its weights in the other order: so two contexts can differ in lane order.

Lane order is made as a model is loaded, so two contexts of one loaded model cannot differ in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ModelError
from ..model import Model
from ..model.gpu_code import RunningCode, running_code
from ..model.placement import room_bytes, used_gpus
from ..native import NativeModel, WeightOrder, build_info
from ..native.cuda_driver import first_cuda_device
from ..native.kernel_steps import LANE_ORDER

_GIB = 1 << 30


@contextmanager
def loaded_in_lane_order(model: Model) -> Iterator[NativeModel | str]:
    """The model with its weights in lane order, or why that is left out; closed in the end if it was loaded here."""
    if model.facts.n_lane_ordered:
        yield model.native
        return
    device = first_cuda_device() if build_info().is_cuda else None
    code = running_code(build_info().architectures, device.capability) if device else None
    if why := why_no_lane_order(code) or why_no_second(model):
        yield why
        return
    try:
        second = _loaded(model, WeightOrder.LANES)
    except ModelError as e:  # what was measured before is worth more
        yield f"the model could not be loaded a second time: {e}"
        return
    with second:
        yield (
            second
            if second.facts.n_lane_ordered
            else ("the model has nothing to rearrange: no matrix of Q8_0 or Q6_K in its layers on the GPU")
        )


@contextmanager
def loaded_in_file_order(model: Model) -> Iterator[NativeModel]:
    """The model with its weights as the file has them, loaded here and closed in the end where it has lane order.

    Raises ModelError.
    """
    if not model.facts.n_lane_ordered:
        yield model.native
        return
    with _loaded(model, WeightOrder.FILE) as second:
        yield second


def _loaded(model: Model, weight_order: WeightOrder) -> NativeModel:
    return NativeModel(
        model.path, n_gpu_layers=model.n_gpu_layers, share=model.placement.gpu_layers, weight_order=weight_order
    )


def why_no_lane_order(code: RunningCode | None) -> str | None:
    """Why a GPU has no kernels for lane order, in one line; None where it has them.

    code: that the GPU runs, None where there is none.
    """
    if code is not None and code.architecture // 10 == 7:
        return None
    runs = f", and this one runs code for {code.architecture / 10:.1f}" if code else ""
    return f"it is for cards that run code for 7.5{runs}"


def why_no_second(model: Model) -> str | None:
    """Why the GPUs that hold the model cannot hold it once more, in one line; None where they can."""
    n_bytes = model.facts.size_bytes * model.n_gpu_layers // (model.header.n_layer + 1)
    return why_no_memory(n_bytes, room_bytes(used_gpus(model.placement)))


def why_no_memory(n_bytes: int, n_room: int) -> str | None:
    """The same for a model that takes n_bytes of GPU memory, which has room for n_room bytes of weights."""
    if n_room >= n_bytes:
        return None
    return (
        f"loading the model a second time takes {n_bytes / _GIB:.1f} GiB of the GPU's memory, which has room for "
        f"{n_room / _GIB:.1f}: measure decodes without this comparison twice, with {LANE_ORDER.variable}=1 in the "
        "environment and with 0"
    )
