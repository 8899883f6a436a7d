"""The configuration: what a user may write, as frozen settings that are checked when they are made.

Every refusal names the place (`runtime.n_ctxx`), the value, and the remedy. Paths in a file resolve from its folder.
"""

from __future__ import annotations

from dataclasses import InitVar, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from ..errors import ConfigError
from .rules import Choice, File, Number, Text, Truth, Variables, Whole, at_least, at_most, distinct
from .scoring import SCORINGS, Scoring
from .settings import Settings, given, refusal, settings, shown_name
from .template import LABELS_SLOT, SLOT, check_texts, expand
from .words import shown

Auto = Literal["auto"]
KvType = Literal["f16", "q8_0", "bf16", "f32", "q4_0"]
KV_TYPES: tuple[KvType, ...] = ("f16", "q8_0", "bf16", "f32", "q4_0")
QUANTISED_KV_TYPES: tuple[KvType, ...] = ("q8_0", "q4_0")
QueryTokens = Literal["plain", "user_defined"]
QUERY_TOKENS: tuple[QueryTokens, ...] = ("plain", "user_defined")
Prior = Literal["none", "content_free"]
PRIORS: tuple[Prior, ...] = ("none", "content_free")
CONTENT_FREE_QUERIES = ("", "N/A", "[MASK]")
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
_MAX_SEQ = 4096  # LLAMA_MAX_SEQ in llama.cpp's src/llama-cparams.h, as patches/0013 has it
_MAX_PROMPTS = 1000
_MAX_CONTENT_FREE = 100  # each is computed at start-up
_AUTO = ("auto",)
_OLLAMA = "ollama:"  # a file of such a name is given as ./ollama:NAME
_CUE = "label:"

FilledText: TypeAlias = Annotated[str, Text(empty=False)]
FallbackText: TypeAlias = Annotated[str, Text(blank=False)]
ScoringName: TypeAlias = Annotated[Scoring, Choice(SCORINGS)]
PriorName: TypeAlias = Annotated[Prior, Choice(PRIORS)]
Confidence: TypeAlias = Annotated[float, Number(0, 1, above=True)]
TrueOrFalse: TypeAlias = Annotated[bool, Truth()]
Queries: TypeAlias = Annotated[
    tuple[Annotated[str, Text()], ...],
    at_least(1, "at least one text"),
    at_most(_MAX_CONTENT_FREE, "queries"),
    distinct("query"),
    Field(json_schema_extra={"minItems": 1, "maxItems": _MAX_CONTENT_FREE, "uniqueItems": True}),
]


@settings
class ModelConfig(Settings):
    """Which model: a file, one that Ollama has, or a repository of the Hugging Face hub; none: the embedded one."""

    path: Annotated[Path, File()] | None = None
    """a GGUF file, of a split model the first; a relative path starts from the configuration's folder. `ollama:NAME`
    is short for the key `ollama`"""
    ollama: FilledText | None = None
    """`NAME[:TAG]` of a model in Ollama's store on this machine"""
    hf_repo: FilledText | None = None
    """`user/repo`, or `user/repo:quantization`"""
    quantization: FilledText | None = None
    """such as Q4_K_M; only with hf_repo"""
    revision: FilledText | None = None
    """branch, tag or commit; only with hf_repo"""
    chat_template: FilledText | None = None
    """the Jinja2 text that renders system and user of prompts; none: the file's own"""
    chat_variables: Annotated[dict[str, Any], Variables()] = field(default_factory=dict, hash=False)
    """what that template may ask for, such as `enable_thinking: true`; not given, enable_thinking is false"""

    @classmethod
    def _place(cls, values: dict[str, Any]) -> str:
        return "model"

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        values = given(values)
        if isinstance(values, dict) and "ollama" not in values:
            name = str(values.get("path", ""))
            if name.startswith(_OLLAMA):
                values = {key: value for key, value in values.items() if key != "path"}
                values["ollama"] = name.removeprefix(_OLLAMA)
        return values

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        several = [key for key in ("path", "ollama", "hf_repo") if getattr(self, key) is not None]
        if len(several) > 1:
            raise refusal(
                f"{' and '.join(several)} are {'both' if len(several) == 2 else 'all'} given: keep one of them"
            )
        for key in ("quantization", "revision"):
            if getattr(self, key) is not None and self.hf_repo is None:
                raise refusal("is only for hf_repo, which is not given", key)
        return self


