"""Validate JSON values against JSON Schemas, as far as msgspec and pydantic generate them for types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from holdfast.model.names import counted

Schema = Mapping[str, Any]

_FORMATS: dict[str, Any] = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


def find_mismatch(value: Any, schema: Schema) -> str | None:
    """Return the first violation of the schema, with its path; None if the value is valid."""
    return next(_violations(value, schema, "the output", {}), None)


def apply_defaults(value: Any, schema: Schema) -> Any:
    """Return a valid value with the schema's defaults for missing properties."""
    return _with_defaults(value, schema, {})


def _with_defaults(value: Any, schema: Any, defs: Mapping[str, Any]) -> Any:
    if not isinstance(schema, Mapping):
        return value
    defs = {**defs, **schema["$defs"]} if "$defs" in schema else defs
    if "$ref" in schema:
        return _with_defaults(value, defs[schema["$ref"].rpartition("/")[2]], defs)
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if next(_violations(value, each, "", defs), None) is None:
            return _with_defaults(value, each, defs)
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        kinds = [first[index] if index < len(first) else schema.get("items") for index in range(len(value))]
        return [_with_defaults(item, kind, defs) for item, kind in zip(value, kinds, strict=True)]
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties")
        given = {name: _with_defaults(item, properties.get(name, others), defs) for name, item in value.items()}
        absent = {name: kind["default"] for name, kind in properties.items() if name not in value and "default" in kind}
        return given | absent
    return value


def _violations(value: Any, schema: Any, where: str, defs: Mapping[str, Any]) -> Iterator[str]:
    if schema is True or schema == {}:
        return
    if schema is False:
        yield f"{where} is not allowed"
        return
    defs = {**defs, **schema["$defs"]} if "$defs" in schema else defs
    if "$ref" in schema:
        yield from _violations(value, defs[schema["$ref"].rpartition("/")[2]], where, defs)
        return
    yield from _alternatives(value, schema, where, defs)
    if "type" in schema and not _has_type(value, schema["type"]):
        yield f"{where} must be {_type_text(schema['type'])}, not {_NAMES[type(value)]}"
        return
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        yield f"{where} must be one of {', '.join(_shown(each) for each in schema['enum'])}, not {_shown(value)}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{where} must be {_shown(schema['const'])}, not {_shown(value)}"
    for kind, check in _CHECKS:
        if isinstance(value, kind) and not isinstance(value, bool):
            yield from check(value, schema, where, defs)


def _alternatives(value: Any, schema: Schema, where: str, defs: Mapping[str, Any]) -> Iterator[str]:
    for keyword in ("anyOf", "oneOf"):
        given = schema.get(keyword)
        if given is None:
            continue
        found = [next(_violations(value, each, where, defs), None) for each in given]
        if None not in found:
            problems = "; or ".join(map(str, found))
            yield problems if len(found) == 1 else f"{where} matches none of {len(found)} alternatives: {problems}"
    for each in schema.get("allOf", ()):
        yield from _violations(value, each, where, defs)


def _has_type(value: Any, kind: str | list[str]) -> bool:
    if isinstance(kind, list):
        return any(_has_type(value, each) for each in kind)
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int)  # msgspec doesn't decode 2.0 as an integer
    if kind == "number":
        return isinstance(value, int | float)
    kinds: dict[str, type[Any]] = {"object": dict, "array": list, "string": str, "null": type(None)}
    return kind in kinds and isinstance(value, kinds[kind])


def _type_text(kind: str | list[str]) -> str:
    if isinstance(kind, list):
        return " or ".join(map(_type_text, kind))
    return {"object": "an object", "array": "an array", "integer": "an integer", "boolean": "true or false"}.get(
        kind, kind if kind == "null" else f"a {kind}"
    )


def _object(value: dict[str, Any], schema: Schema, where: str, defs: Mapping[str, Any]) -> Iterator[str]:
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        yield f"{where} is missing {', '.join(map(repr, missing))}"
    properties = schema.get("properties", {})
    for name, item in value.items():
        if name in properties:
            yield from _violations(item, properties[name], f"{where}[{name!r}]", defs)
        else:
            yield from _violations(item, schema.get("additionalProperties", True), f"{where}[{name!r}]", defs)
    yield from _size(len(value), schema, where, "Properties", "entry", "entries")


def _array(value: list[Any], schema: Schema, where: str, defs: Mapping[str, Any]) -> Iterator[str]:
    first = schema.get("prefixItems", [])
    for index, item in enumerate(value):
        each = first[index] if index < len(first) else schema.get("items", True)
        yield from _violations(item, each, f"{where}[{index}]", defs)
    yield from _size(len(value), schema, where, "Items", "item")


def _string(value: str, schema: Schema, where: str, _defs: Mapping[str, Any]) -> Iterator[str]:
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        yield f"{where} doesn't match {schema['pattern']!r}"
    kind = _FORMATS.get(schema.get("format", ""))
    if kind is not None:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            yield f"{where} is not a valid {schema['format']}"
    yield from _size(len(value), schema, where, "Length", "character")


def _number(value: float, schema: Schema, where: str, _defs: Mapping[str, Any]) -> Iterator[str]:
    limits: list[tuple[str, str, Callable[[Any], bool]]] = [
        ("minimum", "at least", lambda limit: value >= limit),
        ("exclusiveMinimum", "more than", lambda limit: value > limit),
        ("maximum", "at most", lambda limit: value <= limit),
        ("exclusiveMaximum", "less than", lambda limit: value < limit),
        ("multipleOf", "a multiple of", lambda limit: value % limit == 0),
    ]
    for keyword, words, fits in limits:
        if keyword in schema and not fits(schema[keyword]):
            yield f"{where} must be {words} {schema[keyword]}, not {value}"


def _size(size: int, schema: Schema, where: str, keyword: str, noun: str, plural: str = "") -> Iterator[str]:
    if size < schema.get(f"min{keyword}", 0):
        yield f"{where} must have at least {counted(schema[f'min{keyword}'], noun, plural)}, not {size}"
    if size > schema.get(f"max{keyword}", size):
        yield f"{where} may have at most {counted(schema[f'max{keyword}'], noun, plural)}, not {size}"


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_CHECKS: tuple[tuple[Any, Callable[[Any, Schema, str, Mapping[str, Any]], Iterator[str]]], ...] = (
    (dict, _object),
    (list, _array),
    (str, _string),
    (int | float, _number),
)
