"""Build a form from a JSON Schema, and turn its submitted fields back into a value. Types that a form can't show are
entered as JSON.

The value gets its shape here; the gate validates it against the schema. A field that is required must be filled in: an
empty text doesn't count, unless the type says that it may be empty (`None`, or a minimum length of 0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["boolean", "integer", "number", "string", "long", "choice", "json"]

WHOLE_VALUE = "output"
"""The name of the only field where the value isn't an object."""
_FORMATS = {"date-time": "2026-11-16T08:00:00Z", "date": "2026-11-16", "uuid": "UUID", "duration": "PT5M"}
_BOUNDS = {"minLength": "minlength", "maxLength": "maxlength", "minimum": "min", "maximum": "max"}
"""Keywords of JSON Schema that browsers check too, and their attributes in HTML."""
_TEXTS: tuple[Kind, ...] = ("string", "long")
_LEFT_OUT = object()


@dataclass(frozen=True, slots=True)
class FormField:
    """One input of a form."""

    name: str
    kind: Kind
    label: str
    required: bool
    """Whether the value must contain it."""
    nullable: bool = False
    may_be_empty: bool = False
    """Whether the type says that an empty text is a value."""
    choices: tuple[str, ...] = ()
    """Choices as JSON."""
    default: str = ""
    example: str = ""
    description: str = ""
    bounds: Mapping[str, Any] = field(default_factory=dict)
    """Attributes for the browser's own check."""

    @property
    def must_be_filled(self) -> bool:
        return self.required and not self.nullable and not self.may_be_empty

    def shown(self, text: str) -> str:
        """Show a submitted text to people."""
        if self.kind == "boolean":
            return {"true": "yes", "false": "no"}.get(text, text)
        return text.strip('"') if self.kind == "choice" else text


@dataclass(frozen=True, slots=True)
class Submission:
    """The value of a submitted form, or what is wrong with its fields, by name."""

    value: Any
    problems: dict[str, str]


def form_fields(schema: Mapping[str, Any] | None) -> list[FormField]:
    """Return the fields of a form for a schema; without a schema, one field for any JSON."""
    if not schema:
        return [FormField(WHOLE_VALUE, "json", "Output", required=False, example="JSON; null if empty")]
    plain = _resolve(schema, schema)
    if _is_object(plain):
        required = plain.get("required", ())
        return [_field(name, part, schema, name in required) for name, part in plain["properties"].items()]
    return [_field(WHOLE_VALUE, plain, schema, True)]


def read_form(schema: Mapping[str, Any] | None, form: Mapping[str, str]) -> Submission:
    """Build the value from submitted fields, which are named `field:NAME`."""
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for each in form_fields(schema):
        try:
            value = _value(each, form.get(f"field:{each.name}"))
        except ValueError as error:
            problems[each.name] = str(error)
            continue
        if value is not _LEFT_OUT:
            found[each.name] = value
    is_object = bool(schema) and _is_object(_resolve(schema or {}, schema or {}))
    return Submission(found if is_object else found.get(WHOLE_VALUE), problems)


def _is_object(plain: Mapping[str, Any]) -> bool:
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
    kind, choices = _kind(plain)
    default = "" if plain.get("default") is None else _text(plain["default"])
    if kind in ("choice", "json") and plain.get("default") is not None:
        default = msgspec.json.encode(plain["default"]).decode()
    return FormField(
        name,
        kind,
        label=str(plain.get("title") or name.replace("_", " ").capitalize()),
        required=required,
        nullable=nullable,
        may_be_empty=kind in _TEXTS and plain.get("minLength") == 0,
        choices=choices,
        default=default,
        example=_FORMATS.get(str(plain.get("format", "")), "JSON" if kind == "json" else ""),
        description=str(plain.get("description") or ""),
        bounds={_BOUNDS[each]: plain[each] for each in _BOUNDS if plain.get(each)},
    )


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


def _value(field: FormField, text: str | None) -> Any:
    """Turn the text of a field into a value, or leave it out; ValueError says what is wrong."""
    if text is None or text.strip() == "":
        return _empty_value(field, text)
    if field.kind in _TEXTS:
        return text.replace("\r\n", "\n")
    if field.kind == "boolean" and text not in ("true", "false"):
        raise ValueError(f"{field.label} must be yes or no, not {text[:100]!r}")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        expected = {"integer": "a whole number", "number": "a number"}.get(field.kind, "JSON")
        raise ValueError(f"{field.label} must be {expected}, not {text[:100]!r}") from None


def _empty_value(field: FormField, text: str | None) -> Any:
    if field.must_be_filled or (text is None and field.required):
        raise ValueError(f"{field.label} is required")
    was_cleared = text is not None and field.default != ""
    if not field.required and not was_cleared:
        return _LEFT_OUT
    if field.nullable:
        return None
    return text if field.kind in _TEXTS else _LEFT_OUT