@settings
class RuntimeConfig(Settings):
    """How to run it."""

    n_gpu_layers: Annotated[int | Literal["auto", "all"], Whole(0, words=("auto", "all"))] = "auto"
    """layers on the GPU; auto: as many as its free memory holds"""
    n_threads: Annotated[int | Auto, Whole(1, words=_AUTO)] = "auto"
    """CPU threads; auto: the physical cores less one"""
    n_ctx: Annotated[int | Auto, Whole(1, words=_AUTO)] = "auto"
    """cells of the KV cache, a token each; auto: the prefixes, the largest request and question_cells"""
    n_batch: Annotated[int | Auto, Whole(1, words=_AUTO)] = "auto"
    """tokens of one decode; auto: one query of max_query_tokens over all prompts"""
    n_seq_max: Annotated[int | Auto, Whole(1, _MAX_SEQ, words=_AUTO)] = "auto"
    """sequences of the context, up to 4,096: one for each stored prefix and for each label branch of a request; auto:
    what the prompts of the configuration, max_batch and question_prefixes need"""
    question_cells: Annotated[int | Auto, Whole(0, words=_AUTO)] = "auto"
    """cells of the KV cache kept for prompt sets that come at run time, a token each; every cell in use makes all
    requests a little slower; auto: 1,024, or what a given n_ctx leaves"""
    question_prefixes: Annotated[int | Auto, Whole(0, _MAX_SEQ - 1, words=_AUTO)] = "auto"
    """prefixes of prompt sets that come at run time which are kept at once, each in a sequence of its own; auto: 16, or
    as many as sequences are left"""
    flash_attn: Annotated[bool | Auto, Truth(_AUTO)] = "auto"
    """auto: on a GPU where it can, on a CPU only for a quantised cache"""
    kv_type: Annotated[KvType, Choice(KV_TYPES)] = "f16"
    """the number type of the KV cache; q8_0 and q4_0 need flash attention"""
    max_query_tokens: Annotated[int, Whole(1)] = 256
    """longer queries are refused"""
    query_tokens: Annotated[QueryTokens, Choice(QUERY_TOKENS)] = "plain"
    """what a query becomes that spells a mark of the vocabulary; plain: text; user_defined: a token, if it was added to
    the vocabulary, such as </think>; control tokens stay text"""
    max_batch: Annotated[int, Whole(1)] = 4
    """queries that classify_batch puts into one decode, where the sequences suffice"""
    state_cache: TrueOrFalse = True
    """keep the cells of prefixes that took long to compute in a file for the next start; on a CPU"""
    try_model: TrueOrFalse = True
    """load a model that is not known to work in a process of its own first, so that a file on which llama.cpp ends the
    process is an error"""
    max_waiting: Annotated[int, Whole(0)] = 64
    """callers of other threads that may wait for their turn; more are refused"""
    warm_query_tokens: Annotated[int | Auto, Whole(0, words=_AUTO)] = "auto"
    """up to how many tokens of a query its graph is built at start-up; auto: 16 on a GPU, 0 on a CPU"""
    n_shapes: Annotated[int | Auto, Whole(0, words=_AUTO)] = "auto"
    """graphs that are kept, each with its compute buffers; auto: those of the start-up and 8 more, 16 at least"""

    @classmethod
    def _place(cls, values: dict[str, Any]) -> str:
        return "runtime"

    @model_validator(mode="after")
    def _check(self) -> RuntimeConfig:
        if self.flash_attn is False and self.kv_type in QUANTISED_KV_TYPES:
            remedy = "set flash_attn to auto or true, or kv_type to f16"
            raise refusal(f"{self.kv_type} needs flash attention: {remedy}", "kv_type")
        return self


def resolve_forced(values: dict[str, Any]) -> dict[str, Any]:
    """The same settings with the scoring that `force_single_token_labels` means, which stays only to be told wrong."""
    forced, scoring = values.get("force_single_token_labels"), values.get("scoring")
    if forced is True and scoring not in (None, "first_token"):
        what = f"true contradicts scoring: {shown(scoring, quoted=False)}: remove one of the two"
        raise refusal(what, "force_single_token_labels")
    if forced is True:
        return {**values, "scoring": "first_token"}
    return {"scoring": "tree", **values} if forced is False else values


_NO_TEXT = object()


def _has_text(value: Any) -> Any:
    if value is _NO_TEXT:
        raise refusal("is missing: write the whole text, or write system and user for the model's own chat template")
    return value


