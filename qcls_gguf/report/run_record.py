"""The record of a labelled query: what `qcls-gguf run` prints as JSON; with `model` what `Result.to_dict` returns."""

from __future__ import annotations

from ..score.result import Audit, Counts, ModelInfo
from .record import Record, left_out_if_none


class LabelRecord(Record):
    """One label of a prompt."""

    label: str
    """the text of the label"""
    score: float
    """first_token: the logit of the label's first token; tree: log-probability among the labels; joint: log-probability
    in the whole vocabulary; mean: that per token. Without prior, temperature and bias"""
    probability: float
    """with prior, temperature and bias, where the configuration has them"""
    n_tokens: int
    """tokens of the label"""


class PromptRecord(Record):
    """One prompt's answer."""

    prompt: str
    """the prompt's name"""
    label: str
    """the answer: the most probable label, or the fallback where that is less probable than min_confidence"""
    probability: float
    """of the most probable label"""
    abstained: bool
    """whether the answer is the fallback"""
    fast_path: bool
    """false where the query changed tokens of the cached prefix, which were fed anew"""
    scores: tuple[LabelRecord, ...]
    """all labels, in the order of the configuration; or fewer, the most probable first, where so many were asked for"""
    stage: str | None = left_out_if_none()
    """which stage of a cascade gave the answer; only with a cascade"""
    audit: Audit | None = left_out_if_none()
    """only where it was asked for, or where the prompt's scoring is exact"""
    most_probable: str | None = left_out_if_none()
    """the most probable label, where the answer is the fallback"""


class RunRecord(Record):
    """One query's answer. Times and counts are of the whole request."""

    query: str
    """the text that was labelled"""
    total_ms: float
    """from the call to the answer, in ms, without wait_ms"""
    stage_ms: dict[str, float]
    """ms by stage of the request"""
    counts: Counts
    """what the decodes of the request did"""
    results: tuple[PromptRecord, ...]
    """an answer for each prompt, in the order of the configuration"""
    model: ModelInfo | None = left_out_if_none()
    """which model answered, and what computed it; not in JSON lines, whose header line may have it"""
    wait_ms: float
    """ms before total_ms, until other callers' requests were done"""
    model_sha256: str | None = left_out_if_none()
    """the model file's; only in JSON lines"""
    line: int | None = left_out_if_none()
    """of the input, from 1; not for a query that was given by itself or typed"""
    id: str | None = left_out_if_none()
    """what the input's column of ids has, where one was named"""
