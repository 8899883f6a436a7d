"""Models of Ollama's store and of installed Python packages, laid out as Ollama and pip do it."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import cases

from qcls_gguf import ConfigError, ModelConfig, ModelError
from qcls_gguf.config.resources import embedded_model
from qcls_gguf.drafting.draft import given_model
from qcls_gguf.inspection.local_models import models_document, models_record
from qcls_gguf.model import find_model
from qcls_gguf.model.files import sha256_of
from qcls_gguf.model.find import find_ollama_model, find_packaged_model, installed, local_models, manifest_of
from qcls_gguf.model.find import shown as shown_name
from qcls_gguf.report.document import Table

MODEL = "application/vnd.ollama.image.model"
PARAMS = "application/vnd.ollama.image.params"
NAME = "registry.ollama.ai/library/tiny/latest"


def add_model(store: Path, content: bytes, name: str = NAME, *others: str, **changes: Any) -> Path:
    """Put a model into a store: the blob, and a manifest with further layers of the types in `others`."""
    digest = hashlib.sha256(content).hexdigest()
    blob = store / "blobs" / f"sha256-{digest}"
    manifest = store / "manifests" / name
    for path in (blob, manifest):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    layer = {"mediaType": MODEL, "digest": f"sha256:{digest}", "size": len(content), **changes}
    layers = [layer, *({"mediaType": kind, "digest": "sha256:" + "0" * 64, "size": 1} for kind in others)]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@cases(
    ("qwen3", "registry.ollama.ai/library/qwen3/latest", "qwen3:latest"),
    ("qwen3:8b", "registry.ollama.ai/library/qwen3/8b", "qwen3:8b"),
    ("me/qwen3", "registry.ollama.ai/me/qwen3/latest", "me/qwen3:latest"),
    ("hf.co/user/Repo-GGUF:Q4_K_M", "hf.co/user/Repo-GGUF/Q4_K_M", "hf.co/user/Repo-GGUF:Q4_K_M"),
    ("host:5000/a/b:c", "host:5000/a/b/c", "host:5000/a/b:c"),
)
def test_a_name_leads_to_its_manifest(text: str, path: str, shown: str, store: Path) -> None:
    assert (manifest_of(text), shown_name(path)) == (path, shown)
    blob = add_model(store, b"weights", path, PARAMS)
    assert (find_ollama_model(text), list(installed())) == (blob, [(shown, blob)])


@pytest.mark.parametrize("text", ["", ":", "a:", "a:b:c", "a//b", "../x", "a/../b", "a/b/c/d", ".hidden", "a b", "a\0"])
def test_what_is_no_name_is_refused(store: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not of the form ollama:\[\[HOST/\]NAMESPACE/\]NAME\[:TAG\]"):
        find_ollama_model(text)


def test_a_missing_model_lists_what_there_is(store: Path) -> None:
    with pytest.raises(ModelError, match=f"no model is in {store}; set OLLAMA_MODELS"):
        find_ollama_model("nosuch")
    for n in range(2):
        add_model(store, b"w", f"registry.ollama.ai/library/m{n}/8b")
    with pytest.raises(ModelError, match=r"has no nosuch:latest: it has m0:8b, m1:8b; `ollama"):
        find_ollama_model("nosuch")


@cases(
    (["application/vnd.ollama.image.adapter"], {}, "1 layers with weights and 1 adapters"),
    ([MODEL], {}, "has 2 layers with weights"),
    ([], {"mediaType": PARAMS}, "has 0 layers with weights"),
    ([], {"digest": "sha256:../../etc"}, "is no manifest of a model"),
    *(([text], {}, "is no manifest of a model") for text in ("", "[", '{"layers": [1]}', "[" * 100_000, "\xff")),
)
def test_what_is_not_whole_is_refused(others: list[str], changes: dict[str, Any], message: str, store: Path) -> None:
    """others: further layers, or what the manifest holds instead."""
    is_damaged = not changes and not others[0].startswith("application/")
    add_model(store, b"weights", NAME, *([] if is_damaged else others), **changes)
    if is_damaged:
        (store / "manifests" / NAME).write_text(others[0], encoding="latin-1")
    with pytest.raises(ModelError, match=message):
        find_ollama_model("tiny")
    assert list(installed()) == []


@pytest.mark.parametrize("given", [{"path": "ollama:tiny"}, {"path": Path("ollama:tiny")}, {"ollama": "tiny"}])
def test_a_configuration_names_a_model_of_the_store(store: Path, given: dict[str, Any]) -> None:
    blob = add_model(store, b"weights")
    assert find_model(ModelConfig(**given), offline=True) == blob


def test_the_name_of_a_blob_is_its_digest(store: Path) -> None:
    content = embedded_model().read_bytes()
    blob = add_model(store, content)
    assert sha256_of([blob]) == hashlib.sha256(content).hexdigest()
    other = blob.with_name("sha256-" + "a" * 64)
    blob.rename(other)
    assert sha256_of([other]) == "a" * 64  # believed, not computed


def test_the_models_of_the_machine_are_listed(store: Path, tmp_path: Path) -> None:
    add_model(store, embedded_model().read_bytes(), "registry.ollama.ai/library/fashion/8m")
    add_model(store, b"GGUF but no more", "registry.ollama.ai/library/broken/latest")
    record = models_record(model for model in local_models() if model[0] in ("embedded", "ollama"))
    embedded, broken, fashion = record.models
    assert (embedded.source, embedded.name) == ("embedded", "(embedded)")
    assert (embedded.arch, embedded.quantization) == ("qwen3", "Q8_0")
    assert (fashion.name, fashion.n_parameters, fashion.fits) == ("ollama:fashion:8m", embedded.n_parameters, True)
    assert fashion.size_bytes == embedded_model().stat().st_size
    assert (broken.name, broken.arch, broken.fits) == ("ollama:broken:latest", None, None)
    assert broken.error
    (table,) = models_document(record).parts
    assert isinstance(table, Table)
    rows = [row[0] for row in table.rows]
    assert rows == ["(embedded)", "ollama:fashion:8m"]
    for name in rows:
        assert find_model(ModelConfig(path=Path(str(name))), offline=True).read_bytes() == embedded_model().read_bytes()


def test_the_users_store_is_looked_for_without_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    blob = add_model(tmp_path / ".ollama" / "models", b"weights")
    assert find_ollama_model("tiny") == blob


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
    assert drafted
    assert (drafted.settings, drafted.has_chat_template) == ({"path": "package:tiny-model"}, False)


def test_of_several_models_one_has_to_be_named(site: Path) -> None:
    install(site, "two-models", "b.gguf", "a.gguf")
    assert find_packaged_model("two-models/b.gguf") == site / "two_models" / "b.gguf"
    with pytest.raises(ModelError, match=r"has a\.gguf, b\.gguf: name one, as in package:two-models/a\.gguf"):
        find_packaged_model("two-models")
    with pytest.raises(ModelError, match=r"has a\.gguf, b\.gguf: name one"):
        find_packaged_model("two-models/c.gguf")


@cases(("absent", "no such package is installed: `pip install absent`"), ("", "no such"), ("words", "no GGUF file"))
def test_a_package_without_a_model_is_refused(text: str, what: str, site: Path) -> None:
    install(site, "words")
    with pytest.raises(ModelError, match=what):
        find_packaged_model(text)
