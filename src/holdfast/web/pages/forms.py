"""Build a form from a JSON Schema, and turn its submitted fields back into a value. Types that a form can't show are
entered as JSON.

The value gets its shape here; the gate validates it against the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.errors import BadArguments

Kind: TypeAlias = Literal["boolean", "integer", "number", "string", "long", "choice", "json"]

WHOLE_VALUE = "output"
"""The name of the only field where the value isn't an object."""
_FORMATS = {"date-time": "2026-11-16T08:00:00Z", "date": "2026-11-16", "uuid": "UUID", "duration": "PT5M"}


@dataclass(frozen=True, slots=True)
class FormField:
    """One input of a form."""

    name: str
    kind: Kind
    label: str
    required: bool
    nullable: bool = False
    choices: tuple[str, ...] = ()
    """Choices as JSON."""
    default: str = ""
    hint: str = ""


def form_fields(schema: Mapping[str, Any] | None) -> list[FormField]:
    """Return the fields of a form for a schema; without a schema, one field for any JSON."""
    if not schema:
        return [FormField(WHOLE_VALUE, "json", "Output", required=False, hint="JSON; null if empty")]
    plain = _resolve(schema, schema)
    properties = plain.get("properties")
    if plain.get("type") == "object" and properties:
        required = plain.get("required", ())
        return [_field(name, part, schema, name in required) for name, part in properties.items()]
    return [_field(WHOLE_VALUE, plain, schema, True)]


def form_value(schema: Mapping[str, Any] | None, form: Mapping[str, str]) -> Any:
    """Build the value from submitted fields, which are named `field:NAME`."""
    fields = form_fields(schema)
    if len(fields) == 1 and fields[0].name == WHOLE_VALUE and not _is_object(schema):
        return _value(fields[0], form.get(f"field:{WHOLE_VALUE}", ""))
    found: dict[str, Any] = {}
    for each in fields:
        text = form.get(f"field:{each.name}", "")
        if text == "" and not (each.required and each.kind in ("string", "long")):
            if each.nullable and each.required:
                found[each.name] = None
            elif each.kind == "boolean":
                found[each.name] = False
            continue
        found[each.name] = _value(each, text)
    return found


def _is_object(schema: Mapping[str, Any] | None) -> bool:
    plain = _resolve(schema or {}, schema or {})
    return plain.get("type") == "object" and bool(plain.get("properties"))


def _resolve(part: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve the reference of a part of a schema."""
    if not isinstance(part, Mapping):
        return {}
    if "$ref" in part:
        known = schema.get("$defs", {}).get(str(part["$ref"]).rpartition("/")[2], {})
        return {**_resolve(known, schema), **{name: value for name, value in part.items() if name != "$ref"}}
    return part


def _field(name: str, part: Any, schema: Mapping[str, Any], required: bool) -> FormField:
    plain = _resolve(part, schema)
    nullable = False
    options = [_resolve(each, schema) for each in (*plain.get("anyOf", ()), *plain.get("oneOf", ()))]
    if options:
        others = [each for each in options if each.get("type") != "null"]
        nullable = len(others) < len(options)
        plain = {**plain, **others[0]} if len(others) == 1 else {}
    label = str(plain.get("title") or name.replace("_", " ").capitalize())
    default = "" if plain.get("default") is None else _text(plain["default"])
    kind, choices = _kind(plain)
    if kind in ("choice", "json") and plain.get("default") is not None:
        default = msgspec.json.encode(plain["default"]).decode()
    hint = str(plain.get("description") or _FORMATS.get(str(plain.get("format", "")), "JSON" if kind == "json" else ""))
    return FormField(name, kind, label, required, nullable, choices, default, hint)


def _kind(plain: Mapping[str, Any]) -> tuple[Kind, tuple[str, ...]]:
    if "enum" in plain or "const" in plain:
        choices = plain.get("enum", [plain.get("const")])
        return "choice", tuple(msgspec.json.encode(each).decode() for each in choices)
    match plain.get("type"):
        case "boolean":
            return "boolean", ()
        case "integer":
            return "integer", ()
        case "number":
            return "number", ()
        case "string":
            return ("string" if "format" in plain or plain.get("maxLength", 1000) <= 200 else "long"), ()
        case _:
            return "json", ()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _value(field: FormField, text: str) -> Any:
    if field.kind in ("string", "long"):
        return text.replace("\r\n", "\n")
    if field.kind == "boolean":
        return text == "true"
    if text.strip() == "":
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        expected = {"integer": "a whole number", "number": "a number"}.get(field.kind, "JSON")
        raise BadArguments(f"{field.label} must be {expected}, not {text[:100]!r}") from None
