"""The configurations that come with the package: found by their names, and usable as copies anywhere."""

from pathlib import Path

import pytest

from qcls_gguf import ConfigError, load_config
from qcls_gguf.config.resources import config_names, config_path, schema_path

ROOT = Path(__file__).parents[2]
NAMES = ["fashion-8", "fashion-8-joint", "mission", "qwen3-8b-t4"]


def test_every_configuration_has_a_name() -> None:
    assert config_names() == NAMES
    for name in NAMES:
        assert load_config(name).path == ROOT / "configs" / f"{name}.yaml"
    assert schema_path().is_file()


def test_a_file_of_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mission").mkdir()
    assert config_path("mission") == ROOT / "configs" / "mission.yaml"  # a folder is no configuration
    (tmp_path / "mission").rmdir()
    (tmp_path / "mission").write_text("prompts: []")
    assert config_path("mission") == Path("mission")


@pytest.mark.parametrize("name", ["mission.yaml", "configs/mission.yaml"])
def test_a_file_that_is_not_there_and_is_named_like_ours_tells_our_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; .* that comes with the package is named mission"):
        config_path(tmp_path / name)


@pytest.mark.parametrize("name", ["fashion-9", "", "x" * 5000])
def test_an_unknown_name_tells_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"none of this name comes with the package, which has fashion-8, fashion-8-"):
        load_config(name)
