"""This project's kernels in machine code: the loop over K of a matrix product, the loop over cells of attention."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from . import sass

K_BLOCK = 256
GGML_TYPES = {8: "q8_0", 12: "q4_k", 14: "q6_k"}
IMMA_VALUES = {"8816": 16 * 8, "16816": 16 * 16, "16832": 32 * 16}
"""values of K times rows of one int8 product"""
_PRODUCT = re.compile(
    r"mul_matINS_(?:5shape|12(coarse)_shape)IL9ggml_type(\d+)ELi(\d+)"
    r"(?:ELNS_10generationE(\d)ELb(\d))?(?:ELb(\d))?(?:ELb(\d))?EEELb(\d)E"
)
_ATTENTION = re.compile(r"qcls_attend6attendILi(\d+)E")


def _short_from(weights: str, lanes: bool) -> int:
    """Columns from which a device of 7.5 takes the kernels with a short loop, as the launches have it."""
    return _constant("LEAST_COLUMNS_OF_SHORT_LOOP" + ("_Q6_K_LANES" if lanes and weights == "q6_k" else ""))


def _constant(name: str) -> int:
    """A number that the launches have."""
    header = (Path(__file__).parent / "mmq_direct_launch.h").read_text()
    found = re.search(rf" {name} = (\d+);", header)
    assert found is not None
    return int(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductLoop(sass.Loop):
    """The loop over K of a matrix kernel, scaled to 256 values of K."""

    weights: str
    columns: int
    rows: int
    """of a warp; half of them where two warps halve the columns, so that a row and a column are one warp's"""
    generation: int
    """0: code for 7.5; 1: for 8.0 and newer"""
    short_loop: bool
    lanes: bool
    """whether weights are in lane order"""
    halves: bool
    """whether two warps halve the columns"""
    coarse: bool
    """whether activations have a scale for 128 values, or for a whole row"""
    glu: bool

    @property
    def is_default(self) -> bool:
        """Whether a device that this code is for runs it where no variable says otherwise; for 7.5: a T4."""
        is_short = self.generation == 0 and self.columns >= _short_from(self.weights, self.lanes)
        return not self.coarse and self.short_loop == is_short and self._is_for_few

    @property
    def is_chosen(self) -> bool:
        """Whether a T4 runs it only where coarse scales of activations are asked for."""
        return self.coarse and self._is_for_few

    @property
    def _is_for_few(self) -> bool:
        """Whether devices of few multiprocessors run it."""
        return not self.halves or self.columns >= _constant("LEAST_COLUMNS_OF_HALVES")

    @property
    def name(self) -> str:
        marks = {"lanes": self.lanes, "halves": self.halves, "coarse": self.coarse, "glu": self.glu}
        return ", ".join([self.weights, f"{self.columns} columns", *(mark for mark, is_so in marks.items() if is_so)])


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLoop(sass.Loop):
    """The loop over cells of an attention kernel: a chunk of 32 of them, 16 rows of a warp.

    All of it is counted, also what a chunk needs only where it raises a row's largest score.
    """

    head_size: int

    @property
    def is_default(self) -> bool:
        return True

    @property
    def is_chosen(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return f"attention, heads of {self.head_size}"


def loops(listing: str, registers: dict[str, int]) -> list[ProductLoop | AttentionLoop]:
    """The kernels of a listing of `cuobjdump -sass`: products by type, columns and so on, then attention by heads."""
    products: list[ProductLoop] = []
    attention: list[AttentionLoop] = []
    for name, body in sass.functions(listing.splitlines()):
        product, attends = _PRODUCT.search(name), _ATTENTION.search(name)
        if not (product or attends) or not (inside := sass.main_loop(body)):
            continue
        n_registers = registers.get(name, 0)
        if attends:
            attention.append(AttentionLoop(head_size=int(attends[1]), **sass.of_loop(inside, n_registers)))
        elif product:
            coarse = product[1] is not None
            number, columns, generation, short_loop, lanes, halves, glu = (
                int(each or 0) for each in product.groups()[1:]
            )
            short_loop = short_loop or coarse
            # the rows of a warp follow from the products: those of K_STEP or of K_BLOCK values of K, for 8 columns each
            names = [instruction for _, instruction, _ in inside]
            values = sum(IMMA_VALUES[each.split(".")[1]] for each in names if each.startswith("IMMA"))
            n_k = K_BLOCK // 2 if short_loop else K_BLOCK
            n_groups = columns / 8 + (columns / 8 % 2 if halves else 0)  # the middle one of an odd number is both's
            products.append(
                ProductLoop(
                    weights=GGML_TYPES[number],
                    columns=columns,
                    rows=round(values / n_groups / n_k),
                    generation=generation,
                    short_loop=bool(short_loop),
                    lanes=bool(lanes),
                    halves=bool(halves),
                    coarse=coarse,
                    glu=bool(glu),
                    **sass.of_loop(inside, n_registers, K_BLOCK / n_k),
                )
            )
    products.sort(key=lambda each: (each.weights, each.lanes, each.glu, each.short_loop, each.columns))
    return [*products, *sorted(attention, key=lambda each: each.head_size)]


def read(path: Path, arch: str) -> list[ProductLoop | AttentionLoop]:
    """The kernels in a file; ValueError where cuobjdump is missing or cannot read it."""
    return loops(*sass.read(path, arch))


def too_large(found: list[ProductLoop | AttentionLoop], limit: int) -> list[str]:
    """A line for each kernel that runs by default, or with coarse scales, and whose loop has more bytes than limit."""
    return [
        f"{each.name}: the loop has {each.code_bytes} bytes of code, the limit is {limit}"
        for each in found
        if (each.is_default or each.is_chosen) and each.code_bytes > limit
    ]
