"""Model files that are damaged, which is an error and never a label, and models in several files."""

import math
from pathlib import Path

import pytest
from commands import refused
from conftest import MakeModel, OpenClassifier, WriteConfig
from gguf_parts import File, filled, put_together, take_apart, with_nan_embedding
from oracle import COLOR

from qcls_gguf import Classifier, ConfigError, Model, ModelError, ScoreError
from qcls_gguf.config.schema import ModelConfig, RuntimeConfig

PROMPTS = [COLOR]


WEIGHTS = ("output_norm.weight", "blk.1.attn_v.weight", "token_embd.weight", "output.weight")


@pytest.mark.parametrize(
    ("weight_type", "name", "value"),
    [
        *(("F32", name, value) for name in WEIGHTS for value in (math.nan, math.inf)),
        # the scales of a whole matrix, so that all activations that the next one quantises are NaN; a Q6_K product on a
        # CPU takes such activations for zeros
        *((weight_type, "blk.1.attn_v.weight", 255) for weight_type in ("Q4_K", "Q8_0")),
    ],
)
def test_weights_and_scales_that_are_not_finite(
    weight_type: str, name: str, value: float, make_model: MakeModel, write_config: WriteConfig, tmp_path: Path
) -> None:
    source = make_model() if weight_type == "F32" else make_model(weight_type=weight_type, n_embd=512, n_ff=512)
    path = filled(source, tmp_path / "nan.gguf", name, value)
    with pytest.raises(ModelError, match="not finite"):
        Classifier.from_config(write_config(path, PROMPTS))


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "plain"])
def test_a_bad_token_harms_no_other_query(
    flash_attn: bool, make_model: MakeModel, open_classifier: OpenClassifier, tmp_path: Path
) -> None:
    """The embedding of `~` is not a number: its cells must not reach the next request, masked as they are."""
    good = open_classifier(make_model(), PROMPTS, flash_attn=flash_attn)
    path = with_nan_embedding(make_model(), "~", tmp_path / "nan.gguf")
    classifier = open_classifier(path, PROMPTS, flash_attn=flash_attn, max_batch=2)
    wanted = good.classify("red dress").results
    for queries in (["~~~"], ["red dress", "~"], ["~" * 40, ""]):
        with pytest.raises(ScoreError, match="not finite"):
            classifier.classify_batch(queries)
        assert classifier.classify("red dress").results == wanted


def test_what_comes_of_the_model_at_the_start_has_its_exit_code(
    make_model: MakeModel, write_config: WriteConfig, tmp_path: Path
) -> None:
    path = filled(make_model(), tmp_path / "nan.gguf", "output_norm.weight", math.nan)
    last = refused("run", "--query", "x", "--config", write_config(path, PROMPTS), code=3).splitlines()[-1]
    assert last.startswith(f"qcls-gguf: {path}: ")
    assert "not finite" in last


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
    assert split.engine.model.file.tensors.keys() == whole.engine.model.file.tensors.keys()


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
            model.output_rows.of([1])
