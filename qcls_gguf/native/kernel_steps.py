"""The steps of this project's CUDA kernels that can be switched off, and the variants that a benchmark compares.

A step is an environment variable that is read whenever a context is made: "0" turns it off for this context, "1" turns
it on. So contexts on one loaded model can differ. Where the variable is not set a step is on, unless its meaning says
where. `LANE_ORDER` is read whenever a model is loaded, unless a WeightOrder is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .device import sees_cuda_gpu
from .library import build_info


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change to the kernels."""

    name: str
    variable: str
    meaning: str


STEPS = (
    Step(
        name="direct",
        variable="GGML_CUDA_MMQ_DIRECT",
        meaning="weights are fetched ahead, by the warp that multiplies; by default in code for 7.5 to 9.0",
    ),
    Step(
        name="quantize once",
        variable="GGML_CUDA_QUANTIZE_ONCE",
        meaning="activations are quantised once for all matrices that take them",
    ),
    Step(
        name="one launch",
        variable="GGML_CUDA_FUSE_MATRICES",
        meaning="matrices that take the same activations are multiplied in one launch",
    ),
    Step(
        name="glu",
        variable="GGML_CUDA_FUSE_GLU",
        meaning="gate and up are multiplied in one launch that ends with silu(gate)*up",
    ),
    Step(
        name="norm",
        variable="GGML_CUDA_FUSE_NORM",
        meaning="a sum, its norm and the quantising of that are one launch",
    ),
    Step(
        name="rope",
        variable="GGML_CUDA_FUSE_ROPE",
        meaning="norm and rotation of Q and K and the writes of K and V to the cache are one launch",
    ),
    Step(
        name="short loops",
        variable="GGML_CUDA_SHORT_LOOPS",
        meaning="from 64 columns on, loops that a T4's instruction cache holds; by default on 7.5 alone",
    ),
    Step(
        name="visible cells",
        variable="QCLS_VISIBLE_CELLS",
        meaning="attention reads only the cells that a token may see",
    ),
)
"""In the order in which variants add them; the one place that names them."""

LANE_ORDER = Step(
    name="lane order",
    variable="GGML_CUDA_LANE_ORDER",
    meaning="weights of Q8_0 and Q6_K are rearranged as the model is loaded, for code for 7.5; by default on 7.5 alone",
)
"""All contexts on a model have it, or none; variants add it behind STEPS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A choice of steps that are on."""

    name: str
    off: tuple[str, ...]
    """the variables that are 0; those of all other steps are 1"""


def variants(steps: tuple[Step, ...] = STEPS) -> tuple[Variant, ...]:
    """`stock`, which has every step off, then one step more each; the last has all."""
    names = ["stock", *(f"+ {step.name}" for step in steps)]
    return tuple(
        Variant(name=name, off=tuple(step.variable for step in steps[n_on:])) for n_on, name in enumerate(names)
    )


@contextmanager
def switched(variant: Variant, steps: tuple[Step, ...] = STEPS) -> Iterator[None]:
    """Contexts that are made inside, and models that are loaded, have this variant's kernels.

    The environment is what it was afterwards.
    """
    before = {step.variable: os.environ.get(step.variable) for step in steps}
    try:
        for variable in before:
            os.environ[variable] = "0" if variable in variant.off else "1"
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


def why_no_steps() -> str | None:
    """Why the steps cannot be compared with stock here, and what to do; None where a CUDA device has them."""
    if not build_info().is_cuda:
        return (
            "the steps are of CUDA kernels, and this build is for the CPU, where they change nothing: install with "
            "QCLS_CUDA=ON on a machine with an NVIDIA GPU"
        )
    if not sees_cuda_gpu():
        return "the steps are of CUDA kernels, and no CUDA device is seen: nvidia-smi tells what the driver sees"
    return None
