"""The configuration: frozen dataclasses and a strict YAML loader.

Every refusal names the place (`runtime.n_ctxx`), the value, and the remedy. Paths resolve from the file's folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError
from .calibration_settings import CONTENT_FREE_QUERIES, SHARED, Prior, calibration_settings, check_fallback
from .scoring import SCORINGS, Scoring
from .template import check_template, expand_labels
from .yaml_values import at, check_distinct, load_yaml, mapping_of, required, text_of, text_or_none

_LARGEST = (1 << 24) - 1
KV_TYPES = ("f16", "q8_0", "bf16", "f32", "q4_0")
QUANTISED_KV_TYPES = ("q8_0", "q4_0")
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
    """auto: on a GPU where it can, on a CPU only for a quantised cache"""
    kv_type: str = "f16"
    max_query_tokens: int = 256
    """longer queries are refused"""
    max_batch: int = 4
    """queries that classify_batch puts into one decode, where the sequences suffice"""
    state_cache: bool = True
    """keep the cells of prefixes that took long to compute in a file for the next start; on a CPU"""
    max_waiting: int = 64
    """callers of other threads that may wait for their turn; more are refused"""
    warm_query_tokens: int | Auto = "auto"
    """up to how many tokens of a query its graph is built at start-up; auto: 16 on a GPU, 0 on a CPU"""
    question_cells: int | Auto = "auto"
    """cells of the KV cache for prompt sets that come at run time; auto: 1,024, or what a given n_ctx leaves"""
    question_prefixes: int | Auto = "auto"
    """sequences for the prefixes of such prompt sets; auto: 16, or as many as are left"""
    n_seq_max: int | Auto = "auto"
    """sequences of the context, 256 at most; auto: what the prompts, max_batch and the questions need"""
    n_shapes: int | Auto = "auto"
    """graphs that are kept, each with its compute buffers; auto: those of the start-up and 8 more, 16 at least"""


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
    prior: Prior = "none"
    """content_free: what the labels score without content is taken off their scores"""
    content_free_queries: tuple[str, ...] = CONTENT_FREE_QUERIES
    """what such a prior is computed from"""
    temperature: float | None = None
    """what the scores are divided by; none: the calibration file's, else 1"""
    min_confidence: float | None = None
    """below this probability the answer is the fallback; none: never"""
    fallback: str | None = None
    """a text that need not be a label; only with min_confidence"""

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
    calibration: Path | None = None
    """what `qcls-gguf calibrate` fitted"""
    path: Path | None = None
    """the file it came from"""


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
    return _config(load_yaml(text), folder=folder, path=path, block_scalars=True)


def check_config(config: Config) -> Config:
    """Check a Config that was made in Python as one from a file is checked. Raises ConfigError."""
    if not isinstance(config, Config):
        raise ConfigError(f"expected a configuration file or a Config, got {type(config).__name__}")
    prompts = [_plain(prompt) for prompt in config.prompts] if isinstance(config.prompts, list | tuple) else None
    tree = {"prompts": prompts, "model": _plain(config.model), "runtime": _plain(config.runtime)}
    if config.calibration is not None:
        tree["calibration"] = str(config.calibration) if isinstance(config.calibration, Path) else config.calibration
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
    known = {"prompts", "model", "runtime", "scoring", "force_single_token_labels", "label_end", "calibration", *SHARED}
    top = mapping_of(tree, "", known)
    defaults: dict[str, Any] = {"scoring": _scoring(top, "") or "tree", "label_end": text_or_none(top, "", "label_end")}
    defaults["calibration"] = calibration_settings(top, "")
    prompts = required(top, "", "prompts")
    if not isinstance(prompts, list) or not prompts:
        raise ConfigError("prompts: expected a list of at least one prompt")
    parsed = tuple(_prompt(item, f"prompts[{index}]", defaults, block_scalars) for index, item in enumerate(prompts))
    check_distinct([prompt.name for prompt in parsed], "prompts", "name")
    return Config(
        prompts=parsed,
        model=_model(top.get("model", {}), folder),
        runtime=_runtime(top.get("runtime", {})),
        calibration=_place(folder, text_or_none(top, "", "calibration"), "calibration"),
        path=path,
    )


