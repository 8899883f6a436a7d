"""What the records of all commands have in common, frozen typed values that are written as JSON; and the record of a
labelled query: what `qcls-gguf run` prints, and with `model` what `Result.to_dict` returns.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..config.scoring import SCORE_MEANING
from ..config.words import JsonObject
from ..score.result import Audit, Counts, ModelInfo


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON with every script as it is, and bytes of a path that are no UTF-8 as escapes of JSON, such as `\\udcff`.

    Raises ValueError for a number that is not finite, which JSON cannot say.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class Record(BaseModel):
    """A part of what a command prints as JSON. Its fields carry their description.

    A field is always in the JSON, `null` where it has no value, but for those made with `left_out_if_none`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def to_dict(self) -> JsonObject:
        """The record as JSON has it: objects, lists, strings, numbers, booleans and None."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """The record as indented JSON. Raises ValueError for a number that is not finite."""
        return json_text(self.to_dict(), indent=2)


LEFT_OUT = "x-left-out"
"""marks, in a JSON Schema, a field that is left out where it has no value"""


def left_out_if_none(description: str | None = None) -> Any:
    """The default of a field that is not in the JSON where it is None."""
    return Field(
        default=None,
        description=description,
        exclude_if=lambda value: value is None,
        json_schema_extra={LEFT_OUT: True},
    )


class LabelRecord(Record):
    """One label of a prompt."""

    label: str = Field(description="the text of the label")
    score: float = Field(description=f"{SCORE_MEANING}. Without prior, temperature and bias")
    probability: float = Field(description="0 to 1, after prior, temperature and bias")
    n_tokens: int = Field(description="tokens of the label")


class PromptRecord(Record):
    """One prompt's answer."""

    prompt: str = Field(description="the prompt's name")
    label: str = Field(description="the most probable label, or the fallback where that is below min_confidence")
    probability: float = Field(description="probability of the most probable label, 0 to 1")
    abstained: bool = Field(description="whether the answer is the fallback")
    fast_path: bool = Field(description="false if the query changed tokens of the cached prefix")
    scores: tuple[LabelRecord, ...] = Field(description="all labels in order; if fewer were asked for, the best first")
    scored_by: Literal["head"] | None = left_out_if_none("only where a learnt head gave the answer")
    depth: int | None = left_out_if_none("the layers after which that head read the hidden state")
    audit: Audit | None = left_out_if_none("only with an audit, or if the prompt's scoring is exact")
    most_probable: str | None = left_out_if_none("the most probable label, where the answer is the fallback")


class RunRecord(Record):
    """One query's answer. Times and counts are of the whole request."""

    query: str = Field(description="the text that was labelled")
    total_ms: float = Field(description="from the call to the answer, in ms, without wait_ms")
    stage_ms: dict[str, float] = Field(description="ms by stage of the request")
    counts: Counts = Field(description="counts of the request's decodes")
    results: tuple[PromptRecord, ...] = Field(description="by prompt, in the order of the configuration")
    model: ModelInfo | None = left_out_if_none("the model that answered, and its device; not in JSON lines")
    wait_ms: float = Field(description="ms of waiting for other callers' requests, before total_ms")
    n_chars_cut: int | None = left_out_if_none("characters that `long_queries` had cut off a query that was too long")
    model_sha256: str | None = left_out_if_none("sha256 of the model file; only in JSON lines")
    line: int | None = left_out_if_none("line number in the input, from 1; not for queries that were given or typed")
