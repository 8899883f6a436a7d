"""Models in several files."""

from pathlib import Path

import pytest
from conftest import MakeModel, OpenClassifier
from gguf_parts import File, put_together, take_apart
from oracle import PromptSpec

from qcls_gguf import ConfigError, Model, ModelError
from qcls_gguf.config.schema import ModelConfig, RuntimeConfig

PROMPTS = [PromptSpec(name="colour", template="the colour of {query} is", labels=("red", "light blue"))]
UINT16, INT32 = 2, 5


@pytest.fixture
def parts(make_model: MakeModel, tmp_path: Path) -> tuple[Path, Path]:
    return write_parts(tmp_path, make_model(), make_model())


def write_parts(folder: Path, first: Path, second: Path) -> tuple[Path, Path]:
    """Two files of a model; the second has the last layer and the head of another model of the same shape."""
    whole, other = take_apart(first), take_apart(second)
    last = (b"blk.1.", b"output")
    tensors = [
        [tensor for tensor in whole.tensors if not tensor.name.startswith(last)],
        [tensor for tensor in other.tensors if tensor.name.startswith(last)],
    ]
    paths = folder / "m-00001-of-00002.gguf", folder / "m-00002-of-00002.gguf"
    for number, (path, held) in enumerate(zip(paths, tensors, strict=True)):
        keys = [
            *([] if number else whole.keys),
            (b"split.no", UINT16, number),
            (b"split.count", UINT16, 2),
            (b"split.tensors.count", INT32, len(whole.tensors)),
        ]
        path.write_bytes(put_together(File(keys=keys, tensors=held)))
    assert any(tensor.name == b"output.weight" for tensor in tensors[1])
    return paths


def test_a_split_model_answers_as_the_whole_one(
    parts: tuple[Path, Path], make_model: MakeModel, open_classifier: OpenClassifier
) -> None:
    whole, split = (open_classifier(path, PROMPTS) for path in (make_model(), parts[0]))
    assert split.classify("red dress").results == whole.classify("red dress").results
    assert split.engine.model.tensors.keys() == whole.engine.model.tensors.keys()


def test_layers_of_every_part_are_checked_for_batch_invariance(
    make_model: MakeModel, open_classifier: OpenClassifier, tmp_path: Path
) -> None:
    shape = {"n_embd": 256, "n_ff": 512}
    first, _ = write_parts(tmp_path, make_model(weight_type="Q8_0", **shape), make_model(**shape))
    with pytest.raises(ConfigError, match=r"batch_invariant: tensor 'blk\.1\.\w+\.weight' is F32"):
        open_classifier(first, PROMPTS, batch_invariant=True)


def test_the_part_with_the_head_is_gone(parts: tuple[Path, Path]) -> None:
    with Model.open(ModelConfig(path=parts[0]), RuntimeConfig(n_gpu_layers=0, try_model=False)) as model:
        parts[1].unlink()
        with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf cannot be read .* when the model was opened"):
            model.rows([1])
