"""Checking and identifying model files, with real files and the real cache in a folder of the test's own."""

import hashlib
import json
import os
import re
import struct
import time
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
from cases import cases, written
from gguf_parts import finish
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qcls_gguf.errors import ModelError, PlanError
from qcls_gguf.model.files import ModelFile, sha256_of
from qcls_gguf.model.header import GgufHeader, Scalar, read_header
from qcls_gguf.native.arithmetic import dequantised, type_block


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "qcls-gguf" / "sha256.json"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return written(tmp_path / "large.gguf", os.urandom(1 << 20) * 16)


def write_split(folder: Path, name: str = "model") -> list[Path]:
    """Write a model with a tensor in each of two parts, as GGUFWriter splits it."""
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", "qwen3", split_max_tensors=1)
    writer.add_tensor("a", np.zeros(8, dtype=np.float32))
    writer.add_tensor("b", np.ones(8, dtype=np.float32))
    finish(writer)
    return sorted(folder.glob(f"{name}-*.gguf"))


def hashed(path: Path) -> tuple[str, bool]:
    """The digest of `path`, and whether the file was read for it."""
    go_on = Mock(return_value=True)
    return sha256_of([path], go_on=go_on), go_on.called


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_large_file_is_hashed_once(large: Path, cache: Path) -> None:
    digest = sha256(large)
    (link := large.with_name("link.gguf")).symlink_to(large)
    assert [hashed(path) for path in (large, large, link)] == [(digest, True), (digest, False), (digest, False)]
    assert [entry.name for entry in cache.parent.iterdir()] == ["sha256.json"]


def test_a_file_of_the_same_size_and_time_is_hashed_again(large: Path, tmp_path: Path) -> None:
    """As two models of one shape where all files have one time: in images that can be built again bit by bit."""
    os.utime(large, ns=(0, 0))
    before = sha256_of([large])
    other = written(tmp_path / "other.gguf", b"another" + large.read_bytes()[7:])
    os.utime(other, ns=(0, 0))
    other.replace(large)
    assert hashed(large) == (sha256(large), True) != (before, True)


@cases(b"\xff\xfe\x00", b"[" * 100_000, b"[1, null]", b'{"KEY": 3}', b'{"KEY": "short"}')
def test_a_damaged_cache_is_ignored_and_written_anew(damage: bytes, large: Path, cache: Path) -> None:
    digest = sha256_of([large])
    (key,) = json.loads(cache.read_bytes())
    cache.write_bytes(damage.replace(b'"KEY"', json.dumps(key).encode()))
    assert (hashed(large), hashed(large)) == ((digest, True), (digest, False))


def test_a_file_that_grows_while_it_is_hashed(large: Path, cache: Path) -> None:
    def grow() -> bool:
        if large.stat().st_size == 16 << 20:
            with large.open("ab") as file:
                file.write(b"more")
        return True

    with pytest.raises(ModelError, match="changed while it was read"):
        sha256_of([large], go_on=grow)
    assert not cache.exists()


@cases(
    ("missing.gguf", "no such file; check the path. A repository"),
    ("folder", "is a directory: give"),
    ("pipe", "is no regular file"),
    ("null\0byte", "cannot be read"),
)
def test_paths_that_are_no_files(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match=said):
        ModelFile.read(tmp_path / name)
    if name != "pipe":  # which would be waited for
        with pytest.raises(ModelError):
            sha256_of([tmp_path / name])


