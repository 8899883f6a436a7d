"""Model files that are damaged, odd by structure, replaced, removed or written to while they are open."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import MakeModel, WriteConfig
from gguf_parts import put_together, take_apart
from hostile_rows import Row, sizes
from oracle import PromptSpec

from qcls_gguf import Classifier, ModelError, QclsError
from qcls_gguf.model.files import ModelFile, OutputRows

SCRIPT = Path(__file__).parents[1] / "mutated_models.py"


def test_a_head_that_names_more_dimensions_than_it_needs(make_model: MakeModel, tmp_path: Path) -> None:
    file = take_apart(make_model())
    for tensor in file.tensors:
        tensor.shape += [1] * (4 - len(tensor.shape))
    path = tmp_path / "four.gguf"
    path.write_bytes(put_together(file))
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
