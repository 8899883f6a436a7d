"""Prefix files that are damaged, of others, or no files at all: the answers are those of computed prefixes, always."""

from __future__ import annotations

import os
import random
import socket
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MakeModel, WriteConfig
from hostile_rows import Row, sizes
from mutate import ODD, mutated
from oracle import PromptSpec

from qcls_gguf import Classifier
from qcls_gguf.engine.prefix_file import OLD_PART_S, StateCache

_LABELS = ("red", "light blue")
TEMPLATES = [
    f"<|im_start|>user\n{word} {{query}}\nanswer:" for word in ("what colour is", "which shade is", "name it:")
]
QUERIES = ["red dress", "jeans"]


@pytest.fixture
def start(make_model: MakeModel, write_config: WriteConfig, prefix_files: Path) -> Callable[[int], tuple[object, bool]]:
    """Starts a classifier with one of the templates: its answers, and whether its prefixes came from a file."""
    configs = [
        write_config(make_model(seed=3), [PromptSpec(name="a", template=template, labels=_LABELS)])
        for template in TEMPLATES
    ]

    def answers(n: int) -> tuple[object, bool]:
        steps: dict[str, str] = {}
        with Classifier.from_config(configs[n], on_step=lambda *step: steps.update({step[0]: step[1]})) as classifier:
            return [classifier.classify(query).results for query in QUERIES], "from " in steps["cache prefixes"]

    return answers


def _saved(prefix_files: Path, start: Callable[[int], tuple[object, bool]]) -> tuple[list[Path], list[object]]:
    """The files and the answers of each template."""
    files: list[Path] = []
    wanted = []
    for n in range(len(TEMPLATES)):
        wanted.append(start(n)[0])
        files += [path for path in prefix_files.glob("*.kv") if path not in files]
    assert len(files) == len(TEMPLATES)
    return files, wanted


