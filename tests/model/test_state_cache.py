"""Saved prefix cells: bit by bit what computing gives, never another model's, another prompt's or damaged ones."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeModel, WriteConfig
from oracle import PromptSpec

from qcls_gguf import Classifier
from qcls_gguf.engine import prefixes
from qcls_gguf.engine.prefix_file import N_KEPT, StateCache, prefix_digest
from qcls_gguf.system.folders import cache_folder

PROMPTS = [
    PromptSpec(name="a", template="<|im_start|>user\nwhat colour is {query}\nanswer:", labels=("red", "light blue")),
    PromptSpec(name="b", template="<|im_start|>user\nwhat is {query}\nanswer:", labels=("dress", "jeans")),
]
QUERIES = ["red dress", "jeans", ""]
Answers = Callable[..., tuple[object, bool]]


@pytest.fixture
def start(make_model: MakeModel, write_config: WriteConfig) -> Answers:
    """Starts a classifier: what it answers, and whether its prefixes came from a file."""

    def answers(seed: int = 0, prompts: list[PromptSpec] = PROMPTS, **runtime: Any) -> tuple[object, bool]:
        steps: dict[str, str] = {}
        config = write_config(make_model(seed=seed), prompts, **runtime)
        with Classifier.from_config(config, on_step=lambda step, what, _: steps.update({step: what})) as classifier:
            results = [classifier.classify(query).results for query in QUERIES]
        return results, "from " in steps["cache prefixes"]

    return answers


def test_a_second_start_takes_the_cells_of_the_first(prefix_files: Path, start: Answers) -> None:
    wanted, from_file = start(state_cache=False)
    assert not from_file
    assert not prefix_files.exists()
    assert start() == (wanted, False)
    assert len(list(prefix_files.glob("*.kv"))) == 1
    assert start() == (wanted, True)


def test_cells_that_are_computed_fast_are_not_saved(
    prefix_files: Path, start: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "WORTH_MS", 1e9)
    start()
    assert not prefix_files.exists()


def test_another_model_of_the_same_size_has_its_own_cells(prefix_files: Path, start: Answers) -> None:
    wanted, _ = start(seed=1, state_cache=False)
    start(seed=0)
    assert start(seed=1) == (wanted, False)
    assert start(seed=1) == (wanted, True)
    assert len(list(prefix_files.glob("*.kv"))) == 1


def test_other_settings_and_prompts_have_their_own_cells(prefix_files: Path, start: Answers) -> None:
    start()
    others: list[tuple[list[PromptSpec], dict[str, Any]]] = [
        (PROMPTS[:1], {}),
        (PROMPTS[::-1], {}),
        (PROMPTS, {"kv_type": "f32"}),
        (PROMPTS, {"flash_attn": False}),
    ]
    for n, (prompts, runtime) in enumerate(others, 2):
        assert not start(prompts=prompts, **runtime)[1]
        assert len(list(prefix_files.glob("*.kv"))) == n


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "foreign"])
def test_damaged_cells_are_named_and_computed_anew(prefix_files: Path, start: Answers, damage: str) -> None:
    wanted, _ = start()
    (file,) = prefix_files.glob("*.kv")
    whole = file.read_bytes()
    changed = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    file.write_bytes({"cut": whole[:-1], "changed": changed, "empty": b"", "foreign": b"x" * 999}[damage])
    with pytest.warns(UserWarning, match=rf"{file.name}: the file is damaged: the prefixes are computed anew"):
        assert start() == (wanted, False)
    assert file.read_bytes() == whole
    assert start() == (wanted, True)


def test_cells_that_llama_cpp_does_not_take_are_computed_anew(prefix_files: Path, start: Answers) -> None:
    wanted, _ = start()
    (file,) = prefix_files.glob("*.kv")
    head = file.read_bytes().split(b"\n", 1)[1].decode("ascii", "replace")
    StateCache(path=file, key=head[:64], model_sha256=lambda: head[64:128]).write(b"no cells")
    with pytest.warns(UserWarning, match="do not fit this context"):
        assert start() == (wanted, False)
    assert start() == (wanted, True)


def test_a_folder_that_cannot_be_written_is_a_warning(prefix_files: Path, start: Answers) -> None:
    prefix_files.parent.mkdir(parents=True)
    prefix_files.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be saved"):
        assert not start()[1]


def test_old_files_go(tmp_path: Path) -> None:
    for n in range(N_KEPT + 3):
        cache = StateCache.of(tmp_path, {"n": n}, lambda: "0" * 64)
        cache.write(b"cells")
        assert cache.read() == b"cells"
    assert len(list(tmp_path.iterdir())) == N_KEPT


def test_the_digest_is_of_every_token_and_their_order() -> None:
    sets: list[list[tuple[int, ...]]] = [
        [(1, 2), (3,)],
        [(1,), (2, 3)],
        [(1, 2, 3)],
        [(3,), (1, 2)],
        [(1, 2), (4,)],
        [(2, 1), (3,)],
        [()],
        [],
    ]
    assert len({prefix_digest(prefixes) for prefixes in sets}) == len(sets)
    assert prefix_digest([(1, 2)]) == prefix_digest([[1, 2]])


def test_nothing_is_warned_of_without_a_file(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert StateCache.of(tmp_path, {}, lambda: "0" * 64).read() is None


def test_a_user_without_a_home_has_no_cache(start: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does for such a user
    assert cache_folder() is None
    assert not start()[1]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    cache = StateCache(
        path=tmp_path / "folder", key="0" * 64, model_sha256=lambda: "0" * 64
    )  # no file can take its place
    with pytest.warns(UserWarning, match="could not be saved"):
        cache.write(b"cells")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
