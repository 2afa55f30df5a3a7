"""JSON Schema validation agrees with decoding as the type that the schema was generated from."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Required, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta
from pydantic import BaseModel, Field, ValidationError

from holdfast.policy.json_schema import find_mismatch
from holdfast.task.graph import schema_of


@dataclass
class Leaf:
    name: str
    size: int = 0


@dataclass
class Tree:
    leaf: Leaf | None
    below: list[Tree]


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Dict(TypedDict, total=False):
    a: Required[int]
    b: str


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    name: str


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


TYPES: list[Any] = [
    int, float, str, bool, None.__class__, list[int], dict[str, int], tuple[int, str], tuple[int, ...], set[str],
    int | None, int | str | list[bool], Literal["a", 1, None], Colour, Level, Leaf, Tree, Point, Dict, Cat | Dog,
    dict[str, list[Leaf]], date, UUID, Annotated[int, Meta(ge=0, lt=5)], Annotated[str, Meta(pattern="^a+$")],
    Annotated[str, Meta(min_length=1, max_length=2)], Annotated[list[int], Meta(max_length=1)],
    Annotated[float, Meta(multiple_of=2)], Annotated[datetime, Meta(tz=True)], list[Any],
]  # fmt: skip

NAMES = st.sampled_from(["name", "size", "leaf", "below", "a", "b", "type", "lives", "x"])
TEXTS = st.sampled_from(
    ["", "a", "aa", "b", "red", "Cat", "Dog", "2026-11-16", "2026-11-16T12:00:00Z", "12:00:00", "P1D", "1.5",
     "00000000-0000-0000-0000-000000000001", "nonsense"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from([0.5, 2.0, -1.0]) | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(NAMES, values, max_size=4),
    max_leaves=6,
)
SEEDS: list[Any] = [
    {"name": "a"}, {"name": "a", "size": 2}, {"leaf": None, "below": [{"leaf": {"name": "a"}, "below": []}]},
    {"a": 1}, {"a": 1, "b": "x"}, {"type": "Cat", "lives": 9}, {"type": "Dog", "name": "Rex"}, [1, "a"], [1, 2.5], [1],
    {"leaf": {"name": 1}, "below": []}, {"type": "Dog", "name": "Rex", "x": 1}, {"x": [{"name": "a"}]},
]  # fmt: skip


def readable(value: Any, kind: Any) -> bool:
    try:
        msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize("kind", TYPES, ids=str)
@settings(deadline=None, max_examples=60)
@given(value=VALUES | st.sampled_from(SEEDS))
def test_a_value_is_valid_exactly_if_it_decodes_as_the_type(kind, value):
    schema = schema_of(kind, "gate", nullable=False)
    assert (find_mismatch(value, schema) is None) == readable(value, kind)


@pytest.mark.parametrize("kind", [datetime, time, timedelta, Decimal, bytes])
def test_string_formats_accept_every_decodable_value(kind):
    """msgspec writes no format for naive times, so a valid value may still fail to decode."""
    schema = schema_of(kind, "gate", nullable=False)
    for text in ("2026-11-16T12:00:00", "2026-11-16T12:00:00Z", "12:00:00", "P1D", "1.5", "YQ==", "nonsense"):
        assert find_mismatch(text, schema) is None or not readable(text, kind)
    assert find_mismatch([], schema) is not None


class Line(BaseModel):
    item: str
    count: int = Field(gt=0)


class Order(BaseModel):
    lines: list[Line]
    note: str | None = None
    by: dict[str, Line] = {}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"lines": [{"item": "rope", "count": 1}]}, None),
        ({"lines": [], "note": None, "by": {"x": {"item": "a", "count": 2}}}, None),
        ({}, "the output is missing 'lines'"),
        ({"lines": [{"item": "rope", "count": 0}]}, "the output['lines'][0]['count'] must be more than 0, not 0"),
        ({"lines": [{"item": 1, "count": 1}]}, "the output['lines'][0]['item'] must be a string, not an integer"),
        ({"lines": [], "by": {"x": {}}}, "the output['by']['x'] is missing 'item', 'count'"),
        ({"lines": [], "note": 5}, "the output['note'] matches none of 2 alternatives"),
    ],
)
def test_pydantic_models_are_validated_also_when_nested(value, message):
    for kind, given_value, where in ((Order, value, ""), (list[Order], [value], "[0]")):
        found = find_mismatch(given_value, schema_of(kind, "gate", nullable=False))
        if message is None:
            assert found is None
            Order.model_validate(value)
        else:
            assert found.startswith(message.replace("the output", f"the output{where}", 1))
            with pytest.raises(ValidationError):
                Order.model_validate(value, strict=True)


def test_boolean_schemas_all_of_and_sizes():
    assert find_mismatch(1, True) is None
    assert find_mismatch(1, {}) is None
    assert (
        find_mismatch({"a": 1}, {"type": "object", "additionalProperties": False}) == "the output['a'] is not allowed"
    )
    both = {"allOf": [{"type": "integer"}, {"minimum": 3}]}
    assert (find_mismatch(3, both), find_mismatch(2, both)) == (None, "the output must be at least 3, not 2")
    assert find_mismatch({}, {"minProperties": 1}) == "the output must have at least 1 entry, not 0"
    assert find_mismatch(2, {"const": 1}) == "the output must be 1, not 2"
    assert find_mismatch(None, {"type": ["string", "null"]}) is None
    assert find_mismatch(1, {"type": ["string", "null"]}) == "the output must be a string or null, not an integer"