@cases(
    ("clip", None, 1, "no language model .clip.: give the file of the model itself"),
    ("clip", "mmproj", 1, "no language model .clip."),
    ("qwen3", "adapter", 1, "no language model .qwen3."),
    ("", "imatrix", 1, "no language model .imatrix."),
    ("qwen3", None, 0, "only a vocabulary"),
)
def test_files_of_no_model_are_told(arch: str, kind: str | None, n_tensors: int, words: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(path := tmp_path / "x.gguf", arch)
    if kind is not None:
        writer.add_type(kind)
    for number in range(n_tensors):
        writer.add_tensor(f"tensor.{number}", np.zeros(8, dtype=np.float32))
    finish(writer)
    with pytest.raises(ModelError, match=words):
        ModelFile.read(path)


def test_split_models(tmp_path: Path) -> None:
    first, second = write_split(tmp_path)
    file = ModelFile.read(first)
    assert [(header.path, list(header.tensors)) for header in file.headers] == [(first, ["a"]), (second, ["b"])]
    assert (file.parts, list(file.tensors)) == ([first, second], ["a", "b"])
    whole = first.read_bytes() + second.read_bytes()
    assert (sha256_of(file.parts), file.size_bytes) == (hashlib.sha256(whole).hexdigest(), len(whole))
    second.write_bytes(second.read_bytes()[:-40])
    with pytest.raises(ModelError, match=r"00002-of-00002\.gguf: tensor 'b' ends at"):
        ModelFile.read(first)
    second.unlink()
    with pytest.raises(ModelError, match="00002-of-00002"):
        sha256_of(file.parts)


@cases(
    (("m-00001-of-00002", "m-00002-of-00002"), 1, r"is part 2 of 2 of a split model: give its first, m-00001-of-"),
    (("m-00001-of-00002", None), 0, r"is part 1 of 2 of a split model, which lacks m-00002-of-00002\.gguf: fetch"),
    (("m-00001-of-00002", "n-00002-of-00002"), 0, r"lacks m-00002-of-00002\.gguf: fetch all parts into the same"),
    (("m", "m-00002-of-00002"), 0, "m.gguf is part 1 of 2 of a split model, and its name does not say so: name"),
    (("first", "second"), 1, "second.gguf is part 2 of 2 of a split model, and its name does not say so: name"),
    (("m-00001-of-00003", "m-00002-of-00003"), 0, "is part 1 of 2 of a split model, and its name does not say so"),
    (("m-00002-of-00002", "m-00001-of-00002"), 1, "is part 2 of 2 of a split model, and its name does not say so"),
    (("m-00001-of-00002", "twice"), 0, "m-00002-of-00002.gguf is not part 2 of .*: fetch all parts of one model"),
)
def test_parts_that_are_missing_or_renamed(names: tuple[str, str | None], given: int, why: str, tmp_path: Path) -> None:
    (folder := tmp_path / "moved").mkdir()
    parts = [part.read_bytes() for part in write_split(tmp_path)]
    if names[1] == "twice":
        names, parts = (names[0], "m-00002-of-00002"), parts[:1] * 2
    for name, part in zip(names, parts, strict=True):
        if name is not None:
            (folder / f"{name}.gguf").write_bytes(part)
    with pytest.raises(ModelError, match=why):
        ModelFile.read(folder / f"{names[given]}.gguf")


def test_an_unwritable_cache_is_no_error(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(written(tmp_path / "file", b"")))
    assert [hashed(large)[1], hashed(large)[1]] == [True, True]


# The header reader, on files of the package gguf and on every way of damaging them; types as gguf knows them.


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
    q8_0, values = gguf.GGMLQuantizationType.Q8_0, np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    writer.add_tensor("output.weight", gguf.quants.quantize(values, q8_0), raw_dtype=q8_0)
    finish(writer)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model(tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


def header_bytes(*, version: int = 3, n_tensors: int = 0, n_keys: int = 0, body: bytes = b"") -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, n_tensors, n_keys) + body


def named(name: bytes, layout: str, *values: float) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<" + layout, *values)


def one_key(layout: str, *values: float, key: bytes = b"k") -> bytes:
    return header_bytes(n_keys=1, body=named(key, layout, *values))


def one_tensor(layout: str, *values: int) -> bytes:
    return header_bytes(n_tensors=1, body=named(b"t", layout, *values))


@pytest.mark.parametrize("alignment", [None, 8, 128])
def test_agrees_with_the_gguf_package(tmp_path: Path, alignment: int | None) -> None:
    path = write_model(tmp_path / "model.gguf", alignment=alignment)
    header = read_header(path)
    reader = gguf.GGUFReader(path)
    assert reader.alignment == (alignment or 32)
    assert list(header.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        info = header.tensors[tensor.name]
        known = tuple(tensor.shape.tolist()), tensor.tensor_type, tensor.data_offset, tensor.n_bytes
        assert (info.shape, info.ggml_type, info.offset, info.n_bytes) == known
        assert path.read_bytes()[info.offset : info.offset + info.n_bytes] == tensor.data.tobytes()
    assert (header.arch, header.quantization, header.scalars["test.bool"]) == ("qwen3", "Q8_0", True)
    assert [header.scalars[f"test.{kind}"] for kind in ("i8", "u64", "f64")] == [-8, 1 << 40, 0.25]
    assert header.scalars["qwen3.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-6)


@PROPERTY
@given(data=st.data())
def test_a_truncated_file_is_refused(model: bytes, tmp_path: Path, data: st.DataObject) -> None:
    path = written(tmp_path / "cut.gguf", model)
    end = max(tensor.offset + tensor.n_bytes for tensor in read_header(path).tensors.values())
    path.write_bytes(model[: data.draw(st.integers(0, end - 1))])
    with pytest.raises(ModelError, match=re.escape(str(path))):
        read_header(path)
    path.write_bytes(model[:end])  # the padding after the last tensor may be missing
    assert len(read_header(path).tensors) == 3


@PROPERTY
@given(data=st.data())
def test_damaged_bytes_never_do_worse_than_an_error(model: bytes, tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(model)
    for _ in range(data.draw(st.integers(1, 4))):
        extremes = st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"])
        patch = data.draw(st.binary(min_size=1, max_size=9) | extremes)
        at = data.draw(st.integers(0, 1100))
        damaged[at : at + len(patch)] = patch
    path = written(tmp_path / "damaged.gguf", damaged)
    tracemalloc.start()
    began = time.perf_counter()
    try:
        ends = [tensor.offset + tensor.n_bytes for tensor in read_header(path).tensors.values()]
        assert max(ends, default=0) <= len(damaged)
    except ModelError as error:
        assert "\n" not in str(error)  # noqa: PT017
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (time.perf_counter() - began < 1, peak_bytes < 1 << 20) == (True, True)


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
    (b"", "is empty"),
    (b"GG", "begins with 'GG"),
    (b"\xef\xbb\xbf\n<!DOCTYPE html><title>404</title>", "<!DOCTYPE html>"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "https://git-lfs.*git lfs pull"),
    (struct.pack("<Q", 40) + b'{"__metadata__":{}}', "__meta"),
    (b"\x7fELF\x02\x01\x01\x00\x00", r"ELF.*: choose a \.gguf file"),
    (header_bytes(version=1), "GGUF version 1, not 2 or 3"),
    ids=range(18),
)
def test_damaged_headers_and_files_of_another_kind(content: bytes, words: str, tmp_path: Path) -> None:
    """Behind each is a hole of 8 GiB, which takes no disk space but minutes to walk over."""
    path = written(tmp_path / "model.gguf", content)
    os.truncate(path, 8 << 30 if content else 0)
    began = time.perf_counter()
    with pytest.raises(ModelError, match=words):
        read_header(path)
    assert time.perf_counter() - began < 1


OTHER_IN_GGUF = {gguf.GGMLQuantizationType.Q8_1}  # of activations only; ggml's blocks have two F16, gguf's two F32
NO_WEIGHTS = {"Q8_K", "I8", "I16", "I32", "I64", "F64"}
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
    if kind.name == "Q1_0":  # which only ggml has
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
