"""One prompt of a configuration: its texts, its labels, how they are scored, and what is likely wrong with it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from ..errors import ConfigError
from .scoring import FIRST_TOKEN, TREE, Scoring
from .settings import LISTED, FilledText, Settings, Text, Truth, VisibleText, distinct, given, refusal
from .words import JsonObject, kind_of, shown

Prior = Literal["none", "content_free"]
MistakeKind = Literal[
    "control_token", "chat_format", "chat_template", "beginning", "label_end", "literal_slot", "space", "label_ends",
    "labels_alike", "untrained", "labels_not_named", "descriptions", "decomposed",
]  # fmt: skip
IgnoredKind = Literal["all", MistakeKind]
CONTENT_FREE_QUERIES = ("", "N/A", "[MASK]")
TEXT_KEYS = ("prompt_template", "system", "user", "answer_cue")
"""What a prompt's text is made from."""
_MAX_LABELS = 10_000
_CUE = "{name}:"  # docs/real-models.md has the figures
_NO_TEXT = object()

SLOT = "{query}"
LABELS_SLOT = "{labels}"
DESCRIBED_SLOT = "{labels_described}"
NAME_SLOT = "{name}"
DESCRIBE_SLOT = "{describe}"
ALL_LABELS_SLOT = "{all_labels}"
ALL_DESCRIBED_SLOT = "{all_labels_described}"
LABEL_SLOTS = (LABELS_SLOT, DESCRIBED_SLOT)
ALL_SLOTS = (ALL_LABELS_SLOT, ALL_DESCRIBED_SLOT)
"""Those that every prompt of a configuration has a part in."""
SLOTS = (SLOT, *LABEL_SLOTS, NAME_SLOT, DESCRIBE_SLOT, *ALL_SLOTS)
_SEPARATOR = ", "
_BRACED = re.compile(r"\{ ?[A-Za-z_]{1,30} ?\}")
_QUERY_WORDS = ("text", "input", "query", "question", "sentence", "content", "message", "document", "q")
_LABEL_WORDS = ("label", "options", "choices", "classes", "categories", "label_list")

Temperature: TypeAlias = Annotated[float, Field(strict=True, ge=0.01, le=100.0)]
Queries: TypeAlias = Annotated[
    tuple[Text, ...],
    Field(min_length=1, max_length=100, json_schema_extra={"uniqueItems": True}),  # computed at start-up
    LISTED,
    distinct("query"),
]


def resolve_forced(values: JsonObject) -> JsonObject:
    """The same settings with the scoring that `force_single_token_labels` means."""
    forced, scoring = values.get("force_single_token_labels"), values.get("scoring")
    if not isinstance(forced, bool):  # which is told where values are checked
        return values
    values = {key: value for key, value in values.items() if key != "force_single_token_labels"}
    if forced and scoring not in (None, FIRST_TOKEN):
        what = f"true contradicts scoring: {shown(scoring, quoted=False)}: remove one of the two"
        raise refusal(what, "force_single_token_labels")
    return {**values, "scoring": FIRST_TOKEN} if forced else {"scoring": TREE, **values}


def _labels_schema(schema: JsonObject) -> None:
    """A list of labels, or labels with descriptions."""
    as_list = {key: schema.pop(key) for key in ("type", "items", "minItems", "maxItems")} | {"uniqueItems": True}
    texts = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema["anyOf"] = [
        as_list,
        {"type": "object", "additionalProperties": texts, "minProperties": 2, "maxProperties": _MAX_LABELS},
    ]


def _has_text(value: Any) -> Any:
    if value is _NO_TEXT:
        raise refusal("is missing: write the whole text, or write system and user for the model's own chat template")
    return value


