"""Random tensors and keys for a GGUF file: matrices of a given spread in any type, norms, biases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import quantize

Add = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class RandomTensors:
    """Adds tensors and keys to one GGUF file, all drawn from one generator.

    `weight_type` is the name of the type that matrices have unless told otherwise.
    """

    writer: GGUFWriter
    rng: np.random.Generator
    weight_type: str

    def key(self, name: str, value: float | bool | str | Sequence[int]) -> None:
        """Add the key `<arch>.<name>`, typed as its value is."""
        key = f"{self.writer.arch}.{name}"
        self.writer.kv_data[0].pop(key, None)  # what every model has, a family may have otherwise
        w = self.writer
        adds: dict[type, Add] = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, str: w.add_string}
        add: Add = adds.get(type(value), w.add_array)
        add(key, value)

    def keys(self, group: str, **values: float | bool | Sequence[int]) -> None:
        """Add the keys `<arch>.<group>.<name>`."""
        for name, value in values.items():
            self.key(f"{group}.{name}", value)

    def matrix(
        self,
        name: str,
        n_in: int,
        n_out: int,
        *,
        gain: float = 1.0,
        bias: bool = False,
        n_expert: int | None = None,
        type_name: str | None = None,
    ) -> None:
        """Add `name.weight` (n_out, n_in), or (n_expert, n_out, n_in), with `name.bias` (n_out,) if asked for.

        For an input of spread 1 its product has spread `gain`. A row that no whole number of blocks fills is F16, as
        llama-quantize would have it.
        """
        shape = (n_out, n_in) if n_expert is None else (n_expert, n_out, n_in)
        kind = GGMLQuantizationType[type_name or self.weight_type]
        if n_in % GGML_QUANT_SIZES[kind][0]:
            kind = GGMLQuantizationType.F16
        std = gain / n_in**0.5
        if kind in SCALES:
            rows = random_blocks(self.rng, kind, shape, std)
        else:
            rows = quantize(self.rng.normal(0, std, shape).astype(np.float32), kind)
        self.writer.add_tensor(f"{name}.weight", rows, raw_dtype=kind)
        if bias:
            self.vector(f"{name}.bias", n_out)

    def vector(self, name: str, n: int | tuple[int, int], *, mean: float = 0.0, std: float = 0.2) -> None:
        """Add the F32 tensor `name` (n,), or of that shape."""
        self.writer.add_tensor(name, self.rng.normal(mean, std, n).astype(np.float32))

    def decay(self, name: str, n: int | tuple[int, int], *, mean: float = 0.0) -> None:
        """Add the F32 tensor `name` (n,), or of that shape: -exp of normal numbers, as state-space layers have them."""
        self.writer.add_tensor(name, -np.exp(self.rng.normal(mean, 0.5, n)).astype(np.float32))

    def norm(self, name: str, n: int, *, bias: bool = False) -> None:
        """Add norm weights `name.weight` (n,) around 1, with `name.bias` (n,) around 0 if asked for."""
        self.vector(f"{name}.weight", n, mean=1.0)
        if bias:
            self.vector(f"{name}.bias", n)


LOGIT_SPREAD = 2.5
"""The gain of matrices that give logits."""
_T = GGMLQuantizationType
SCALES: dict[GGMLQuantizationType, dict[int, float]] = {
    _T.Q3_K: {108: 1 / 43},
    _T.Q4_K: {0: 1 / 257, 2: 7.5 / 257},
    _T.Q5_K: {0: 1 / 520, 2: 15.5 / 520},
    _T.Q6_K: {208: 1 / 1366},
    _T.IQ3_S: {0: 1 / 145},
    _T.IQ4_NL: {0: 1 / 68},
    _T.IQ4_XS: {0: 1 / 1260},
}
"""Of types that gguf cannot encode: where a block has float16 scales, and these for values of spread 1, the scales of 4
to 8 bits being uniform (ggml-common.h has the layouts)."""


def random_blocks(
    rng: np.random.Generator, kind: GGMLQuantizationType, shape: tuple[int, ...], std: float
) -> npt.NDArray[np.uint8]:
    """Random valid blocks of a type of SCALES, of values with mean about 0 and spread about `std`.

    All bytes are random but the float16 scales. Returns bytes (..., n_in / values of a block * bytes of a block).
    """
    n_values, n_bytes = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // n_values, n_bytes), dtype=np.uint8)
    for offset, value in SCALES[kind].items():
        blocks[..., offset : offset + 2] = np.frombuffer(np.float16(value * std).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], -1)
