"""Checking and identifying model files, with real files and the real cache in a folder of the test's own."""

import hashlib
import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from cases import cases
from gguf_parts import finish

from qcls_gguf.errors import ModelError
from qcls_gguf.model.files import ModelFile, sha256_of

LARGE_BYTES = 16 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "qcls-gguf" / "sha256.json"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.gguf"
    path.write_bytes(os.urandom(1 << 20) * 16)
    assert path.stat().st_size == LARGE_BYTES
    return path


def write_gguf(path: Path, *, arch: str = "qwen3", kind: str | None = None, n_tensors: int = 1) -> Path:
    """Write a GGUF file with little in it."""
    writer = gguf.GGUFWriter(path, arch)
    if kind is not None:
        writer.add_type(kind)
    for number in range(n_tensors):
        writer.add_tensor(f"tensor.{number}", np.zeros(8, dtype=np.float32))
    finish(writer)
    return path


def write_split(folder: Path, name: str = "model") -> list[Path]:
    """Write a model with a tensor in each of two parts, as GGUFWriter splits it."""
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", "qwen3", split_max_tensors=1)
    writer.add_tensor("a", np.zeros(8, dtype=np.float32))
    writer.add_tensor("b", np.ones(8, dtype=np.float32))
    finish(writer)
    return sorted(folder.glob(f"{name}-*.gguf"))


def hashed(path: Path) -> tuple[str, bool]:
    """The digest of `path`, and whether the file was read for it."""
    chunks: list[None] = []

    def count() -> bool:
        chunks.append(None)
        return True

    digest = sha256_of([path], go_on=count)
    return digest, bool(chunks)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_large_file_is_hashed_once(large: Path, cache: Path) -> None:
    digest, read = hashed(large)
    assert read
    assert digest == sha256(large)
    assert hashed(large) == (digest, False)
    link = large.with_name("link.gguf")
    link.symlink_to(large)
    assert hashed(link) == (digest, False)
    assert [entry.name for entry in cache.parent.iterdir()] == ["sha256.json"]


def test_a_file_of_the_same_size_and_time_is_hashed_again(large: Path, tmp_path: Path) -> None:
    """As two models of one shape where all files have one time: in images that can be built again bit by bit."""
    os.utime(large, ns=(0, 0))
    before = sha256_of([large])
    other = tmp_path / "other.gguf"
    other.write_bytes(b"another" + large.read_bytes()[7:])
    os.utime(other, ns=(0, 0))
    other.replace(large)
    after, read = hashed(large)
    assert read
    assert after == sha256(large) != before


@pytest.mark.parametrize(
    "damage", [b"", b"\xff\xfe\x00", b"[" * 100_000, b"[1, null]", b'{"KEY": 3}', b'{"KEY": "short"}']
)
def test_a_damaged_cache_is_ignored_and_written_anew(large: Path, cache: Path, damage: bytes) -> None:
    digest = sha256_of([large])
    (key,) = json.loads(cache.read_bytes())
    cache.write_bytes(damage.replace(b'"KEY"', json.dumps(key).encode()))
    assert hashed(large) == (digest, True)
    assert hashed(large) == (digest, False)


def test_a_file_that_grows_while_it_is_hashed(large: Path, cache: Path) -> None:
    def grow() -> bool:
        if large.stat().st_size == LARGE_BYTES:
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


@pytest.mark.parametrize(("arch", "kind"), [("clip", None), ("clip", "mmproj"), ("qwen3", "adapter"), ("", "imatrix")])
def test_files_that_only_accompany_a_model_are_told(tmp_path: Path, arch: str, kind: str | None) -> None:
    path = write_gguf(tmp_path / "x.gguf", arch=arch, kind=kind)
    with pytest.raises(ModelError, match=f"no language model .{arch or kind}.: give the file of the model itself"):
        ModelFile.read(path)


def test_check_wants_a_whole_model(tmp_path: Path) -> None:
    assert ModelFile.read(write_gguf(tmp_path / "model.gguf")).header.arch == "qwen3"
    with pytest.raises(ModelError, match="only a vocabulary"):
        ModelFile.read(write_gguf(tmp_path / "vocabulary.gguf", n_tensors=0))


def test_split_models(tmp_path: Path) -> None:
    first, second = write_split(tmp_path)
    file = ModelFile.read(first)
    headers = file.headers
    assert [(header.path, list(header.tensors)) for header in headers] == [(first, ["a"]), (second, ["b"])]
    assert (file.parts, list(file.tensors)) == ([first, second], ["a", "b"])
    assert headers[0].scalars["split.count"] == 2
    assert sha256_of(file.parts) == hashlib.sha256(first.read_bytes() + second.read_bytes()).hexdigest()
    assert file.size_bytes == first.stat().st_size + second.stat().st_size
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
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert hashed(large)[1]
    assert hashed(large)[1]
