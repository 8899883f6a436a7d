"""The configuration: frozen dataclasses and a strict YAML loader.

Every refusal names the place (`runtime.n_ctxx`), the value, and the remedy. Paths resolve from the file's folder.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from .errors import ConfigError
from .labels import SCORINGS, Scoring
from .template import check_template, expand_labels

_LARGEST = (1 << 24) - 1
KV_TYPES = ("f16", "q8_0", "bf16", "f32", "q4_0")
Auto = Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model: a file, or a repository on the Hugging Face hub; neither means the embedded one."""

    path: Path | None = None
    hf_repo: str | None = None
    """`user/repo`, or `user/repo:quantization`"""
    quantization: str | None = None
    """such as Q4_K_M; only with hf_repo"""
    revision: str | None = None
    """branch, tag or commit; only with hf_repo"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """How to run it."""

    n_gpu_layers: int | Literal["auto", "all"] = "auto"
    """layers on the GPU; auto: as many as its free memory holds"""
    n_threads: int | Auto = "auto"
    """auto: the physical cores less one"""
    n_ctx: int | Auto = "auto"
    """cells of the KV cache; auto: the prefixes and the largest request"""
    n_batch: int | Auto = "auto"
    """tokens of one decode; auto: one query of max_query_tokens over all prompts"""
    flash_attn: bool | Auto = "auto"
    kv_type: str = "f16"
    max_query_tokens: int = 256
    """longer queries are refused"""
    max_batch: int = 4
    """queries that classify_batch puts into one decode, where the sequences suffice"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptConfig:
    """One prompt: a template with one `{query}` slot, perhaps one `{labels}` slot, and a closed label set."""

    name: str
    prompt_template: str
    labels: tuple[str, ...]
    label_prefix: str = " "
    scoring: Scoring = "tree"
    label_end: str | None = None
    """the token that ends a label which another begins with; none: the file's end of turn, else end of sequence"""

    @property
    def expanded_template(self) -> str:
        """The template with the labels in place of `{labels}`: what is compiled."""
        return expand_labels(self.prompt_template, self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that a classifier is made from."""

    prompts: tuple[PromptConfig, ...]
    model: ModelConfig = field(default_factory=ModelConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    path: Path | None = None
    """the file it came from"""


_MERGE = "tag:yaml.org,2002:merge"  # `<<: *anchor`, whose keys may be given again


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice, which YAML would let silently win over the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} is given twice")
                seen.add(key)
        return super().construct_mapping(node, deep)


def load_config(path: str | Path) -> Config:
    """Read and check a configuration file. Raises ConfigError."""
    try:
        path = Path(path).expanduser()
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{path}: the configuration cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: the configuration is not valid UTF-8 at byte {e.start}") from None
    except (RuntimeError, ValueError) as e:  # a home folder that nobody has; a NUL in the path
        raise ConfigError(f"{path}: the configuration cannot be read: {e}") from None
    try:
        return parse_config(text, folder=path.parent, path=path)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from None


def parse_config(text: str, *, folder: Path, path: Path | None = None) -> Config:
    """Check a configuration given as YAML text; relative paths in it resolve from folder. Raises ConfigError."""
    try:
        tree = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as e:
        # the safe loader lets through what converting an odd scalar (2024-13-01, !!bool x) raises
        raise ConfigError(f"not valid YAML: {e}") from None
    return _config(tree, folder=folder, path=path, block_scalars=True)


def check_config(config: Config) -> Config:
    """Check a Config that was made in Python as one from a file is checked. Raises ConfigError."""
    if not isinstance(config, Config):
        raise ConfigError(f"expected a configuration file or a Config, got {type(config).__name__}")
    prompts = [_plain(prompt) for prompt in config.prompts] if isinstance(config.prompts, list | tuple) else None
    tree = {"prompts": prompts, "model": _plain(config.model), "runtime": _plain(config.runtime)}
    return _config(tree, folder=Path(), path=config.path, block_scalars=False)


def _plain(part: Any) -> Any:
    """A dataclass as YAML would have given it."""
    if not is_dataclass(part):
        return part
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in texts.items()}
    return {key: value for key, value in lists.items() if value is not None}


def _config(tree: Any, *, folder: Path, path: Path | None, block_scalars: bool) -> Config:
    known = {"prompts", "model", "runtime", "scoring", "force_single_token_labels", "label_end"}
    top = _mapping(tree, "", known)
    defaults = {"scoring": _scoring(top, "") or "tree", "label_end": _text_or_none(top, "", "label_end")}
    prompts = _required(top, "", "prompts")
    if not isinstance(prompts, list) or not prompts:
        raise ConfigError("prompts: expected a list of at least one prompt")
    parsed = tuple(_prompt(item, f"prompts[{index}]", defaults, block_scalars) for index, item in enumerate(prompts))
    _distinct([prompt.name for prompt in parsed], "prompts", "name")
    return Config(
        prompts=parsed,
        model=_model(top.get("model", {}), folder),
        runtime=_runtime(top.get("runtime", {})),
        path=path,
    )


def _prompt(item: Any, where: str, defaults: dict[str, Any], block_scalars: bool) -> PromptConfig:
    known = {f.name for f in fields(PromptConfig)} | {"force_single_token_labels"}
    prompt = _mapping(item, where, known)
    name = _text(_required(prompt, where, "name"), f"{where}.name")
    if not name.strip():
        raise ConfigError(f"{where}.name: is empty: give the prompt a name")
    where = f"prompts.{name}"
    template = _text(_required(prompt, where, "prompt_template"), f"{where}.prompt_template")
    if block_scalars:  # a block scalar (`|`) ends in a line break that nobody means as part of the prompt
        template = template.removesuffix("\n")
    labels = _required(prompt, where, "labels")
    if not isinstance(labels, list) or len(labels) < 2:
        raise ConfigError(f"{where}.labels: expected a list of at least two labels")
    texts = [_text(label, f"{where}.labels[{index}]") for index, label in enumerate(labels)]
    for index, text in enumerate(texts):
        if not text.strip():
            raise ConfigError(f"{where}.labels[{index}]: is empty: give it a text or remove it")
    _distinct(texts, f"{where}.labels", "label")
    check_template(template, texts, where)
    return PromptConfig(
        name=name,
        prompt_template=template,
        labels=tuple(texts),
        label_prefix=_text(prompt.get("label_prefix", " "), f"{where}.label_prefix"),
        scoring=_scoring(prompt, where) or defaults["scoring"],
        label_end=_text_or_none(prompt, where, "label_end") or defaults["label_end"],
    )


def parse_scoring(value: Any, where: str) -> Scoring:
    """A scoring by its name. Raises ConfigError, which names `where`."""
    for scoring in SCORINGS:
        if value == scoring:
            return scoring
    raise ConfigError(f"{where}: {value!r} is not one of {', '.join(SCORINGS)}")


def _scoring(mapping: dict[str, Any], where: str) -> Scoring | None:
    scoring, forced = mapping.get("scoring"), mapping.get("force_single_token_labels")
    if scoring is not None:
        scoring = parse_scoring(scoring, _at(where, "scoring"))
    if forced is None:
        return scoring
    if not isinstance(forced, bool):
        raise ConfigError(f"{_at(where, 'force_single_token_labels')}: {forced!r} is not true or false")
    if forced and scoring not in (None, "first_token"):
        raise ConfigError(
            f"{_at(where, 'force_single_token_labels')}: true contradicts scoring: {scoring}: remove one of the two"
        )
    if forced:
        return "first_token"
    return scoring or "tree"


def _model(tree: Any, folder: Path) -> ModelConfig:
    model = _mapping(tree, "model", {f.name for f in fields(ModelConfig)})
    texts = {key: _text_or_none(model, "model", key) for key in model}
    if texts.get("path") and texts.get("hf_repo"):
        raise ConfigError("model: path and hf_repo are both given: keep one of them")
    for key in ("quantization", "revision"):
        if texts.get(key) and not texts.get("hf_repo"):
            raise ConfigError(f"model.{key}: is only for hf_repo, which is not given")
    path = texts.pop("path", None)
    try:
        place = _tidy(folder / Path(path).expanduser()) if path else None
    except (RuntimeError, ValueError) as e:  # a home folder that nobody has; a NUL in the path
        raise ConfigError(f"model.path: {path}: {e}") from None
    return ModelConfig(path=place, **texts)


def _runtime(tree: Any) -> RuntimeConfig:
    runtime = _mapping(tree, "runtime", {f.name for f in fields(RuntimeConfig)})
    for key, low, words in (
        ("n_gpu_layers", 0, ("auto", "all")),
        ("n_threads", 1, ("auto",)),
        ("n_ctx", 1, ("auto",)),
        ("n_batch", 1, ("auto",)),
        ("max_query_tokens", 1, ()),
        ("max_batch", 1, ()),
    ):
        value = runtime.get(key, low)
        if value not in words and (type(value) is not int or not low <= value <= _LARGEST):
            choices = "".join(f" or {word}" for word in words)
            raise ConfigError(f"runtime.{key}: {value!r} is not a whole number from {low} to {_LARGEST}{choices}")
    if not isinstance(flash := runtime.get("flash_attn", "auto"), bool) and flash != "auto":
        raise ConfigError(f"runtime.flash_attn: {flash!r} is not auto, true or false")
    if (kv := runtime.get("kv_type", "f16")) not in KV_TYPES:
        raise ConfigError(f"runtime.kv_type: {kv!r} is not one of {', '.join(KV_TYPES)}")
    if flash is False and kv in ("q8_0", "q4_0"):
        raise ConfigError(
            f"runtime.kv_type: {kv} needs flash attention: set flash_attn to auto or true, or kv_type to f16"
        )
    return RuntimeConfig(**runtime)


def _tidy(path: Path) -> Path:
    """The path without `..`; its last name stays, for a link's target may have another, which tells less."""
    return path.parent.resolve() / path.name


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _mapping(tree: Any, where: str, known: set[str]) -> dict[str, Any]:
    if tree is None and where:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{where or 'the configuration'}: expected keys and values, got {_kind(tree)}")
    for key in tree:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            raise ConfigError(f"{_at(where, str(key))}: unknown key, {hint}")
    return tree


def _required(mapping: dict[str, Any], where: str, key: str) -> Any:
    if mapping.get(key) is None:
        raise ConfigError(f"{_at(where, key)}: is missing")
    return mapping[key]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {value!r} is {_kind(value)}, not text: write it in quotes")
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise ConfigError(f"{where}: {value!r} is not valid Unicode: {e.reason}") from None
    return value


def _text_or_none(mapping: dict[str, Any], where: str, key: str) -> str | None:
    value = mapping.get(key)
    if value is None:
        return None
    if not _text(value, _at(where, key)):
        raise ConfigError(f"{_at(where, key)}: is empty: give it a text or remove it")
    return str(value)


def _kind(value: Any) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "a mapping", str: "text"}
    return names.get(type(value), "nothing" if value is None else f"a {type(value).__name__}")


def _distinct(texts: Sequence[str], where: str, what: str) -> None:
    for index, text in enumerate(texts):
        if text in texts[:index]:
            raise ConfigError(f"{where}[{index}]: {what} {text!r} is given twice")
