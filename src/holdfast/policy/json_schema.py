"""Whether a JSON value fits a JSON Schema, as far as msgspec and pydantic write schemas for types.

Keywords that say nothing about what fits (titles, descriptions, defaults) are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

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
    """What is wrong with a value, and where; None when it fits."""
    return next(_faults(value, schema, "the output", {}), None)


def apply_defaults(value: Any, schema: Schema) -> Any:
    """A value that fits, with the defaults of its schema filled in where it says nothing."""
    return _completed(value, schema, {})


def _completed(value: Any, schema: Any, defs: Mapping[str, Any]) -> Any:
    if not isinstance(schema, Mapping):
        return value
    defs = {**defs, **schema["$defs"]} if "$defs" in schema else defs
    if "$ref" in schema:
        return _completed(value, defs[schema["$ref"].rpartition("/")[2]], defs)
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if next(_faults(value, each, "", defs), None) is None:
            return _completed(value, each, defs)
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        kinds = [first[at] if at < len(first) else schema.get("items") for at in range(len(value))]
        return [_completed(item, kind, defs) for item, kind in zip(value, kinds, strict=True)]
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties")
        given = {name: _completed(item, properties.get(name, others), defs) for name, item in value.items()}
        absent = {name: kind["default"] for name, kind in properties.items() if name not in value and "default" in kind}
        return given | absent
    return value


def _faults(value: Any, schema: Any, where: str, defs: Mapping[str, Any]) -> Iterator[str]:
    if schema is True or schema == {}:
        return
    if schema is False:
        yield f"{where} must not be there"
        return
    defs = {**defs, **schema["$defs"]} if "$defs" in schema else defs
    if "$ref" in schema:
        yield from _faults(value, defs[schema["$ref"].rpartition("/")[2]], where, defs)
        return
    yield from _alternatives(value, schema, where, defs)
    if "type" in schema and not _is_of(value, schema["type"]):
        yield f"{where} must be {_named(schema['type'])}, not {_NAMES[type(value)]}"
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
        found = [next(_faults(value, each, where, defs), None) for each in given]
        if None not in found:
            told = "; or ".join(map(str, found))
            yield told if len(found) == 1 else f"{where} fits none of {len(found)} forms: {told}"
    for each in schema.get("allOf", ()):
        yield from _faults(value, each, where, defs)


def _is_of(value: Any, kind: str | list[str]) -> bool:
    if isinstance(kind, list):
        return any(_is_of(value, each) for each in kind)
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int)  # 2.0 can't be read as one
    if kind == "number":
        return isinstance(value, int | float)
    kinds: dict[str, type[Any]] = {"object": dict, "array": list, "string": str, "null": type(None)}
    return kind in kinds and isinstance(value, kinds[kind])


def _named(kind: str | list[str]) -> str:
    if isinstance(kind, list):
        return " or ".join(map(_named, kind))
    return {"object": "an object", "array": "an array", "integer": "an integer", "boolean": "true or false"}.get(
        kind, kind if kind == "null" else f"a {kind}"
    )


def _object(value: dict[str, Any], schema: Schema, where: str, defs: Mapping[str, Any]) -> Iterator[str]:
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        yield f"{where} lacks {', '.join(map(repr, missing))}"
    properties = schema.get("properties", {})
    for name, item in value.items():
        if name in properties:
            yield from _faults(item, properties[name], f"{where}[{name!r}]", defs)
        else:
            yield from _faults(item, schema.get("additionalProperties", True), f"{where}[{name!r}]", defs)
    yield from _size(len(value), schema, where, "Properties", "entries")


def _array(value: list[Any], schema: Schema, where: str, defs: Mapping[str, Any]) -> Iterator[str]:
    first = schema.get("prefixItems", [])
    for place, item in enumerate(value):
        each = first[place] if place < len(first) else schema.get("items", True)
        yield from _faults(item, each, f"{where}[{place}]", defs)
    yield from _size(len(value), schema, where, "Items", "items")


def _string(value: str, schema: Schema, where: str, _defs: Mapping[str, Any]) -> Iterator[str]:
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        yield f"{where} doesn't match {schema['pattern']!r}"
    kind = _FORMATS.get(schema.get("format", ""))
    if kind is not None:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            yield f"{where} is no {schema['format']}"
    yield from _size(len(value), schema, where, "Length", "characters")


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
            yield f"{where} must be {words} {schema[keyword]}, but is {value}"


def _size(size: int, schema: Schema, where: str, keyword: str, what: str) -> Iterator[str]:
    if size < schema.get(f"min{keyword}", 0):
        yield f"{where} must have at least {schema[f'min{keyword}']} {what}"
    if size > schema.get(f"max{keyword}", size):
        yield f"{where} may have {schema[f'max{keyword}']} {what}, but has {size}"


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
