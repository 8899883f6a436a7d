"""Model files that are replaced, removed or written to while they are open."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeModel, WriteConfig
from oracle import PromptSpec

from qcls_gguf import Classifier, ModelError, QclsError
from qcls_gguf.model.files import ModelFile
from qcls_gguf.model.rows import OutputRows

FIRST, LATER = [
    PromptSpec(name="a", template=f"the {word} of {{query}} is", labels=labels)
    for word, labels in (("colour", ("red", "light blue")), ("kind", ("dress", "jeans", "wool coat")))
]


@pytest.fixture
def model_file(make_model: MakeModel, tmp_path: Path) -> Path:
    return Path(shutil.copy(make_model(), tmp_path / "model.gguf"))


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
