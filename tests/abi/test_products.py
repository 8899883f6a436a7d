"""The CPU's products, on plain arrays, in every variant that runs here."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from cpu_kernels import INCLUDES, NATIVE, built_library, compiled_kernel, has_tiles, why_not
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize, quantize

Float32Array = npt.NDArray[np.float32]
Products = Callable[..., Float32Array]

VARIANTS = {
    "AVX-512": "-mavx512f -mavx512bw -mavx512vnni -mfma -mf16c",
    "AVX2 VNNI": "-mavx2 -mavxvnni -mfma -mf16c",
    "AVX-512 BF16": "-mavx512f -mavx512bf16",
    "AVX2": "-mavx2 -mfma -mf16c",
    "AMX": "-mavx512f -mavx512bw -mavx512vnni -mavx512bf16 -mamx-bf16 -mfma -mf16c",
}
"""What the kernels are written for, and the compiler's flags for it."""
FOR_FLOATS = "AVX-512 BF16"
"""A variant that only weights that are floats have."""
TYPES = [
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ3_S"),
    *("MXFP4", "NVFP4"),
]
FLOATS = ["F32", "F16", "BF16"]
HALVES = {"Q4_1": 2, "Q5_1": 2, "Q4_K": 2, "Q5_K": 2}
"""Scales of 16 bits in a block, at its beginning; of other types one, of Q3_K and Q6_K at its end."""
NO_NAN = ["MXFP4", "NVFP4"]
"""Types whose scales have 8 bits, all of them numbers."""
PRECISIONS = ["usual", "fast", "fine", "tiles"]
COLUMNS = [*range(1, 41), 57, 64, 107, 128, 129, 512]
LARGEST_ERROR = 1e-4
"""Of a sum of 512 products, of the sum of their magnitudes, with activations that 8 bits hold. Measured: 1e-6."""
BF16_ERROR = 2**-8
"""The same in tiles, where weights have 8 bits, too."""
ERRORS = {"usual": 0.004, "fast": 0.015, "fine": 0.0001, "tiles": 0.004}
"""Of products with normal activations, of their norm. Measured: 0.0024, 0.0123, 0.00005, 0.0024."""


