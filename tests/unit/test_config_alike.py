"""The rules of a configuration hold for files and for Python objects alike: many values, mostly wrong ones."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from qcls_gguf import Config, ConfigError, ModelConfig, PromptConfig, RuntimeConfig
from qcls_gguf.config.load import config_json_schema, parse_config


def _texts() -> st.SearchStrategy[Any]:
    return st.sampled_from(["", " ", "a", "b", "auto", "all", "tree", "joint", "{query}", "a {labels}: {query}", "yes"])


_SCALARS = st.one_of(_texts(), st.none(), st.booleans(), st.integers(-2, 300), st.floats(width=16))
_VALUES = st.one_of(_SCALARS, st.lists(_SCALARS, max_size=3), st.dictionaries(_texts(), _SCALARS, max_size=2))


def _some(keys: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from([*keys, "unknown"]), _VALUES, max_size=3)


_PROMPT_KEYS = [f.name for f in fields(PromptConfig)]
_RUNTIME_KEYS = [f.name for f in fields(RuntimeConfig)]


_SCHEMA = Draft202012Validator(config_json_schema())


@settings(max_examples=500)
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
            # a prompt without a usable name goes by its place in the file
            return re.sub(r"(?m)^line \d+: ", "", str(e)).replace("prompts[0]", "prompt").splitlines()
        return []

    assert bool(wrong(made)) == bool(wrong(from_file))
    assert set(wrong(made)) <= set(wrong(from_file))
    if not wrong(made):
        assert made() == from_file()
        plain = {key: value for key, value in values.items() if value is not None}
        tree = {"prompts": [plain], "runtime": runtime, "model": {k: v for k, v in model.items() if v is not None}}
        _SCHEMA.validate(tree)
