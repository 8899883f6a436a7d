"""The header reader, on files of the package gguf and on every way of damaging them; types as gguf knows them."""

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from cases import cases
from gguf_parts import finish
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qcls_gguf.errors import ModelError, PlanError
from qcls_gguf.model.header import GgufHeader, Scalar, read_header
from qcls_gguf.native.arithmetic import dequantised, type_block

# The fixture holds bytes that no example changes, and every example writes its own file anew.
PROPERTY = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_model(path: Path, *, alignment: int | None = None) -> Path:
    """Write a small GGUF file with every kind of metadata and tensors of three types."""
    writer = gguf.GGUFWriter(path, "qwen3")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_file_type(7)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_bool("test.bool", True)
    writer.add_int8("test.i8", -8)
    writer.add_uint64("test.u64", 1 << 40)
    writer.add_float64("test.f64", 0.25)
    writer.add_token_list(["a", "bé", "", "d" * 300])
    writer.add_token_types([1, 1, 3, 1])
    writer.add_array("test.floats", [0.5, 1.5])
    writer.add_tensor("token_embd.weight", np.arange(96, dtype=np.float32).reshape(3, 32))
    writer.add_tensor("norm.weight", np.ones(5, dtype=np.float16))
    blocks = gguf.quants.quantize(
        np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("output.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    finish(writer)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model(tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


def header_bytes(*, version: int = 3, n_tensors: int = 0, n_keys: int = 0, body: bytes = b"") -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, n_tensors, n_keys) + body


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def one_key(layout: str, *values: float, key: bytes = b"k") -> bytes:
    return header_bytes(n_keys=1, body=string(key) + struct.pack("<" + layout, *values))


def one_tensor(layout: str, *values: int) -> bytes:
    return header_bytes(n_tensors=1, body=string(b"t") + struct.pack("<" + layout, *values))


def write_sparse(path: Path, content: bytes) -> Path:
    """Write `content` and behind it a hole of 8 GiB, which takes no disk space but minutes to walk over."""
    with path.open("wb") as file:
        file.write(content)
        file.truncate(8 << 30)
    return path


@pytest.mark.parametrize("alignment", [None, 8, 128])
def test_agrees_with_the_gguf_package(tmp_path: Path, alignment: int | None) -> None:
    path = write_model(tmp_path / "model.gguf", alignment=alignment)
    header = read_header(path)
    reader = gguf.GGUFReader(path)
    assert reader.alignment == (alignment or 32)
    assert list(header.tensors) == [tensor.name for tensor in reader.tensors]
    content = path.read_bytes()
    for tensor in reader.tensors:
        info = header.tensors[tensor.name]
        assert info.shape == tuple(tensor.shape.tolist())
        assert (info.ggml_type, info.offset, info.n_bytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
        assert content[info.offset : info.offset + info.n_bytes] == tensor.data.tobytes()
    assert header.arch == "qwen3"
    assert header.quantization == "Q8_0"
    assert header.scalars["test.bool"] is True
    assert header.scalars["test.i8"] == -8
    assert header.scalars["test.u64"] == 1 << 40
    assert header.scalars["test.f64"] == 0.25
    assert header.scalars["qwen3.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-6)


@PROPERTY
@given(data=st.data())
def test_a_truncated_file_is_refused(model: bytes, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(model)
    end = max(tensor.offset + tensor.n_bytes for tensor in read_header(path).tensors.values())
    length = data.draw(st.integers(0, end - 1))
    path.write_bytes(model[:length])
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    path.write_bytes(model[:end])  # the padding after the last tensor may be missing
    assert len(read_header(path).tensors) == 3


@PROPERTY
@given(data=st.data())
def test_damaged_bytes_never_do_worse_than_an_error(model: bytes, tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(model)
    for _ in range(data.draw(st.integers(1, 4))):
        patch = data.draw(
            st.binary(min_size=1, max_size=9) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"])
        )
        at = data.draw(st.integers(0, 1100))
        damaged[at : at + len(patch)] = patch
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    tracemalloc.start()
    began = time.perf_counter()
    message, ends = "", [0]
    try:
        ends += [tensor.offset + tensor.n_bytes for tensor in read_header(path).tensors.values()]
    except ModelError as error:
        message = str(error)
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert max(ends) <= len(damaged)
    assert "\n" not in message
    assert time.perf_counter() - began < 1
    assert peak_bytes < 1 << 20


@cases(
    (header_bytes(n_tensors=1 << 60), "the counts announces 1,152,921,504,606,846,976, and the limit is 131,072"),
    (one_key("IIQ", 9, 8, 1 << 40), "announces 1,099,511,627,776, and the limit"),
    (one_key("IIQ", 9, 6, 1 << 62), "the metadata value of 'k' lies beyond the file's end"),
    (one_key("IIQQ", 9, 8, 2, 1 << 63), "beyond the file's end"),
    (one_key("IIQ", 9, 9, 1), "array of the unknown type 9"),
    (one_key("I", 99), "unknown type 99"),
    (one_key("II", 4, 0, key=b"general.alignment"), "0, not a power of two"),
    (one_tensor("I", 5), "announces 5, and the limit is 4"),
    (one_tensor("IQIQ", 1, 32, 4, 0), "tensor 't' has the unknown type 4"),
    (one_tensor("IQIQ", 1, 32, 0, 9 << 30), r"ends at 9,663,.*, the file at 8,589,934,592: fetch the file again"),
    (one_tensor("I4QIQ", 4, *[1 << 63] * 4, 0, 0), "the file at 8,589,934,592"),
    ids=range(11),
)
def test_corrupted_headers_in_front_of_gigabytes(content: bytes, words: str, tmp_path: Path) -> None:
    path = write_sparse(tmp_path / "sparse.gguf", content)
    began = time.perf_counter()
    with pytest.raises(ModelError, match=words):
        read_header(path)
    assert time.perf_counter() - began < 1


@cases(
    (b"", "is empty"),
    (b"GG", "begins with 'GG'"),
    (b"\xef\xbb\xbf\n<!DOCTYPE html><title>404</title>", "<!DOCTYPE html>"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "https://git-lfs.*git lfs pull"),
    (struct.pack("<Q", 40) + b'{"__metadata__":{}}', "__metadata__"),
    (b"\x7fELF\x02\x01\x01\x00\x00", r"ELF.*: choose a \.gguf file"),
    (header_bytes(version=1), "GGUF version 1, not 2 or 3"),
)
def test_files_of_another_kind(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words):
        read_header(path)


OTHER_IN_GGUF = {gguf.GGMLQuantizationType.Q8_1}  # of activations only; ggml's blocks have two F16, gguf's two F32
NO_WEIGHTS = {"Q8_K", "I8", "I16", "I32", "I64", "F64"}
ONLY_IN_GGML = {"Q1_0"}
N_BLOCKS = 300


@pytest.mark.parametrize("kind", sorted(set(gguf.GGMLQuantizationType) - OTHER_IN_GGUF), ids=lambda kind: kind.name)
def test_a_type_is_what_gguf_takes_it_for(kind: gguf.GGMLQuantizationType) -> None:
    block = type_block(int(kind))
    assert block == gguf.GGML_QUANT_SIZES[kind]
    n_values, n_bytes = block
    data = np.random.default_rng(int(kind)).integers(0, 256, (N_BLOCKS, n_bytes), np.uint8)
    if kind.name in NO_WEIGHTS:
        with pytest.raises(PlanError, match="no values to multiply with"):
            dequantised(int(kind), data.ravel(), N_BLOCKS * n_values)
        return
    values = dequantised(int(kind), data.ravel(), N_BLOCKS * n_values)
    if kind.name in ONLY_IN_GGML:
        assert len(set(values[np.isfinite(values)].tolist())) > N_BLOCKS
        return
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(data, kind).astype(np.float32).ravel()
    is_nan = np.isnan(wanted)
    assert np.array_equal(np.isnan(values), is_nan)
    assert np.array_equal(values[~is_nan].view(np.uint32), wanted[~is_nan].view(np.uint32))


def test_files_are_named_as_gguf_names_them() -> None:
    def name(**scalars: Scalar) -> str:
        keys = {f"general.{key}": value for key, value in scalars.items()}
        return GgufHeader(path=Path(), stamp=("", 0, 0, 0), scalars=keys, tensors={}).quantization

    for kind in gguf.LlamaFileType:
        assert name(file_type=int(kind)) == kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    assert {name(), name(file_type=5), name(file_type="7")} == {"unknown"}
