"""The records of all commands, described from their types: `make records` writes build/records.md and their schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import models_json_schema

from qcls_gguf.bench.benchmark import BenchmarkRecord
from qcls_gguf.compare.run import ComparisonRecord
from qcls_gguf.config.scoring import SCORE_MEANING
from qcls_gguf.config.words import JsonObject
from qcls_gguf.evaluation.evaluate import EvaluationRecord
from qcls_gguf.inspection.inspect import Inspection, ShownPrompts
from qcls_gguf.inspection.local_models import ModelsRecord
from qcls_gguf.labelling.records import LabellingRecord
from qcls_gguf.learning.calibrate import BatchPriorRecord, CalibrationRecord, StatementRecord
from qcls_gguf.learning.report import LearnRecord
from qcls_gguf.report.record import LEFT_OUT, Record, left_out_if_none
from qcls_gguf.score.result import Audit, Counts, ModelInfo


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


RECORDS: dict[str, type[Record]] = {
    "run": RunRecord,
    "label": LabellingRecord,
    "inspect": Inspection,
    "inspect --show-prompt": ShownPrompts,
    "eval": EvaluationRecord,
    "learn": LearnRecord,
    "calibrate": CalibrationRecord,
    "calibrate --queries": BatchPriorRecord,
    "calibrate --target-error": StatementRecord,
    "compare": ComparisonRecord,
    "bench": BenchmarkRecord,
    "models": ModelsRecord,
}

_BEGINNING = """\
# Records

What the commands print with `--format json`,: one object, of the type named here
(`run` one for a single query, else a list of them, and with `--format jsonl` one on a line). Counts are named `n_*`,
times `*_ms` or `*_s`, sizes `*_bytes`. A field without a value is `null`, unless it says that it is left out.

| command | record |
| --- | --- |
"""


def records_schema() -> JsonObject:
    """The JSON Schema of all records: a definition for each type."""
    _, schema = models_json_schema([(record, "serialization") for record in RECORDS.values()])
    return schema


def records_page() -> str:
    """The page: which command prints what, then the fields of every type."""
    rows = [f"| `qcls-gguf {command}` | {_link(record.__name__)} |\n" for command, record in RECORDS.items()]
    types = [_section(name, schema) for name, schema in records_schema()["$defs"].items() if "properties" in schema]
    return _BEGINNING + "".join(rows) + "".join(types)


def _section(name: str, schema: JsonObject) -> str:
    lines = ["", f"## {name}", "", " ".join(schema["description"].split())]
    lines += ["", "| field | type | meaning |", "| --- | --- | --- |"]
    for field, about in schema["properties"].items():
        kind, meaning = _type(about), " ".join(about.get("description", "").split()).replace("|", "\\|")
        if about.get(LEFT_OUT):
            kind, meaning = kind.removesuffix(" or null"), f"{meaning}; left out where there is none".lstrip("; ")
        lines.append(f"| `{field}` | {kind} | {meaning} |")
    return "\n".join(lines) + "\n"


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _type(field: Any) -> str:
    """A type in words: `list of number`, `object of number` for any keys, `[number, number]` for a pair."""
    if "$ref" in field:
        return _link(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        return " or ".join(map(_type, field["anyOf"]))
    if "enum" in field or "const" in field:
        return " or ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field["type"] == "array":
        pair = field.get("prefixItems")
        return f"[{', '.join(map(_type, pair))}]" if pair else f"list of {_type(field['items'])}"
    return f"object of {_type(field['additionalProperties'])}" if field["type"] == "object" else str(field["type"])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.md").write_text(records_page(), encoding="utf-8")
    (folder / "records.schema.json").write_text(json.dumps(records_schema(), indent=2), encoding="utf-8")
