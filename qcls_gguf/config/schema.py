"""The configuration: what a user may write, as frozen settings that are checked when they are made.

Every refusal names the place (`runtime.n_ctxx`), the value, and the remedy. Paths in a file resolve from its folder.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypedDict, Unpack

from pydantic import AfterValidator, Field, model_validator

from ..errors import ConfigError
from .prompt import ALL_SLOTS, CONTENT_FREE_QUERIES, SLOTS, IgnoredKind, PromptConfig, all_texts, expand
from .resources import EMBEDDED, OLLAMA, PACKAGE
from .scoring import Scoring
from .settings import LISTED, Count, File, FilledText, Settings, Size, Truth, Variables, distinct, given, refusal
from .words import JsonObject, hint

Auto = Literal["auto"]
KvType = Literal["f16", "q8_0", "bf16", "f32", "q4_0"]
QUANTISED_KV_TYPES: tuple[KvType, ...] = ("q8_0", "q4_0")
QueryTokens = Literal["plain", "user_defined"]
CpuActivations = Literal["fast", "default", "fine"]
LongQueries = Literal["refuse", "head", "tail", "middle"]
MAX_SEQ = 4096
"""The most sequences of one context (LLAMAMAX_SEQ in llama.cpp's src/llama-cparams.h, which patches/0009 raises)."""
_MAX_PROMPTS = 1000
_N_SHOWN = 12


class ModelConfig(Settings):
    """Which model: a file, one of Ollama's, of a Python package or of the Hugging Face hub; none: the embedded one."""

    # fmt: off
    path: File | None = Field(default=None,
        description="a GGUF file, of a split model the first; or `ollama:NAME`, `package:NAME`")
    ollama: FilledText | None = Field(default=None,
        description="`NAME[:TAG]` of a model in Ollama's store on this machine")
    package: FilledText | None = Field(default=None,
        description="`NAME` of an installed Python package with a GGUF file, or `NAME/FILE`")
    hf_repo: FilledText | None = Field(default=None,
        description="`user/repo`, which `@revision` and a quantization, such as `:Q4_K_M`, may follow")
    chat_template: FilledText | None = Field(default=None,
        description="a Jinja2 text that renders system and user; none: the file's own")
    chat_variables: Variables = Field(default_factory=dict,
        description="what that template may ask for; enable_thinking is false unless it is given")
    # fmt: on

    place: ClassVar = ("model",)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        values = given(values)
        if isinstance(values, str):
            raise refusal("expected keys and values, got text: write it below, after path: or hf_repo:")
        if not isinstance(values, dict) or "path" not in values:
            return values
        others, name = {key: value for key, value in values.items() if key != "path"}, str(values["path"])
        for key, beginning in (("ollama", OLLAMA), ("package", PACKAGE)):
            if name.startswith(beginning):
                return {key: name.removeprefix(beginning), **others}
        return others if name == EMBEDDED else values

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        several = [key for key in ("path", "ollama", "package", "hf_repo") if getattr(self, key) is not None]
        if len(several) > 1:
            raise refusal(
                f"{' and '.join(several)} are {'both' if len(several) == 2 else 'all'} given: keep one of them"
            )
        return self


class RuntimeConfig(Settings):
    """How to run it."""

    # fmt: off
    n_gpu_layers: Size | Literal["auto", "all"] = Field(default="auto",
        description="layers on the GPU; auto: as many as its free memory holds")
    n_threads: Count | Auto = Field(default="auto", description="CPU threads; auto: the physical cores less one")
    n_ctx: Count | Auto = Field(default="auto",
        description="cells of the KV cache, one for a token; auto: what is needed")
    n_batch: Count | Auto = Field(default="auto",
        description="tokens of one decode; auto: a query of max_query_tokens over all prompts")
    n_seq_max: Annotated[Count, Field(le=MAX_SEQ)] | Auto = Field(default="auto",
        description="sequences of the context; auto: for stored prefixes and the label branches of a request")
    question_cells: Size | Auto = Field(default="auto",
        description="cells for prompt sets that come at run time; auto: 1,024, or what a given n_ctx leaves")
    question_prefixes: Annotated[Size, Field(le=MAX_SEQ - 1)] | Auto = Field(default="auto",
        description="their prefixes that are kept at once; auto: 16, or as many as there is memory for")
    flash_attn: Truth | Auto = Field(default="auto",
        description="auto: on a GPU where it can, on a CPU only for a quantised cache")
    kv_type: KvType = Field(default="f16", description="the number type of the KV cache; q8_0 and q4_0 need flash_attn")
    max_query_tokens: Count = Field(default=256,
        description="most tokens of a query, which may have 32 times as many bytes")
    long_queries: LongQueries = Field(default="refuse",
        description="which part of a longer query is labelled; middle: its beginning and end")
    query_tokens: QueryTokens = Field(default="plain",
        description="user_defined: a query may spell marks that were added to the vocabulary, but no control tokens")
    normalise_queries: Truth = Field(default=True,
        description="read a query in Unicode's form NFC, unless the model's tokenizer does that itself")
    max_batch: Count = Field(default=4,
        description="queries that classify_batch puts into one decode, where sequences suffice")
    cpu_activations: CpuActivations = Field(default="default",
        description="rounding of activations on a CPU; fast: 8 bits; fine: 16; default: 16 where it helps most")
    batch_invariant: Truth = Field(default=False,
        description="an answer does not depend, to the last bit, on who shares its decode; slower")
    state_cache: Truth = Field(default=True,
        description="keep the cells of slow prefixes in a file for the next start; on a CPU")
    try_model: Truth = Field(default=True,
        description="load a model that is not known to work in a process of its own first")
    max_waiting: Size = Field(default=64, description="callers of other threads that may wait; more are refused")
    # fmt: on

    @property
    def of_model(self) -> tuple[QueryTokens, CpuActivations]:
        """The settings with which a model is opened: classifiers that share one have the same."""
        return self.query_tokens, self.cpu_activations

    place: ClassVar = ("runtime",)

    @model_validator(mode="after")
    def _check(self) -> "RuntimeConfig":
        if self.flash_attn is False and self.kv_type in QUANTISED_KV_TYPES:
            remedy = "set flash_attn to auto or true, or kv_type to f16"
            raise refusal(f"{self.kv_type} needs flash attention: {remedy}", "kv_type")
        return self


def _filled(prompts: tuple[PromptConfig, ...]) -> tuple[PromptConfig, ...]:
    """With the slots filled whose text depends on all prompts; after this, no prompt depends on another."""
    if not any(slot in text for prompt in prompts for text in prompt.texts.values() for slot in ALL_SLOTS):
        return prompts
    fillings = all_texts(prompts)
    for index, prompt in enumerate(prompts):
        for slot in SLOTS:
            if any(slot in text for text in all_texts([prompt]).values()):
                what = f"a text of it makes another {slot} slot in place of {' or '.join(ALL_SLOTS)}: change it"
                raise refusal(what, index)
    return tuple(
        prompt.changed(**{key: expand(text, fillings) for key, text in prompt.texts.items()}) for prompt in prompts
    )


class ConfigFile(Settings):
    """A configuration of qcls-gguf: prompts and their labels, the model, and how to run it."""

    # fmt: off
    prompts: Annotated[
        tuple[PromptConfig, ...],
        Field(min_length=1, max_length=_MAX_PROMPTS),
        LISTED,
        distinct("name", lambda prompt: str(prompt.name)),
        AfterValidator(_filled),
    ] = Field(description="the prompts, all of which every query is labelled by")
    model: ModelConfig = Field(default_factory=ModelConfig, description="the model; default: the embedded one")
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig, description="how to run it")
    calibration: File | None = Field(default=None, description="the file that `qcls-gguf calibrate` wrote")
    heads: File | None = Field(default=None, description="the file that `qcls-gguf learn` wrote")
    ignore_warnings: Annotated[tuple[IgnoredKind, ...], LISTED] = Field(default=(),
        description="kinds of likely mistakes that are not reported, such as untrained; all: none is")
    # fmt: on


