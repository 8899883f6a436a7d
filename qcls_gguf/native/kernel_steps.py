"""The steps of this project's kernels, and the environment variables that switch them.

A step is on where its variable is 1 and off where it is 0, for contexts that are created then; lane order, the CPU's
products and the walk of token trees for models that are loaded then. docs/kernels.md, docs/cpu.md and docs/models.md
say what each does, and where it is on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

STEPS = {
    "direct": "QCLS_MMQ_DIRECT",
    "quantize once": "QCLS_QUANTIZE_ONCE",
    "one launch": "QCLS_FUSE_MATRICES",
    "glu": "QCLS_FUSE_GLU",
    "norm": "QCLS_FUSE_NORM",
    "rope": "QCLS_FUSE_ROPE",
    "short loops": "QCLS_SHORT_LOOPS",
    "visible cells": "QCLS_VISIBLE_CELLS",
}
"""Variables by the step's name, in the order in which comparisons add them."""
LANE_ORDER = "QCLS_LANE_ORDER"
CPU_PRODUCTS = "QCLS_CPU_PRODUCTS"
TREE_WALK = "QCLS_TREE_WALK"
STOCK = dict.fromkeys((*STEPS.values(), CPU_PRODUCTS, TREE_WALK), "0")
"""The environment in which a model is loaded, and a context made, that run llama.cpp's own kernels."""

_QUANTISED = {
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4"),
}
OWN_TYPES = {"GPU": _QUANTISED, "CPU": _QUANTISED | {"NVFP4", "F32", "F16", "BF16"}}
"""The types of weights that this project's kernels multiply by, by the kind of device; all others llama.cpp's do."""


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables are in the environment inside, and what they were before afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        os.environ.update(variables)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
