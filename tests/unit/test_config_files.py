"""Configurations as files and as Python values: names, paths, encodings, every mistake with its line, the schema."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_texts import CONFIGS, FOLDER, MISSION, PROMPT, parse, with_labels
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from qcls_gguf.config.load import config_json_schema, load_config, parse_config
from qcls_gguf.config.prompt import PromptConfig
from qcls_gguf.config.resources import config_names, config_path, schema_path
from qcls_gguf.config.schema import Config, ModelConfig, RuntimeConfig
from qcls_gguf.config.scoring import SCORINGS
from qcls_gguf.errors import ConfigError


def test_a_model_path_resolves_from_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "folder" / "config.yaml"
    file.parent.mkdir()
    for path, expected in {
        "a.gguf": file.parent / "a.gguf",
        "../a.gguf": tmp_path / "a.gguf",
        "/models/a.gguf": Path("/models/a.gguf"),
        "~/a.gguf": tmp_path / "home" / "a.gguf",
    }.items():
        file.write_text(f"{PROMPT}model: {{path: {path}}}\n", encoding="utf-8")
        assert load_config(file).model.path == expected
    assert parse(f"{PROMPT}model: {{path: a.gguf}}\n").model.path == FOLDER / "a.gguf"
    (tmp_path / "home").mkdir()
    file.rename(tmp_path / "home" / "config.yaml")
    assert load_config("~/config.yaml").path == tmp_path / "home" / "config.yaml"


def test_a_home_folder_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="~no-such-user"):
        load_config("~no-such-user/config.yaml")
    with pytest.raises(ConfigError, match=r"model\.path: .*~no-such-user"):
        parse(PROMPT + "model: {path: ~no-such-user/a.gguf}\n")


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "latin-1.yaml"
    text = with_labels("[très, tee]")
    file.write_bytes(text.encode("latin-1"))
    message = f"{file}: the configuration is not valid UTF-8 at byte {text.index('è')}, in line 4: save it as UTF-8"
    with pytest.raises(ConfigError, match=f"{re.escape(message)}"):
        load_config(file)


def test_a_model_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + bytes(2 << 20))
    with pytest.raises(ConfigError, match="is a GGUF file, which is a model: give it as the model"):
        load_config(path)


def test_a_configuration_is_unchangeable_and_its_parts_are_given_by_name() -> None:
    config = parse(MISSION)
    with pytest.raises(ValueError, match="frozen"):
        config.runtime.n_ctx = 3
    with pytest.raises(TypeError):
        RuntimeConfig(3)  # type: ignore[call-arg]
    assert hash(config) == hash(parse(MISSION))


def test_paths_given_in_python_start_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ModelConfig(path=Path("a.gguf")).path == tmp_path / "a.gguf"
    with pytest.raises(ConfigError, match=r"model\.path: 'a.x00': has a null byte"):
        ModelConfig(path=Path("a\0"))


def test_every_mistake_of_a_file_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"scoring: sum\n{with_labels('[dress, true, 3]')}runtime: {{n_ctx: 0, n_bach: 1}}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError) as error:
        load_config(file)
    *names, last = map(repr, SCORINGS)
    assert str(error.value).splitlines() == [
        f"{file}: line 1: scoring: 'sum' should be {', '.join(names)} or {last}",
        f"{file}: line 5: prompts.category.labels[1]: True is a truth value, as YAML reads true: write it in quotes",
        f"{file}: line 5: prompts.category.labels[2]: 3 is a number, not text: write it in quotes",
        f"{file}: line 6: runtime.n_ctx: 0 should be greater than or equal to 1, or 'auto'",
        f"{file}: line 6: runtime.n_bach: unknown key, did you mean n_batch?",
    ]
    with pytest.raises(ConfigError, match=r"\nand 30 more mistakes$"):
        parse(with_labels(f"[{', '.join(map(str, range(50)))}]"))


def test_the_schema_of_the_configs_folder_is_what_the_command_prints() -> None:
    committed = json.loads((CONFIGS[0].parent / "config.schema.json").read_text(encoding="utf-8"))
    assert committed == config_json_schema(), "run: qcls-gguf schema > configs/config.schema.json"
    for path in CONFIGS:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=config.schema.json"
        Draft202012Validator(committed).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_every_key_is_explained_in_the_schema() -> None:
    schema = config_json_schema()
    for part in (schema, *schema["$defs"].values()):
        assert [key for key, value in part["properties"].items() if not value.get("description")] == []


def test_a_byte_order_mark_and_dos_line_ends_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "dos.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + MISSION.replace("\n", "\r\n").encode())
    assert load_config(file).prompts == parse(MISSION).prompts


def _texts() -> st.SearchStrategy[Any]:
    return st.sampled_from(["", " ", "a", "b", "auto", "all", "tree", "joint", "{query}", "a {labels}: {query}", "yes"])


_SCALARS = st.one_of(_texts(), st.none(), st.booleans(), st.integers(-2, 300), st.floats(width=16))
_VALUES = st.one_of(_SCALARS, st.lists(_SCALARS, max_size=3), st.dictionaries(_texts(), _SCALARS, max_size=2))


def _some(keys: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from([*keys, "unknown"]), _VALUES, max_size=3)


_PROMPT_KEYS = list(PromptConfig.model_fields)
_RUNTIME_KEYS = list(RuntimeConfig.model_fields)


_SCHEMA = Draft202012Validator(config_json_schema())


@settings(max_examples=150, derandomize=False)
@given(prompt=_some(_PROMPT_KEYS), runtime=_some(_RUNTIME_KEYS), model=_some(["hf_repo", "quantization", "revision"]))
def test_files_and_python_objects_are_judged_alike(
    prompt: dict[str, Any], runtime: dict[str, Any], model: dict[str, Any]
) -> None:
    """The same mistakes in the same words, or the same configuration; the schema refuses nothing that is accepted."""
    values = {"name": "n", "prompt_template": "{query}", "labels": ["a", "b"], **prompt}

    def from_file() -> Config:
        text = yaml.safe_dump({"prompts": [values], "runtime": runtime, "model": model}, sort_keys=False)
        return parse_config(text, folder=Path())

    def made() -> Config:
        prompts = (PromptConfig(**values),)
        return Config(prompts=prompts, runtime=RuntimeConfig(**runtime), model=ModelConfig(**model))

    def wrong(make: Callable[[], Config]) -> list[str]:
        try:
            make()
        except ConfigError as e:
            return re.sub(r"(?m)^line \d+: ", "", str(e)).splitlines()
        return []

    assert bool(wrong(made)) == bool(wrong(from_file))
    assert set(wrong(made)) <= set(wrong(from_file))
    if not wrong(made):
        assert made() == from_file()
        plain = {key: value for key, value in values.items() if value is not None}
        tree = {"prompts": [plain], "runtime": runtime, "model": {k: v for k, v in model.items() if v is not None}}
        _SCHEMA.validate(tree)


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