class PromptConfig(Settings):
    """One prompt: a text with a slot for the query and perhaps others, and a closed label set."""

    # fmt: off
    name: VisibleText = Field(description="the name of the prompt's answers")
    prompt_template: Annotated[Text | None, BeforeValidator(_has_text)] = Field(default=None,
        description="the whole text with the model's control tokens, one {query}, and perhaps other slots")
    system: Text | None = Field(default=None,
        description="instead of it: the system message, for the model's chat template, with the same slots")
    user: Text | None = Field(default=None,
        description="the user message, likewise; default where system has no {query}: the query alone")
    answer_cue: Text | None = Field(default=None,
        description="the beginning of the model's answer after system and user; default `{name}:`")
    describe: VisibleText | None = Field(default=None,
        description="what the prompt asks for, for the slots {describe} and {all_labels}")
    labels: Annotated[
        tuple[VisibleText, ...],
        Field(min_length=2, max_length=_MAX_LABELS, json_schema_extra=_labels_schema),
        LISTED,
        distinct("label"),
    ] = Field(description="the answers, as a list, or with descriptions")
    label_descriptions: Annotated[tuple[VisibleText | None, ...], LISTED] | None = Field(default=None,
        description="descriptions of a list of labels, in its order")
    label_prefix: Text = Field(default=" ", description="the text between the template and a label")
    scoring: Scoring = Field(default=TREE, description="how a label's tokens become its score")
    label_orders: Annotated[int, Field(strict=True, ge=1, le=16)] = Field(default=1, repr=False,
        description="in how many orders the text lists the labels, each in the same decode; scores are their means")
    force_single_token_labels: Truth | None = Field(default=None, exclude=True, repr=False,
        description="true: the same as scoring first_token")
    label_end: FilledText | None = Field(default=None,
        description="the token that ends a label with which another begins; default: the end of the turn")
    prior: Prior = Field(default="none",
        description="content_free: subtract what the labels get for queries without content")
    content_free_queries: Queries = Field(default=CONTENT_FREE_QUERIES,
        description="the queries from which such a prior is computed")
    temperature: Temperature | None = Field(default=None,
        description="divides the scores before the softmax; default: the calibration's, else 1")
    min_confidence: Annotated[float, Field(strict=True, gt=0, le=1)] | None = Field(default=None,
        description="answer the fallback if the best label is less probable")
    fallback: VisibleText | None = Field(default=None,
        description="the answer below min_confidence; need not be a label")
    # fmt: on
    place: ClassVar = ("prompts", 0)

    @property
    def is_chat(self) -> bool:
        """Whether the model's chat template must still render the text, from `turns` and `cue`."""
        return self.prompt_template is None

    @property
    def turns(self) -> dict[str, str]:
        """The messages for the chat template: `system`, `user` or both, with their slots."""
        found = {key: text for key in ("system", "user") if (text := getattr(self, key)) is not None}
        return found if any(SLOT in text for text in found.values()) or "user" in found else {**found, "user": SLOT}

    @property
    def cue(self) -> str:
        """The text after the rendered turns, with its slots."""
        return _CUE if self.answer_cue is None else self.answer_cue

    @property
    def template(self) -> str:
        """The whole text with its slots. Raises ConfigError if the chat template has not rendered it yet."""
        if self.prompt_template is None:
            raise ConfigError(f"prompts.{self.name}: system and user become a text when the model is open")
        return self.prompt_template

    @property
    def expanded_template(self) -> str:
        """The whole text with all slots filled except the query's. Raises ConfigError as `template` does."""
        return expand(self.template, self.fillings)

    @property
    def fillings(self) -> dict[str, str]:
        """The texts of the slots that depend neither on the query nor on other prompts."""
        pairs = zip(self.labels, self.label_descriptions or [None] * len(self.labels), strict=True)
        return {
            LABELS_SLOT: _SEPARATOR.join(self.labels),
            DESCRIBED_SLOT: "\n".join(f"- {label}: {text}" if text else f"- {label}" for label, text in pairs),
            NAME_SLOT: self.name,
            DESCRIBE_SLOT: self.describe or "",
        }

    @property
    def texts(self) -> dict[str, str]:
        """The texts with their slots, by key: `prompt_template`, or the messages and a given cue."""
        if self.prompt_template is not None:
            return {"prompt_template": self.prompt_template}
        cue = self.answer_cue or ""
        return {**({"answer_cue": cue} if "{" in cue else {}), **self.turns}

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        found = given(values, keep=("label_prefix",))
        if not isinstance(found, dict):
            return found
        if not any(key in found for key in ("prompt_template", "system", "user")):
            found["prompt_template"] = _NO_TEXT
        if isinstance(labels := found.get("labels"), Mapping):
            if "label_descriptions" in found:
                raise refusal("is given beside labels that have descriptions already: remove it", "label_descriptions")
            for label, text in labels.items():
                if text is not None and not isinstance(text, str):
                    what = f"{shown(text)} is {kind_of(text)}, not text: describe the label, or leave the place empty"
                    raise refusal(what, "labels", shown(label, quoted=False))
            found["labels"] = tuple(labels)
            if any(text is not None for text in labels.values()):
                found["label_descriptions"] = tuple(labels.values())
        return resolve_forced(found)

    @model_validator(mode="after")
    def _check(self) -> "PromptConfig":
        for key in () if self.is_chat else TEXT_KEYS[1:]:
            if getattr(self, key) is not None:
                raise refusal("is given beside prompt_template, which is the whole text: keep one of the two", key)
        if self.is_chat and SLOT in self.cue:
            raise refusal(f"has a {SLOT} slot: write the query into user", "answer_cue")
        if self.label_descriptions and len(self.label_descriptions) != len(self.labels):
            n, n_labels = len(self.label_descriptions), len(self.labels)
            raise refusal(f"has {n} texts for {n_labels} labels: give one, or null, for each", "label_descriptions")
        _check_texts(self)
        for key, other in (("min_confidence", "fallback"), ("fallback", "min_confidence")):
            if getattr(self, key) is not None and getattr(self, other) is None:
                raise refusal(f"{shown(getattr(self, key))} needs {other}: give both or neither", key)
        return self


