"""Model files that are damaged, odd by structure, replaced, removed or written to while they are open.

Saved prefix cells: bit by bit what computing gives, whatever is in the files, or stands in their place.
"""

import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import written
from conftest import MakeModel, WriteConfig
from gguf_parts import put_together, take_apart
from hostile_rows import ODD, Row, mutated, sizes
from oracle import PromptSpec

from qcls_gguf import Classifier, ModelError, QclsError
from qcls_gguf.engine import prefix_file
from qcls_gguf.engine.prefix_file import N_KEPT, PrefixFile
from qcls_gguf.model.files import ModelFile, OutputRows

SCRIPT = Path(__file__).parents[1] / "mutated_models.py"


def test_a_head_that_names_more_dimensions_than_it_needs(make_model: MakeModel, tmp_path: Path) -> None:
    file = take_apart(make_model())
    for tensor in file.tensors:
        tensor.shape += [1] * (4 - len(tensor.shape))
    path = written(tmp_path / "four.gguf", put_together(file))
    np.testing.assert_array_equal(
        OutputRows(ModelFile.read(path)).of([7])[7], OutputRows(ModelFile.read(make_model())).of([7])[7]
    )


@sizes(100, 100_000)
def test_a_mutated_model_ends_no_process(row: Row, n: int) -> None:
    row.name, row.n = "model files", n
    command = [sys.executable, str(SCRIPT), str(row.seed), str(n), str(row.limit_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            ended = json.loads(line)
            row.kinds[ended["how"]] += 1
            what = f"seed {ended['seed']}: {ended['how']}: {ended['what']}: {ended['text'][-300:]}"
            row.check(not ended["is_bad"], what)
    assert process.returncode == 0
    row.n, row.n_planned = row.kinds.total(), n
    assert row.n == n or not math.isinf(row.limit_s)
    assert row.kinds["label"] > row.n / 50, "some files must be sound enough to be answered by"


FIRST, LATER = [
    PromptSpec(name="a", template=f"the {word} of {{query}} is", labels=labels)
    for word, labels in (("colour", ("red", "light blue")), ("kind", ("dress", "jeans", "wool coat")))
]


@pytest.fixture
def opened(model_file: Path, write_config: WriteConfig) -> Iterator[tuple[Classifier, Path, object]]:
    """A classifier on the file, the configuration of a set of other labels, and what that answers."""
    later = write_config(model_file, [LATER])
    with Classifier.from_config(later) as alone:
        wanted = alone.classify("red dress").results
    with Classifier.from_config(write_config(model_file, [FIRST])) as classifier:
        yield classifier, later, wanted


@pytest.mark.parametrize("what", ["replaced", "removed"])
def test_another_file_under_its_name_is_not_read(
    what: str, model_file: Path, opened: tuple[Classifier, Path, object], make_model: MakeModel
) -> None:
    classifier, later, wanted = opened
    if what == "replaced":
        other = model_file.with_name("other.gguf")
        shutil.copy(make_model(seed=7), other)
        assert other.stat().st_size == model_file.stat().st_size
        other.replace(model_file)
    else:
        model_file.unlink()
    with classifier.prompt_set(later) as added:  # of labels whose rows nobody has read yet
        assert added.classify("red dress").results == wanted


def test_a_file_that_is_written_to_is_told(model_file: Path, opened: tuple[Classifier, Path, object]) -> None:
    classifier, later, _ = opened
    file_before = ModelFile.read(model_file)
    with model_file.open("r+b") as file:  # with what it holds already
        start = file.read(1)
        file.seek(0)
        file.write(start)
    os.utime(model_file, ns=(0, 1))
    with pytest.raises(QclsError, match=r"model\.gguf has changed since the model was opened: open it again"):
        classifier.prompt_set(later)
    with pytest.raises(ModelError, match="has changed since the model was opened"):
        OutputRows(file_before)
    OutputRows(ModelFile.read(model_file))


PROMPTS = [
    PromptSpec(name=name, template=f"<|im_start|>user\n{ask} {{query}}\nanswer:", labels=("red", "light blue"))
    for name, ask in (("a", "what colour is"), ("b", "which shade is"), ("c", "name it:"))
]
QUERIES = ["red dress", "jeans", ""]
Answers = Callable[..., tuple[object, bool]]


@pytest.fixture
def start(make_model: MakeModel, write_config: WriteConfig, prefix_files: Path) -> Answers:
    """Starts a classifier: what it answers, and whether its prefixes came from a file."""

    def answers(seed: int = 0, prompts: Sequence[PromptSpec] = PROMPTS, **runtime: Any) -> tuple[object, bool]:
        steps: dict[str, str] = {}
        config = write_config(make_model(seed=seed), prompts, **runtime)
        with Classifier.from_config(config, on_step=lambda step, what, _: steps.update({step: what})) as classifier:
            results = [classifier.classify(query).results for query in QUERIES]
        return results, "from " in steps["cache prefixes"]

    return answers


def test_a_second_start_takes_saved_cells(prefix_files: Path, start: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, from_file = start(state_cache=False)
    assert not from_file
    with monkeypatch.context() as patched:
        patched.setattr(prefix_file, "WORTH_MS", 1e9)  # what is computed faster is not saved
        start()
    assert not prefix_files.exists()
    assert (start(), len(list(prefix_files.glob("*.kv"))), start()) == ((wanted, False), 1, (wanted, True))


def test_other_models_prompts_and_settings_have_their_own_cells(prefix_files: Path, start: Answers) -> None:
    wanted, _ = start(seed=1, state_cache=False)
    start(seed=0)
    assert (start(seed=1), start(seed=1)) == ((wanted, False), (wanted, True))
    assert len(list(prefix_files.glob("*.kv"))) == 2
    fewer, turned = {"prompts": PROMPTS[:1]}, {"prompts": PROMPTS[::-1]}
    others: list[dict[str, Any]] = [fewer, turned, {"kv_type": "f32"}, {"flash_attn": False}]
    for n, other in enumerate(others, 3):
        assert not start(seed=1, **other)[1]
        assert len(list(prefix_files.glob("*.kv"))) == n


def test_a_folder_that_cannot_be_written_is_a_warning(prefix_files: Path, start: Answers) -> None:
    prefix_files.parent.mkdir(parents=True)
    prefix_files.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be saved"):
        assert not start()[1]


def test_old_files_go(tmp_path: Path) -> None:
    (left := tmp_path / ".killed.part").touch()
    os.utime(left, (0, 0))
    for n in range(N_KEPT + 3):
        cache = PrefixFile(tmp_path, f"{n:032}", lambda: "0" * 64)
        cache.write(b"cells")
        assert (cache.read(), left.exists()) == (b"cells", n < N_KEPT - 1)
    assert len(list(tmp_path.iterdir())) == N_KEPT


def test_damaged_cells_are_named_and_computed_anew(prefix_files: Path, start: Answers) -> None:
    wanted, _ = start()
    (file,) = prefix_files.glob("*.kv")
    whole = file.read_bytes()
    flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]

    def signed(state: bytes) -> bytes:
        """With the digest that fits it."""
        return hashlib.sha256(file.name.encode() + state).digest() + state

    for content, message in (
        (flipped, "the file is damaged"),
        (signed(b"no cells"), "the saved cells do not fit this context"),
        (signed(b""), "there are no saved cells"),
    ):
        file.write_bytes(content)
        with pytest.warns(UserWarning, match=rf"{file.name}: {message}"):
            assert start() == (wanted, False)
        assert (file.read_bytes(), start()) == (whole, (wanted, True))


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_plain_file_is_not_waited_for(prefix_files: Path, start: Answers, kind: str) -> None:
    wanted, _ = start()
    (file,) = prefix_files.glob("*.kv")
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    with pytest.warns(UserWarning, match="prefixes") as told:
        assert start() == (wanted, False)
    assert f"{file}: it is no plain file: the prefixes are computed anew" in [str(each.message) for each in told]
    if kind != "folder":  # which is not removed
        assert start() == (wanted, True)


def test_the_folder_is_for_its_owner_only(prefix_files: Path, start: Answers) -> None:
    start()
    assert prefix_files.stat().st_mode & 0o777 == 0o700
    (file,) = prefix_files.glob("*.kv")
    assert file.stat().st_mode & 0o777 == 0o600
    prefix_files.chmod(0o777)
    assert start()[1]
    assert prefix_files.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_others_is_not_used(prefix_files: Path, start: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, _ = start()
    mine = os.geteuid()
    monkeypatch.setattr(prefix_file, "geteuid", lambda: mine + 1)
    with pytest.warns(UserWarning, match="another user") as told:
        assert start() == (wanted, False)
    assert all(f"the folder belongs to another user (uid {mine})" in str(each.message) for each in told)
    assert len(told) == 2  # of reading and of saving


@sizes(500, 100_000)
def test_a_mutated_file_is_not_believed(row: Row, n: int, tmp_path: Path) -> None:
    row.name, row.n = "prefix files, read", n
    rng = random.Random(row.seed)
    state = rng.randbytes(3_000)
    ours, other = (PrefixFile(tmp_path, f"{n:032}", lambda: "0" * 64) for n in range(2))
    ours.write(state)
    whole = ours.path.read_bytes()
    foreign = PrefixFile(tmp_path, ours.key, lambda: "1" * 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case, rng in row.cases():
            content = mutated(whole, rng, ODD)
            ours.path.write_bytes(content)
            read = row.ended(case, ours.read)
            row.kinds["read" if read is not None else "not read"] += 1
            row.check(read is None if content != whole else read == state, f"seed {case}: believed")
        ours.path.write_bytes(whole)
        assert foreign.read() is None
        ours.path.replace(other.path)
        assert other.read() is None
    assert row.kinds["not read"] > row.n * 0.9
