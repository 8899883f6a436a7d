"""Prints docs/records.md, which describes the record of every command: `python docs/records_page.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from qcls_gguf.bench.records import BenchmarkRecord
from qcls_gguf.compare.records import ComparisonRecord
from qcls_gguf.config.load import describe_settings
from qcls_gguf.config.words import JsonObject
from qcls_gguf.evaluation.records import EvaluationRecord
from qcls_gguf.inspection.local_models import ModelsRecord
from qcls_gguf.inspection.records import Inspection, ShownPrompts
from qcls_gguf.inspection.statement import StatementsRecord
from qcls_gguf.labelling.records import LabellingRecord
from qcls_gguf.learning.batch_prior import BatchPriorRecord
from qcls_gguf.learning.calibrate import CalibrationRecord
from qcls_gguf.learning.report import LearnRecord
from qcls_gguf.learning.statements import StatementRecord
from qcls_gguf.report.record import LEFT_OUT, Record, RunRecord

RECORDS: dict[str, type[Record]] = {
    "run": RunRecord,
    "label": LabellingRecord,
    "inspect": Inspection,
    "inspect --show-prompt": ShownPrompts,
    "inspect --statement": StatementsRecord,
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

What the commands print with `--format json`, and `label` with `--summary json`. Each prints one object (`run` one for a
single query, else a list of them, and with `--format jsonl` one on a line), whose fields are below.
Counts are named `n_*`, times `*_ms` (milliseconds) or `*_s` (seconds), sizes `*_bytes`. A field without a value is
`null`, unless its table says that it is left out. New fields may come with a new version.

This page is generated from the types by `python docs/records_page.py > docs/records.md`.

"""


def records_page() -> str:
    """The text of docs/records.md."""
    return _BEGINNING + records_markdown({f"`qcls-gguf {command}`": record for command, record in RECORDS.items()})


class _WrittenSchema(GenerateJsonSchema):
    """Without what a class takes when it is made and does not keep, which is not written."""

    def field_is_present(self, field: Any) -> bool:
        """For pydantic."""
        return super().field_is_present(field) and not field.get("init_only")


def records_markdown(records: Mapping[str, type[BaseModel]]) -> str:
    """A section for each record by its heading, with a table of its fields, and one for each type that it has first."""
    lines: list[str] = []
    seen: set[str] = set()

    def describe(heading: str, schema: JsonObject, types: Mapping[str, JsonObject]) -> None:
        lines.extend([heading, "", *_table(schema, types)])
        for name in _references(schema):
            if name not in seen:
                seen.add(name)
                describe(f"### {name}", types[name], types)

    for heading, record in records.items():
        schema = record.model_json_schema(schema_generator=_WrittenSchema)
        describe_settings(schema.get("$defs", {}))
        describe(f"## {heading}", schema, schema.pop("$defs", {}))
    return "\n".join(lines)


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _table(schema: JsonObject, types: Mapping[str, JsonObject]) -> list[str]:
    """A type's description and its fields, a row each; a field without a description has that of its type."""
    lines = [_one_line(schema["description"]), "", "| field | type | meaning |", "| --- | --- | --- |"]
    for name, field in schema["properties"].items():
        described = [field, *(types[reference] for reference in _references(field))]
        meaning = _one_line(next((each["description"] for each in described if "description" in each), ""))
        kind = _type_text(field)
        if field.get(LEFT_OUT):
            kind, meaning = kind.removesuffix(" or null"), f"{meaning}; left out where there is none"
        text = meaning.replace("|", "\\|")
        lines.append(f"| `{name}` | {kind} | {text} |")
    return [*lines, ""]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _type_text(field: JsonObject) -> str:
    """A type in words: `list of number`, `object of number` for any keys, `[number, number]` for a pair."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(map(_type_text, field["anyOf"]))
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = str(field["type"])
    if kind == "array":
        if "prefixItems" in field:
            return f"[{', '.join(map(_type_text, field['prefixItems']))}]"
        return f"list of {_type_text(field['items'])}"
    if kind == "object":
        return f"object of {_type_text(field['additionalProperties'])}"
    return kind


if __name__ == "__main__":
    print(records_page(), end="")
