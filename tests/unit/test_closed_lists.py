"""Which values a JSON schema allows: compared with the library jsonschema, and no key is read over."""

from collections.abc import Iterator
from math import nan
from typing import Any

import pytest
from cases import cases
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from qcls_gguf.questions.closed_lists import ClosedList, OpenAnswerError, closed_lists

VALUES: list[Any] = ["a", "b", "null", True, False, None, *range(-4, 10), 0.5, 1.5, 2.5]
SILENT = {"title": "A", "default": "a", "examples": ["a"], "deprecated": True, "$comment": "c", "readOnly": False}
UNKNOWN = {
    **{"pattern": "a", "minLength": 1, "maxLength": 1, "format": "email", "items": {}, "uniqueItems": True},
    **{"not": {}, "if": {}, "discriminator": {}, "enumDescriptions": ["x"], "contentEncoding": "base64", "x-order": 1},
}
BOUNDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum"), st.sampled_from([-3, 0, 0.5, 1.0, 2])),
    **dict.fromkeys(("maximum", "exclusiveMaximum"), st.sampled_from([-1, 2.5, 3, 7.0, 8])),
    "multipleOf": st.sampled_from([0.5, 1, 2, 2.5]),
}
KINDS = st.sampled_from(["string", "integer", "number", "boolean", "null"])
OTHERS = {
    "type": KINDS | st.lists(KINDS, min_size=1, unique=True),
    "description": st.sampled_from(["one", "two"]),
    **BOUNDS,
}
LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"enum": st.lists(st.sampled_from(VALUES), min_size=1, max_size=8)}, optional=OTHERS),
    st.fixed_dictionaries({"const": st.sampled_from(VALUES), "description": st.just("one")}),
    st.fixed_dictionaries({"type": KINDS | st.just(["integer", "null"]), **BOUNDS}),
    st.fixed_dictionaries({"type": st.just("integer"), "minimum": BOUNDS["minimum"], "exclusiveMaximum": st.just(4)}),
)
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        *(
            st.fixed_dictionaries({key: st.lists(inner, min_size=1, max_size=3)}, optional={"nullable": st.booleans()})
            for key in ("anyOf", "oneOf", "allOf")
        ),
        st.fixed_dictionaries(
            {"$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"])}, optional={"enum": st.just(VALUES)}
        ),
    ),
    max_leaves=4,
)
WHOLE = st.builds(lambda schema, one, two: schema | {"$defs": {"one": one, "two": two}}, SCHEMAS, SCHEMAS, SCHEMAS)


def plain(schema: Any) -> Any:
    """The same in words of JSON Schema: `oneOf` as `anyOf`, as alternatives need not exclude each other here."""
    if not isinstance(schema, dict):
        return [plain(item) for item in schema] if isinstance(schema, list) else schema
    schema = {key: value if key in ("enum", "const") else plain(value) for key, value in schema.items()}
    if "oneOf" in schema:
        schema["allOf"] = [*schema.get("allOf", []), {"anyOf": schema.pop("oneOf")}]
    return {"anyOf": [schema, {"type": "null"}]} if schema.pop("nullable", False) else schema


def sub_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for key in ("anyOf", "oneOf", "allOf"):
            for item in schema.get(key, []):
                yield from sub_schemas(item)


def typed(values: Any) -> set[tuple[type, Any]]:
    return {(type(value), value) for value in values}


def read(schema: Any) -> ClosedList:
    (found,) = closed_lists(schema, "schema").values()
    return found


@given(WHOLE)
def test_the_values_are_those_that_the_schema_allows(schema: dict[str, Any]) -> None:
    try:
        found = read(schema)
    except OpenAnswerError:
        return  # what the tables below have must not be refused
    assert len(found.values) == len(found.of_values) == len(typed(found.values))
    right = plain({key: value for key, value in schema.items() if key != "$defs"})
    validator = Draft202012Validator({**right, "$defs": plain(schema["$defs"])})
    assert typed(value for value in VALUES if validator.is_valid(value)) <= typed(found.values)
    assert all(validator.is_valid(value) for value in found.values)
    assert not any(map(validator.is_valid, ("another", 1000, 0.3)))


@given(WHOLE, st.data())
def test_every_key_is_honoured_or_named(schema: dict[str, Any], data: st.DataObject) -> None:
    try:
        right = read(schema)
    except OpenAnswerError:
        assume(False)
    place = data.draw(st.sampled_from(list(sub_schemas(schema))))
    silent = data.draw(st.sampled_from(sorted(SILENT)))
    place[silent] = SILENT[silent]
    assert read(schema) == right
    unknown = data.draw(st.sampled_from(sorted(UNKNOWN)))
    place[unknown] = UNKNOWN[unknown]
    nested = {"type": "object", "properties": {"a": {"properties": {"b": schema}}}, "$defs": schema["$defs"]}
    for whole in (schema, nested):
        with pytest.raises(OpenAnswerError, match=f"'{unknown}'"):
            closed_lists(whole, "schema")


ENDLESS = {"$ref": "#/$defs/a~1b/anyOf/1", "$defs": {"a/b": {"anyOf": [1, {"$ref": "#"}]}}}
STARS = {"type": "integer", "minimum": 1, "maximum": 3}
RED, BLUE = {"const": "red", "description": "like a tomato"}, {"const": "blue"}
COLOUR = {"enum": ["red", "blue"], "description": "of a dress"}