def _odd_file(kind: str, path: Path) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    else:
        path.symlink_to({"link": "/dev/zero", "loop": path.name, "nowhere": "/nowhere"}[kind])


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "link", "loop", "nowhere"])
def test_what_is_no_plain_file_is_not_waited_for(
    prefix_files: Path, start: Callable[[int], tuple[object, bool]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _ = start(0)
    (file,) = prefix_files.glob("*.kv")
    monkeypatch.chdir(prefix_files)  # a socket's whole path may be too long for its name
    _odd_file(kind, file)
    with pytest.warns(UserWarning, match="prefixes") as told:
        assert start(0) == (wanted, False)
    assert f"{file}: it is no plain file: the prefixes are computed anew" in [str(each.message) for each in told]
    if kind != "folder":  # which is not removed
        assert start(0) == (wanted, True)


def test_the_folder_is_for_its_owner_only(prefix_files: Path, start: Callable[[int], tuple[object, bool]]) -> None:
    start(0)
    assert prefix_files.stat().st_mode & 0o777 == 0o700
    (file,) = prefix_files.glob("*.kv")
    assert file.stat().st_mode & 0o777 == 0o600
    prefix_files.chmod(0o777)
    assert start(0)[1]
    assert prefix_files.stat().st_mode & 0o777 == 0o700


def test_files_and_folders_of_others_are_not_used(
    prefix_files: Path, start: Callable[[int], tuple[object, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _ = start(0)
    (file,) = prefix_files.glob("*.kv")
    mine = os.geteuid()
    if mine == 0:
        os.chown(file, 12345, -1)
        with pytest.warns(UserWarning, match=r"the file belongs to another user \(uid 12345\)"):
            assert start(0) == (wanted, False)
        assert start(0) == (wanted, True)
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.warns(UserWarning, match="another user") as told:
        assert start(0) == (wanted, False)
    assert all(f"the folder belongs to another user (uid {mine})" in str(each.message) for each in told)
    assert len(told) == 2  # of reading and of saving


def test_what_was_left_half_written_goes_in_time(
    prefix_files: Path, start: Callable[[int], tuple[object, bool]]
) -> None:
    prefix_files.mkdir(parents=True)
    old, new = prefix_files / "old.part", prefix_files / "new.part"
    for part in (old, new):
        part.touch()
    long_ago = old.stat().st_mtime - 2 * OLD_PART_S
    os.utime(old, (long_ago, long_ago))
    start(0)
    assert sorted(path.suffix for path in prefix_files.iterdir()) == [".kv", ".part"]
    assert new.exists()


def _cache(file: Path) -> StateCache:
    """The file with a head that fits whatever is written to it."""
    whole = file.read_bytes()
    key, sha256 = (whole[whole.index(b"\n") + 1 :][at : at + 64].decode() for at in (0, 64))
    return StateCache(path=file, key=key, model_sha256=lambda: sha256)


def test_a_file_without_cells_is_not_used(prefix_files: Path, start: Callable[[int], tuple[object, bool]]) -> None:
    wanted, _ = start(0)
    (file,) = prefix_files.glob("*.kv")
    _cache(file).write(b"")
    with pytest.warns(UserWarning, match="the saved cells do not fit this context"):
        assert start(0) == (wanted, False)


@sizes(500, 100_000)
def test_a_mutated_file_is_not_believed(row: Row, n: int, tmp_path: Path) -> None:
    row.name, row.n = "prefix files, read", n
    rng = random.Random(row.seed)
    state = rng.randbytes(3_000)
    ours, other = (StateCache.of(tmp_path, {"n": n}, lambda: "0" * 64) for n in range(2))
    ours.write(state)
    whole = ours.path.read_bytes()
    foreign = StateCache.of(tmp_path, {"n": 0}, lambda: "1" * 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case, rng in row.cases():
            content = mutated(whole, rng, ODD)
            ours.path.write_bytes(content)
            try:
                read = ours.read()
            except Exception as e:
                row.wrong.append(f"seed {case}: {type(e).__name__}: {e}")
                continue
            row.kinds["read" if read is not None else "not read"] += 1
            row.check(read is None if content != whole else read == state, f"seed {case}: believed")
        ours.path.write_bytes(whole)
        assert foreign.read() is None
        ours.path.replace(other.path)
        assert other.read() is None
    assert row.kinds["not read"] > row.n * 0.9


@sizes(20, 1_000)
def test_no_file_changes_an_answer(
    row: Row, n: int, prefix_files: Path, start: Callable[[int], tuple[object, bool]]
) -> None:
    row.name, row.n = "prefix files, starts", n
    files, wanted = _saved(prefix_files, start)
    whole = [file.read_bytes() for file in files]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case, rng in row.cases():
            own = rng.randrange(len(files))
            kind = rng.choice(["foreign", "mutated", "flipped", "not numbers", "no cells", "whole"])
            _damage(files[own], whole[own], rng.choice([each for each in whole if each != whole[own]]), kind, rng)
            try:
                answers, from_file = start(own)
            except Exception as e:
                row.wrong.append(f"seed {case}, {kind}: {type(e).__name__}: {e}")
            else:
                row.kinds[f"{kind}, {'used' if from_file else 'computed anew'}"] += 1
                row.check(answers == wanted[own], f"seed {case}, {kind}: other answers")
            files[own].write_bytes(whole[own])
    assert not any(kind.endswith("used") for kind in row.kinds if not kind.startswith(("whole", "not numbers")))
    assert row.kinds["whole, used"]


def _damage(file: Path, whole: bytes, other: bytes, kind: str, rng: random.Random) -> None:
    cache = _cache(file)
    state = cache.read()
    assert state is not None
    if kind == "foreign":
        file.write_bytes(other)
    elif kind == "mutated":
        while (content := mutated(whole, rng)) == whole:
            pass
        file.write_bytes(content)
    elif kind == "flipped":
        at = rng.randrange(len(whole))
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
    elif kind == "not numbers":  # with a head that fits them: the last bytes are the values of the last layer
        cache.write(state[:-64] + b"\xff\x7f" * 32)
    elif kind == "no cells":
        cache.write(mutated(state, rng)[: len(state) // 2])
