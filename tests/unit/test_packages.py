"""Models inside installed Python packages: a folder on the search path, laid out as pip installs a wheel."""

import sys
from pathlib import Path

import pytest

from qcls_gguf.config.resources import embedded_model
from qcls_gguf.config.schema import ModelConfig
from qcls_gguf.drafting.models import given_model
from qcls_gguf.errors import ModelError
from qcls_gguf.inspection.local_models import models_record
from qcls_gguf.model.files import find_model, local_models
from qcls_gguf.model.packages import find_packaged_model, packaged_models


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def install(site: Path, name: str, *files: str) -> None:
    """A package whose files are all this project's embedded model, except the text README.md."""
    folder = site / name.replace("-", "_")
    info = site / f"{folder.name}-1.0.dist-info"
    info.mkdir()
    folder.mkdir()
    for file in files:
        (folder / file).write_bytes(embedded_model().read_bytes())
    (folder / "README.md").write_text("no model")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{folder.name}/{file},,\n" for file in (*files, "README.md", "gone.gguf")))


def test_the_only_model_of_a_package_is_found(site: Path) -> None:
    install(site, "tiny-model", "tiny.gguf")
    path = site / "tiny_model" / "tiny.gguf"
    assert find_model(ModelConfig(path=Path("package:tiny-model")), offline=True) == path
    assert find_model(ModelConfig(package="tiny_model"), offline=True) == path
    drafted = given_model("package:tiny-model", None, site)
    assert drafted is not None
    assert (drafted.settings, drafted.has_chat_template) == ({"path": "package:tiny-model"}, False)


def test_of_several_models_one_has_to_be_named(site: Path) -> None:
    install(site, "two-models", "b.gguf", "a.gguf")
    assert find_packaged_model("two-models/b.gguf") == site / "two_models" / "b.gguf"
    with pytest.raises(ModelError, match=r"has a\.gguf, b\.gguf: name one, as in package:two-models/a\.gguf"):
        find_packaged_model("two-models")
    with pytest.raises(ModelError, match=r"has a\.gguf, b\.gguf: name one"):
        find_packaged_model("two-models/c.gguf")


@pytest.mark.parametrize(
    ("text", "what"),
    [("absent", "no such package is installed: `pip install absent`"), ("", "no such"), ("words", "no GGUF file")],
)
def test_a_package_without_a_model_is_refused(site: Path, text: str, what: str) -> None:
    install(site, "words")
    with pytest.raises(ModelError, match=what):
        find_packaged_model(text)


def test_models_of_packages_are_listed(site: Path) -> None:
    install(site, "tiny-model", "tiny.gguf")
    install(site, "two-models", "b.gguf", "a.gguf")
    names = ["tiny-model", "two-models/a.gguf", "two-models/b.gguf"]
    assert [name for name, path in packaged_models() if path.is_relative_to(site)] == names
    record = models_record(model for model in local_models() if model.path.is_relative_to(site))
    assert [model.name for model in record.models] == [f"package:{name}" for name in names]
    assert {(model.source, model.arch) for model in record.models} == {("package", "qwen3")}