class Config(ConfigFile):
    """Everything that a classifier is made from."""

    path: Path | None = Field(default=None, description="the file it came from")


def check_config(config: Config) -> Config:
    """The configuration, which was checked when it was made. Raises ConfigError for anything else."""
    if not isinstance(config, Config):
        raise ConfigError(f"expected a configuration file or a Config, got {type(config).__name__}")
    return config


class Variant(TypedDict, total=False):
    """How a tool asks a configuration otherwise than as it is written."""

    scoring: Scoring | None
    """of all prompts by the labels' texts: without prior, temperature, calibration, heads and fallback"""
    calibrated: bool
    """False: without the calibration file"""
    max_batch: int
    """queries of one decode, at least"""
    only_configured: bool
    """no other prompts are asked: layers above all heads are then not loaded"""


def variant_of(config: Config, **variant: Unpack[Variant]) -> Config:
    """The configuration as a Variant says."""
    scoring, max_batch = variant.get("scoring"), variant.get("max_batch", 0)
    changes: JsonObject = {} if variant.get("calibrated", True) else {"calibration": None}
    if scoring is not None:
        raw: JsonObject = {"prior": "none", "content_free_queries": CONTENT_FREE_QUERIES, "temperature": None}
        raw |= {"scoring": scoring, "label_orders": 1, "min_confidence": None, "fallback": None}
        prompts = tuple(prompt.changed(**raw) for prompt in config.prompts)
        changes |= {"prompts": prompts, "calibration": None, "heads": None}
    runtime: JsonObject = {"max_batch": max_batch} if max_batch > config.runtime.max_batch else {}
    if variant.get("only_configured") and config.heads is not None and scoring is None:
        runtime |= {"question_cells": 0, "question_prefixes": 0}
    if runtime:
        changes["runtime"] = config.runtime.changed(**runtime)
    return config.changed(**changes) if changes else config


def chosen_prompts(config: Config, names: Collection[str]) -> tuple[PromptConfig, ...]:
    """The prompts of these names; all where none is named. Raises ConfigError for a name that no prompt has."""
    known = [prompt.name for prompt in config.prompts]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"`prompt` {unknown[0]}: is no prompt of the configuration, {hint(unknown[0], known)}")
    return tuple(prompt for prompt in config.prompts if not names or prompt.name in names)


def short(digest: str) -> str:
    """The beginning of a digest, for a message."""
    return f"{digest[:_N_SHOWN]}…"