@settings
class PromptConfig(Settings):
    """One prompt: a text with one `{query}` slot, perhaps `{labels}` and `{name}`, and a closed label set."""

    name: Annotated[str, Text(blank=False, remedy="give the prompt a name")]
    """what its answers are found under; each prompt has another"""
    prompt_template: Annotated[Annotated[str, Text()] | None, BeforeValidator(_has_text)] = None
    """the whole text before, around and behind the query, with the model's control tokens, one {query} and perhaps
    {labels} and {name}"""
    system: Annotated[str, Text()] | None = None
    """instead of prompt_template: what the model's chat template puts into the system turn, with the same slots"""
    user: Annotated[str, Text()] | None = None
    """what it puts into the user's turn; not given beside a system text without {query}: the query alone"""
    answer_cue: Annotated[str, Text()] | None = None
    """only with system or user: how the model's answer begins, before the label; not given: `label:`"""
    labels: Annotated[
        tuple[Annotated[str, Text(blank=False)], ...],
        at_least(2, "at least two labels"),
        distinct("label"),
        Field(json_schema_extra={"minItems": 2, "uniqueItems": True}),
    ]
    """the answers to choose from"""
    label_prefix: Annotated[str, Text()] = " "
    """what stands between the template and a label"""
    scoring: ScoringName = "tree"
    """how a label's tokens become its score"""
    force_single_token_labels: InitVar[TrueOrFalse | None] = None
    """true: the same as scoring first_token"""
    label_end: FilledText | None = None
    """the token that ends a label which another begins with; none: the file's end of turn, else end of sequence"""
    prior: PriorName = "none"
    """content_free: what the labels score without content is taken off their scores"""
    content_free_queries: Queries = CONTENT_FREE_QUERIES
    """what such a prior is computed from"""
    temperature: Annotated[float, Number(MIN_TEMPERATURE, MAX_TEMPERATURE)] | None = None
    """what the scores are divided by; none: the calibration file's, else 1"""
    min_confidence: Confidence | None = None
    """below this probability the answer is the fallback; none: never"""
    fallback: FallbackText | None = None
    """a text that need not be a label; only with min_confidence"""

    @classmethod
    def _place(cls, values: dict[str, Any]) -> str:
        name = shown_name(values.get("name"))
        return "prompt" if name is None else f"prompts.{name}"

    @property
    def is_chat(self) -> bool:
        """Whether the model's chat template is still to make the text, of `turns` and `cue`."""
        return self.prompt_template is None

    @property
    def turns(self) -> dict[str, str]:
        """What the chat template renders: `system`, `user` or both, with their slots."""
        found = {key: text for key in ("system", "user") if (text := getattr(self, key)) is not None}
        return found if any(SLOT in text for text in found.values()) or "user" in found else {**found, "user": SLOT}

    @property
    def cue(self) -> str:
        """What stands behind the rendered turns, with its slots."""
        return _CUE if self.answer_cue is None else self.answer_cue

    @property
    def has_labels_slot(self) -> bool:
        """Whether a text of it has a `{labels}` slot."""
        return any(LABELS_SLOT in text for text in self._texts().values())

    @property
    def template(self) -> str:
        """The whole text with its slots. Raises ConfigError where the chat template has not rendered it."""
        if self.prompt_template is None:
            raise ConfigError(f"prompts.{self.name}: system and user become a text when the model is open")
        return self.prompt_template

    @property
    def expanded_template(self) -> str:
        """The whole text with all slots filled but the query's: what is compiled. Raises ConfigError as `template`."""
        return expand(self.template, name=self.name, labels=self.labels)

    def _texts(self) -> dict[str, str]:
        if self.prompt_template is not None:
            return {"prompt_template": self.prompt_template}
        return {**({"answer_cue": self.cue} if "{" in self.cue else {}), **self.turns}

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        found = given(values, keep=("label_prefix",))
        if not isinstance(found, dict):
            return found
        if not any(key in found for key in ("prompt_template", "system", "user")):
            found["prompt_template"] = _NO_TEXT
        return resolve_forced(found)

    @model_validator(mode="after")
    def _check(self) -> PromptConfig:
        if not self.is_chat:
            for key in ("system", "user", "answer_cue"):
                if getattr(self, key) is not None:
                    raise refusal("is given beside prompt_template, which is the whole text: keep one of the two", key)
        elif SLOT in self.cue:
            raise refusal(f"has a {SLOT} slot: write the query into user", "answer_cue")
        if wrong := check_texts(self._texts(), name=self.name, labels=self.labels):
            raise refusal(wrong.what, wrong.key)
        for key, other in (("min_confidence", "fallback"), ("fallback", "min_confidence")):
            if getattr(self, key) is not None and getattr(self, other) is None:
                raise refusal(f"{shown(getattr(self, key))} needs {other}: give both or neither", key)
        return self


def _is_prompts(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not value:
        raise refusal("expected a list of at least one prompt")
    return tuple(value)


Prompts: TypeAlias = Annotated[
    tuple[PromptConfig, ...],
    BeforeValidator(_is_prompts),
    at_most(_MAX_PROMPTS, "prompts"),
    distinct("name", lambda prompt: str(prompt.name)),
    Field(json_schema_extra={"minItems": 1, "maxItems": _MAX_PROMPTS}),
]
CalibrationPath: TypeAlias = Annotated[Path, File()]


@settings
class Config(Settings):
    """Everything that a classifier is made from."""

    prompts: Prompts
    """each is asked about every query"""
    model: ModelConfig = field(default_factory=ModelConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    calibration: CalibrationPath | None = None
    """what `qcls-gguf calibrate` fitted"""
    path: Path | None = None
    """the file it came from"""


def check_config(config: Config) -> Config:
    """The configuration, which was checked when it was made. Raises ConfigError for anything else."""
    if not isinstance(config, Config):
        raise ConfigError(f"expected a configuration file or a Config, got {type(config).__name__}")
    return config