@pytest.fixture(scope="module", params=["built", *VARIANTS])
def products(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Products:
    """`products(type, weights, x, piece=…, precision=…)`: (columns, rows); skips where a build has no such kernels."""
    variant: str = request.param
    flags = VARIANTS.get(variant, "")
    if reason := why_not(flags):
        pytest.skip(reason)
    compiled = compiled_kernel("products", tmp_path_factory.mktemp("products"), flags)
    own = built_library() if variant == "built" else compiled
    compute = compiled.compute_products
    compute.argtypes = [c_void_p, c_char_p, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int32, c_int64, c_void_p]
    compute_floats = compiled.compute_float_products
    compute_floats.argtypes = [c_void_p, c_char_p, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int64, c_void_p]
    compute.restype = compute_floats.restype = c_size_t
    find, find_floats = (
        ctypes.cast(function, c_void_p) for function in (own.qcls_product_kernels, own.qcls_float_kernels)
    )

    def run(
        name: str, weights: npt.NDArray[np.uint8], x: Float32Array, *, piece: int = 1 << 20, precision: str = "usual"
    ) -> Float32Array:
        type_name = ggml_name(name).encode()
        out = np.full((len(x), len(weights)), 7, np.float32)
        matrix = weights.ctypes.data, len(weights), x.shape[1], x.ctypes.data, len(x)
        if name in FLOATS and precision != "usual":
            pytest.skip("floats have one precision")
        if name in FLOATS:
            size = compute_floats(find_floats, type_name, *matrix, piece, out.ctypes.data)
            if not size and variant == "built":
                pytest.skip("the library was built for a processor without such products")
            assert size == weights.nbytes
            return out
        if variant == FOR_FLOATS:
            pytest.skip("a variant for floats")
        if precision == "tiles" and not has_tiles(own):
            pytest.skip("no tiles of bf16 here")
        size = compute(find, type_name, *matrix, PRECISIONS.index(precision), piece, out.ctypes.data)
        if not size and variant == "built":
            pytest.skip("the library was built for a processor without such products")
        most = 1.26 if name == "IQ3_S" else 1.05
        assert 0 < size <= most * weights.nbytes, "the layout takes more memory than the file, or there is none"
        return out

    return run


def random_weights(name: str, n_rows: int, n_values: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Random bytes, but for the scales: any code and any small scale occurs; floats are normal."""
    random = np.random.default_rng(seed)
    if name in FLOATS:
        values = random.normal(size=(n_rows, n_values)).astype(np.float32)
        return quantize(values, GGMLQuantizationType[name]).view(np.uint8)
    block_values, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = random.integers(256, size=(n_rows, n_values // block_values, block_bytes), dtype=np.uint8)
    n_halves = HALVES.get(name, 1)
    scales = random.normal(size=(*blocks.shape[:2], n_halves)).astype(np.float16) / np.float16(64)
    if name == "MXFP4":
        blocks[:, :, 0] = random.integers(100, 140, size=blocks.shape[:2])
    elif name != "NVFP4":
        blocks[:, :, places_of_scales(name, n_halves)] = scales.view(np.uint8)
    return blocks.reshape(n_rows, -1)


def places_of_scales(name: str, n: int) -> slice:
    """Where a block has n scales of 16 bits."""
    return slice(-2, None) if name in ("Q3_K", "Q6_K") else slice(0, 2 * n)


def whole_activations(n_columns: int, n_values: int, seed: int = 1) -> Float32Array:
    """Activations that 8 bits hold exactly: whole numbers up to 127, which occurs in any 32, times a power of two."""
    random = np.random.default_rng(seed)
    values = random.integers(-127, 128, size=(n_columns, n_values // 32, 32))
    values[:, :, 5] = 127
    powers = 2.0 ** random.integers(-3, 4, size=(n_columns, n_values // 32, 1))
    return (values * powers).reshape(n_columns, n_values).astype(np.float32)


def normal_activations(random: np.random.Generator, n_columns: int, n_values: int) -> Float32Array:
    """One in a hundred is 30 times as large, so that some blocks have a rest."""
    x = random.normal(size=(n_columns, n_values)).astype(np.float32)
    x[random.random(size=x.shape) < 0.01] *= 30
    return x


@pytest.fixture(scope="module")
def neon_products(tmp_path_factory: pytest.TempPathFactory) -> Products:
    """The same of the code for NEON with dotprod, under qemu."""
    compiler, qemu = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if not compiler or not qemu:
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user")
    program = tmp_path_factory.mktemp("neon") / "products"
    sources = [Path(__file__).parents[1] / "products.cpp", *(NATIVE / "cpu").glob("*products.cpp")]
    options = ["-std=c++17", "-O2", "-march=armv8.2-a+dotprod", "-static", "-DQCLS_PROGRAM", *INCLUDES]
    subprocess.run([compiler, *options, *map(str, sources), "-o", str(program)], check=True)

    def run(
        name: str, weights: npt.NDArray[np.uint8], x: Float32Array, *, piece: int = 1 << 20, precision: str = "usual"
    ) -> Float32Array:
        numbers = len(weights), x.shape[1], len(x), PRECISIONS.index(precision), piece
        command = [qemu, str(program), ggml_name(name), *map(str, numbers)]
        done = subprocess.run(command, input=weights.tobytes() + x.tobytes(), capture_output=True, check=True)
        return np.frombuffer(done.stdout, np.float32).reshape(len(x), len(weights))

    return run


def ggml_name(name: str) -> str:
    """Of a type, as ggml spells it."""
    return name[:-1].lower() + name[-1] if name.endswith("_K") else name.lower()


@pytest.mark.parametrize("precision", ["usual", "tiles"])
@pytest.mark.parametrize("name", [*TYPES, *FLOATS])
@pytest.mark.parametrize("n_rows", [16, 48, 96])
def test_products_are_those_of_the_dequantised_weights(
    products: Products, name: str, n_rows: int, precision: str
) -> None:
    compare_with_dequantised(products, name, n_rows, COLUMNS, precision)


@pytest.mark.parametrize("name", TYPES)
def test_products_by_neon_are_right_and_depend_on_row_and_column_alone(neon_products: Products, name: str) -> None:
    whole = compare_with_dequantised(neon_products, name, 44, [1, 7, 131])
    weights, x = random_weights(name, 44, 512), whole_activations(131, 512)
    np.testing.assert_array_equal(neon_products(name, weights, x[5:11], piece=8), whole[5:11])
    x[4, 300] = np.nan
    found = neon_products(name, weights, x[:9], precision="fine")
    assert np.isfinite(np.delete(found, 4, axis=0)).all()
    assert np.isnan(found[4]).all()


def compare_with_dequantised(
    products: Products, name: str, n_rows: int, columns: Sequence[int], precision: str = "usual"
) -> Float32Array:
    """Compare with exact products; returns those of the last number of columns."""
    weights = random_weights(name, n_rows, 512)
    exact = dequantize(weights, GGMLQuantizationType[name]).astype(np.float64)
    x = whole_activations(max(columns), 512)
    right = x.astype(np.float64) @ exact.T
    largest_error = BF16_ERROR if precision == "tiles" else LARGEST_ERROR
    bound = largest_error * (np.abs(x).astype(np.float64) @ np.abs(exact).T)
    for n_columns in columns:
        found = products(name, weights, x[:n_columns], precision=precision)
        assert (np.abs(found - right[:n_columns]) <= bound[:n_columns]).all(), n_columns
    return found


@pytest.mark.parametrize("precision", ["usual", "tiles"])
@pytest.mark.parametrize("weight", [-128, 127])
def test_the_largest_sums_are_exact(products: Products, weight: int, precision: str) -> None:
    blocks = np.zeros((32, 16, 34), np.uint8)
    blocks[:, :, :2] = np.ones(1, np.float16).view(np.uint8)  # the scale
    blocks[:, :, 2:] = weight % 256
    x = np.repeat(np.array([[127], [-127]], np.float32), 512, axis=1)
    found = products("Q8_0", blocks.reshape(32, -1), x, precision=precision)
    np.testing.assert_array_equal(found, np.outer([127 * weight * 512, -127 * weight * 512], np.ones(32)))


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (31, 33), (37, 100), (130, 1031)])
@pytest.mark.parametrize("name", FLOATS)
def test_weights_that_are_floats_may_have_any_shape(products: Products, name: str, shape: tuple[int, int]) -> None:
    n_rows, n_values = shape
    weights = random_weights(name, n_rows, n_values)
    exact = dequantize(weights, GGMLQuantizationType[name]).astype(np.float64).reshape(shape)
    x = np.random.default_rng(4).integers(-127, 128, size=(130, n_values)).astype(np.float32)
    bound = LARGEST_ERROR * (np.abs(x).astype(np.float64) @ np.abs(exact).T)
    for n_columns in (1, 3, 130):
        found = products(name, weights, x[:n_columns])
        assert (np.abs(found - x[:n_columns].astype(np.float64) @ exact.T) <= bound[:n_columns]).all()
        np.testing.assert_array_equal(found, products(name, weights, x[:n_columns], piece=32))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [*TYPES, *FLOATS])
def test_a_result_depends_on_its_row_and_column_alone(products: Products, name: str, precision: str) -> None:
    random = np.random.default_rng(2)
    weights = random_weights(name, 96, 768)
    x = normal_activations(random, max(COLUMNS), 768)
    whole = products(name, weights, x, precision=precision)
    for n_columns in COLUMNS:
        first = int(random.integers(max(COLUMNS) - n_columns + 1))
        part = products(name, weights, x[first : first + n_columns], precision=precision)
        np.testing.assert_array_equal(part, whole[first:][:n_columns])
    for piece in (16, 32, 48):
        np.testing.assert_array_equal(products(name, weights, x[:9], piece=piece, precision=precision), whole[:9])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", TYPES)
def test_errors_of_normal_activations(products: Products, name: str, precision: str) -> None:
    weights = random_weights(name, 48, 2304)
    x = normal_activations(np.random.default_rng(5), 130, 2304)
    exact = x.astype(np.float64) @ dequantize(weights, GGMLQuantizationType[name]).astype(np.float64).T
    error = products(name, weights, x, precision=precision) - exact
    assert np.linalg.norm(error) <= ERRORS[precision] * np.linalg.norm(exact)


@pytest.mark.parametrize("precision", PRECISIONS[:3])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_activations_have_8_bits_and_their_rest_8_more(products: Products, scale: float, precision: str) -> None:
    """The identity gives back each value, to within half a step of the largest of its 32, or of their largest rest."""
    weights = np.zeros((64, 2, 34), np.uint8)
    weights[:, :, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    for row in range(64):
        weights[row, row // 32, 2 + row % 32] = 1
    x = (np.random.default_rng(3).normal(size=(50, 64)) * scale).astype(np.float32)
    x[7, :32] = 0
    x[20:, 40] *= 1000
    found = products("Q8_0", weights.reshape(64, -1), x, precision=precision)
    half_steps = np.abs(x.reshape(50, 2, 32)).max(axis=2) / 254 * 1.001
    least = {"fast": np.inf, "usual": 1.5 * half_steps.mean(axis=1, keepdims=True), "fine": 0}
    has_rest = half_steps > least[precision]
    assert has_rest.any() == (precision != "fast")
    error = np.abs(found - x).reshape(50, 2, 32).max(axis=2)
    assert (error <= np.where(has_rest, half_steps / 254 * 1.01, half_steps)).all()
    assert (error[:, 0] > 0).any()


@pytest.mark.parametrize("precision", ["usual", "tiles"])
@pytest.mark.parametrize("name", [*TYPES, *FLOATS])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_spoils_its_column_and_no_other(
    products: Products, name: str, bad: float, precision: str
) -> None:
    weights = random_weights(name, 32, 512)
    x = whole_activations(9, 512)
    x[4, 300] = bad
    found = products(name, weights, x, precision=precision)
    assert np.isfinite(np.delete(found, 4, axis=0)).all()
    assert not np.isfinite(found[4]).any()


@pytest.mark.parametrize("precision", ["usual", "tiles"])
@pytest.mark.parametrize("name", [name for name in [*TYPES, *FLOATS] if name not in NO_NAN])
def test_a_scale_or_weight_that_is_no_number_spoils_its_row_and_no_other(
    products: Products, name: str, precision: str
) -> None:
    weights = random_weights(name, 32, 512)
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    weights[11, :block_bytes][places_of_scales(name, 1)] = 255  # in any of the formats
    if name == "F32":
        weights[11, :4] = 255
    found = products(name, weights, whole_activations(9, 512), precision=precision)
    assert np.isfinite(np.delete(found, 11, axis=1)).all()
    assert np.isnan(found[:, 11]).all()