def _prompt(item: Any, where: str, defaults: dict[str, Any], block_scalars: bool) -> PromptConfig:
    known = {f.name for f in fields(PromptConfig)} | {"force_single_token_labels"}
    prompt = mapping_of(item, where, known)
    name = text_of(required(prompt, where, "name"), f"{where}.name")
    if not name.strip():
        raise ConfigError(f"{where}.name: is empty: give the prompt a name")
    where = f"prompts.{name}"
    template = text_of(required(prompt, where, "prompt_template"), f"{where}.prompt_template")
    if block_scalars:  # a block scalar (`|`) ends in a line break that nobody means as part of the prompt
        template = template.removesuffix("\n")
    labels = required(prompt, where, "labels")
    if not isinstance(labels, list) or len(labels) < 2:
        raise ConfigError(f"{where}.labels: expected a list of at least two labels")
    texts = [text_of(label, f"{where}.labels[{index}]") for index, label in enumerate(labels)]
    for index, text in enumerate(texts):
        if not text.strip():
            raise ConfigError(f"{where}.labels[{index}]: is empty: give it a text or remove it")
    check_distinct(texts, f"{where}.labels", "label")
    check_template(template, texts, where)
    calibration = {**defaults["calibration"], **calibration_settings(prompt, where)}
    check_fallback(calibration, where)
    return PromptConfig(
        name=name,
        prompt_template=template,
        labels=tuple(texts),
        label_prefix=text_of(prompt.get("label_prefix", " "), f"{where}.label_prefix"),
        scoring=_scoring(prompt, where) or defaults["scoring"],
        label_end=text_or_none(prompt, where, "label_end") or defaults["label_end"],
        **calibration,
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
        scoring = parse_scoring(scoring, at(where, "scoring"))
    if forced is None:
        return scoring
    if not isinstance(forced, bool):
        raise ConfigError(f"{at(where, 'force_single_token_labels')}: {forced!r} is not true or false")
    if forced and scoring not in (None, "first_token"):
        raise ConfigError(
            f"{at(where, 'force_single_token_labels')}: true contradicts scoring: {scoring}: remove one of the two"
        )
    if forced:
        return "first_token"
    return scoring or "tree"


def _model(tree: Any, folder: Path) -> ModelConfig:
    model = mapping_of(tree, "model", {f.name for f in fields(ModelConfig)})
    texts = {key: text_or_none(model, "model", key) for key in model}
    if texts.get("path") and texts.get("hf_repo"):
        raise ConfigError("model: path and hf_repo are both given: keep one of them")
    for key in ("quantization", "revision"):
        if texts.get(key) and not texts.get("hf_repo"):
            raise ConfigError(f"model.{key}: is only for hf_repo, which is not given")
    return ModelConfig(path=_place(folder, texts.pop("path", None), "model.path"), **texts)


def _runtime(tree: Any) -> RuntimeConfig:
    runtime = mapping_of(tree, "runtime", {f.name for f in fields(RuntimeConfig)})
    for key, low, words in (
        ("n_gpu_layers", 0, ("auto", "all")),
        ("n_threads", 1, ("auto",)),
        ("n_ctx", 1, ("auto",)),
        ("n_batch", 1, ("auto",)),
        ("max_query_tokens", 1, ()),
        ("max_batch", 1, ()),
        ("max_waiting", 0, ()),
        ("warm_query_tokens", 0, ("auto",)),
        ("n_shapes", 0, ("auto",)),
        ("question_cells", 0, ("auto",)),
        ("question_prefixes", 0, ("auto",)),
        ("n_seq_max", 1, ("auto",)),
    ):
        value = runtime.get(key, low)
        if value not in words and (type(value) is not int or not low <= value <= _LARGEST):
            choices = "".join(f" or {word}" for word in words)
            raise ConfigError(f"runtime.{key}: {value!r} is not a whole number from {low} to {_LARGEST}{choices}")
    if not isinstance(state_cache := runtime.get("state_cache", True), bool):
        raise ConfigError(f"runtime.state_cache: {state_cache!r} is not true or false")
    if not isinstance(flash := runtime.get("flash_attn", "auto"), bool) and flash != "auto":
        raise ConfigError(f"runtime.flash_attn: {flash!r} is not auto, true or false")
    if (kv := runtime.get("kv_type", "f16")) not in KV_TYPES:
        raise ConfigError(f"runtime.kv_type: {kv!r} is not one of {', '.join(KV_TYPES)}")
    if flash is False and kv in QUANTISED_KV_TYPES:
        raise ConfigError(
            f"runtime.kv_type: {kv} needs flash attention: set flash_attn to auto or true, or kv_type to f16"
        )
    return RuntimeConfig(**runtime)


def _place(folder: Path, path: str | None, where: str) -> Path | None:
    try:
        return _tidy(folder / Path(path).expanduser()) if path else None
    except (RuntimeError, ValueError) as e:  # a home folder that nobody has; a NUL in the path
        raise ConfigError(f"{where}: {path}: {e}") from None


def _tidy(path: Path) -> Path:
    """The path without `..`; its last name stays, for a link's target may have another, which tells less."""
    return path.parent.resolve() / path.name