def _check_texts(prompt: PromptConfig) -> None:
    """Refuse texts without exactly one `{query}`, also after other slots are filled, by the setting to change."""
    texts, fillings = prompt.texts, prompt.fillings  # the last text should hold the query
    key, whole = list(texts)[-1], "".join(texts.values())
    has, it = ("has", "it") if len(texts) == 1 else (f"{' and '.join(texts)} have", "a prompt")
    if (n_slots := sum(text.count(SLOT) for text in texts.values())) != 1:
        meant = [word for word in braced_words(whole) if meant_slot(word) == SLOT]
        is_other = meant and n_slots == 0 and len(texts) == 1
        remedy = f"did you mean {SLOT} by {meant[0]}?" if is_other else f"{it} needs exactly one"
        raise refusal(f"{has} {n_slots} {SLOT} slots: {remedy}", key)
    for slot in LABEL_SLOTS:
        if (n_slots := whole.count(slot)) > 1:
            raise refusal(f"{has} {n_slots} {slot} slots: {it} may have one", key)
    if DESCRIBE_SLOT in whole and prompt.describe is None:
        what = f"is missing, and {key} has a {DESCRIBE_SLOT} slot for it: give it, or remove the slot"
        raise refusal(what, "describe")
    expanded = [expand(text, fillings) for text in texts.values()]
    for slot in (SLOT, *fillings):
        if sum(text.count(slot) for text in expanded) != (slot == SLOT):
            made = {"name": [prompt.name], "describe": [prompt.describe or ""], "labels": prompt.labels}
            found = ((name, text) for name, texts_of_it in made.items() for text in texts_of_it if slot in text)
            name, text = next(found, ("labels", prompt.labels[0]))
            what = f"{shown(text)} in place of the template's {{{name}}} makes another {slot} slot: change it"
            raise refusal(what, name)


def braced_words(text: str) -> list[str]:
    """The words in braces that look like slots and are none, each once."""
    return [word for word in dict.fromkeys(_BRACED.findall(text)) if word not in SLOTS]


def meant_slot(word: str) -> str | None:
    """The slot that a word in braces is likely meant for."""
    bare = word.strip("{} ").lower()
    if bare in _QUERY_WORDS:
        return SLOT
    if bare in _LABEL_WORDS:
        return LABELS_SLOT
    return next(iter(get_close_matches(f"{{{bare}}}", SLOTS, n=1)), None)


def expand(template: str, texts: Mapping[str, str]) -> str:
    """The template with slots replaced by their texts; what looks like a slot in such a text stays."""
    return re.sub("|".join(map(re.escape, texts)), lambda slot: texts[slot[0]], template)


def all_texts(prompts: Sequence[PromptConfig]) -> dict[str, str]:
    """The texts of the slots that all prompts fill: their names, with their labels or with described ones."""
    named = [(f"{prompt.name} ({prompt.describe})" if prompt.describe else prompt.name, prompt) for prompt in prompts]
    return {
        ALL_LABELS_SLOT: "\n".join(f"{name}: [{_SEPARATOR.join(prompt.labels)}]" for name, prompt in named),
        ALL_DESCRIBED_SLOT: "\n".join(f"{name}:\n{prompt.fillings[DESCRIBED_SLOT]}" for name, prompt in named),
    }


def turned(prompt: PromptConfig, prompts: Sequence[PromptConfig], order: int, n_orders: int) -> PromptConfig:
    """A prompt with a whole text, in which the lists of all prompts' labels are turned: they begin order / n_orders
    after their beginning. Raises ConfigError for a text that does not list its labels.
    """
    lists: dict[str, str] = {}
    for listed in sorted(prompts, key=lambda listed: -len(listed.labels)):  # a list may be a part of a longer one
        at, labels, told = len(listed.labels) * order // n_orders, listed.labels, listed.label_descriptions
        other = listed.changed(labels=labels[at:] + labels[:at], label_descriptions=told and told[at:] + told[:at])
        lists |= {listed.fillings[slot]: other.fillings[slot] for slot in LABEL_SLOTS}
    text = prompt.expanded_template
    if not any(prompt.fillings[slot] in text for slot in LABEL_SLOTS):
        what = "the text does not list the labels in their order, which could be changed: write {labels} into it"
        raise ConfigError(f"prompts.{prompt.name}: orders of labels: {what}")
    return prompt.changed(prompt_template=expand(text, lists))


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyMistake:
    """What is likely wrong with prompts that can be used all the same."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}  # for the schema of records

    kind: MistakeKind
    """by which a configuration may leave it untold: ignore_warnings"""
    prompts: tuple[str, ...]
    """names of the prompts that have it"""
    place: str
    """where it stands in the configuration, for the first of these"""
    what: str
    """what is wrong, and what to do"""

    def __str__(self) -> str:
        return f"{self.place}: {self.what} [{self.kind}]"
