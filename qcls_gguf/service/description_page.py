"""`/docs`: the OpenAPI description as a page of its own, which loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #dde; } a { color: #8be; } }
code, pre { font: 13px ui-monospace, monospace; } h2 code { font-size: 1em; }
table { border-collapse: collapse; width: 100%; } td { border-top: 1px solid #8884; padding: .2em .8em .2em 0;
vertical-align: top; } summary { cursor: pointer; }
"""


def description_page(schema: Mapping[str, Any]) -> bytes:
    """The page of an OpenAPI description: each route with its bodies and answers, then each schema."""
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>{title}</h1>',
        f'<p>{escape(schema["info"].get("description", ""))} <a href="openapi.json">openapi.json</a></p>',
    ]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts += _operation(path, method, operation)
    parts.append("<h1>Schemas</h1>")
    for name, each in sorted(schema["components"]["schemas"].items()):
        parts += [f'<h3 id="{escape(name)}">{escape(name)}</h3>', f"<p>{escape(each.get('description', ''))}</p>"]
        parts.append(f"<table>{''.join(_fields(each))}</table>")
    return "\n".join(parts).encode()


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2><p>{escape(operation.get('summary', ''))}</p>"
    yield "<table>"
    for parameter in operation.get("parameters", ()):
        where = f"{parameter['in']} parameter"
        yield _row(where, f"<code>{escape(parameter['name'])}</code> {_kind(parameter['schema'])}")
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield _row("body", f"<code>{escape(kind)}</code> {_kind(content['schema'])}")
    for status, answer in operation.get("responses", {}).items():
        kinds = ", ".join(_kind(content["schema"]) for content in answer.get("content", {}).values())
        yield _row(escape(status), f"{escape(answer.get('description', ''))} {kinds}")
    yield "</table>"


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    needed = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        what = escape(field.get("description", ""))
        yield _row(f"<code>{escape(name)}</code>{'' if name in needed else ' (optional)'}", f"{_kind(field)} {what}")


def _row(name: str, what: str) -> str:
    return f"<tr><td>{name}</td><td>{what}</td></tr>"


def _kind(schema: Mapping[str, Any]) -> str:
    """What a value may be, in a few words; a schema of its own as a link."""
    if reference := schema.get("$ref"):
        name = escape(reference.rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(map(_kind, schema[key]))
    if "const" in schema or "enum" in schema:
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(more := schema.get("additionalProperties"), Mapping):
        return f"object of {_kind(more)}"
    return escape(str(kind))