@cases(
    ({"$ref": "#/$defs/a~1b%20c~0", "$defs": {"a/b c~": {"const": 1}}}, (1,)),
    ({"$ref": "#/anyOf/1", "anyOf": [{"const": 3}, {"enum": [1, 2]}]}, (1, 2)),
    ({"type": ["boolean", "null"]}, (True, False, None)),
    ({"type": "string", "enum": ["a"], "nullable": True}, ("a", None)),
    ({"allOf": [{"$ref": "#/$defs/a"}], "nullable": True, "$defs": {"a": {"const": "a"}}}, ("a", None)),
    ({"allOf": [{"const": "a"}, {"enum": ["a", "b"], "nullable": True}]}, ("a",)),
    ({"allOf": [{"enum": ["a", None]}, {"allOf": [{"const": "a"}], "nullable": True}]}, ("a", None)),
    (STARS, (1, 2, 3)),
    ({"enum": [10**400, 3], "multipleOf": 1.0}, (10**400, 3)),
    ({"allOf": [{"type": "integer", "format": "int32"}, {"minimum": 1, "maximum": 2}]}, (1, 2)),
    (STARS | {"exclusiveMinimum": 1, "exclusiveMaximum": 3.5, "multipleOf": 1.0}, (2, 3)),
    (STARS | {"minimum": -4.5, "multipleOf": 2}, (-4, -2, 0, 2)),
    ({"type": ["integer", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 256}, (*range(1, 256), None)),
    ({"type": "number", "minimum": 0, "maximum": 3, "multipleOf": 1}, "is not a closed list"),
    (STARS | {"multipleOf": 0.5}, "multipleOf 0.5 is not a number"),
    (STARS | {"multipleOf": 0}, "multipleOf 0 is not a number"),
    (STARS | {"exclusiveMinimum": True}, "exclusiveMinimum True is not a number"),
    (STARS | {"maximum": 256}, "more than 255 values"),
    (STARS | {"minimum": -(2**63), "maximum": 2**63 - 1}, "more than 255 values"),
    (STARS | {"minimum": "1"}, "minimum '1' is not a number"),
    (STARS | {"maximum": nan}, "maximum nan is not a number"),
    ({"enum": [1, nan]}, "is not a closed list"),
    ({"enum": [["a"], "b"]}, "no closed list|not a closed list"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "without end"),
    ({"type": "OBJECT", "properties": {"a": BLUE}}, "type 'OBJECT' is not known"),
    ({"type": "integer", "minimum": 1}, "at most 255 whole numbers by `minimum` and `maximum`"),
    ({"enum": [1, 2], "minimum": 3}, "which no value fits"),
    ({"type": "strin"}, "type 'strin' is not known"),
    ({"type": {}}, "type {} is not known"),
    ({"type": ["string", "null"]}, "string"),
    ({"$ref": "#/anyOf/2", "anyOf": [{"const": 1}]}, "None is not"),
    ({"$ref": "#/anyOf/x", "anyOf": [{"const": 1}]}, "None is not"),
    ({"$ref": "other.json#/a", "$defs": {"a": {"const": 1}}}, "None is not"),
    ({"$ref": "#a", "const": 1}, "None is not"),
    (ENDLESS, "without end"),
    ({"anyOf": [{"properties": {"a": BLUE}}, {"type": "null"}]}, "an object that may be something else"),
    ({"properties": {"a": BLUE}, "type": ["object", "null"]}, "an object that may be something else"),
    ({"properties": {"a": BLUE}, "required": ["b"]}, "an object that requires 'b'"),
    ({"type": "array", "items": BLUE}, "the key 'items' of a schema is not supported"),
)
def test_what_a_schema_allows(schema: Any, values: tuple[Any, ...] | str) -> None:
    if isinstance(values, tuple):
        assert [(type(value), value) for value in read(schema).values] == [(type(value), value) for value in values]
        return
    with pytest.raises(OpenAnswerError, match=values):
        closed_lists(schema, "schema")


@cases(
    ({"oneOf": [RED, BLUE], "description": "of a dress"}, "of a dress", ("like a tomato", "")),
    ({"anyOf": [{"allOf": [RED]}, BLUE, {"type": "null", "description": "none"}]}, "", ("like a tomato", "", "none")),
    ({"anyOf": [COLOUR, {"const": "pink"}]}, "", ("of a dress", "of a dress", "")),
    ({"anyOf": [COLOUR, {"type": "null"}]}, "of a dress", ("", "", "")),  # as pydantic writes an optional Enum
    ({"enum": ["red", "blue"], "oneOf": [BLUE, RED]}, "", ("like a tomato", "")),
    ({"anyOf": [RED, RED | {"description": "warm"}]}, "", ("like a tomato; warm",)),
    ({"oneOf": [RED | {"title": "Red"}, {"const": "b", "title": "B"}, BLUE]}, "", ("like a tomato", "B", "")),
    ({"oneOf": [{"enum": ["a"], "title": "A"}, {"const": "b", "title": "b"}]}, "", ("", "")),
)
def test_what_is_said_of_values_is_read(schema: Any, description: str, of_values: tuple[str, ...]) -> None:
    assert read(schema)[1:] == (description, of_values)


def test_parts_of_an_object_are_put_together() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/named"}, {"properties": {"a": {"enum": [3, 2]}, "b": BLUE}}]}
    found = closed_lists(schema | {"$defs": {"named": {"properties": {"a": {"enum": [1, 2, 3]}}}}}, "schema")
    assert {names: field.values for names, field in found.items()} == {("a",): (2, 3), ("b",): ("blue",)}


def test_names_of_fields_are_cut_in_messages() -> None:
    with pytest.raises(OpenAnswerError) as raised:
        closed_lists({"properties": {"a" * 100_000: {"type": "string"}}}, "schema")
    assert (raised.value.param, len(str(raised.value)) < 600) == ("schema." + "a" * 193, True)
