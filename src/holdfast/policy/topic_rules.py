"""Which subscriptions select a message: pure decisions, the same on both databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.model.topics import ANY_SEGMENTS, FieldValue, Topic, canonical_value


def selects(topics: Iterable[Topic], topic: str, payload: Any) -> bool:
    """Return whether one of these topics selects a message. `payload`: as decoded JSON."""
    return any(matches(each.pattern, topic) and has_values(payload, each.where) for each in topics)


def matches(pattern: str, topic: str) -> bool:
    """Return whether a pattern selects a topic: its segments are the same, and `*` stands for one or more."""
    if ANY_SEGMENTS not in pattern:
        return pattern == topic
    segments = topic.split(".")
    reached = {0}
    """How many segments of the topic the pattern has passed so far, in all possible ways."""
    for wanted in pattern.split("."):
        if wanted == ANY_SEGMENTS:
            reached = set(range(min(reached) + 1, len(segments) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(segments) and segments[at] == wanted}
        if not reached:
            return False
    return len(segments) in reached


def has_values(payload: Any, where: Mapping[str, FieldValue]) -> bool:
    """Return whether a payload has all these values, by the dotted paths of its fields."""
    found = field_values(payload, list(where))
    return found is not None and all(map(_is_equal, found, where.values()))


def field_values(payload: Any, fields: Sequence[str]) -> list[Any] | None:
    """Return the values of a payload's fields, given by dotted paths; None if one is missing or not a plain value."""
    found = []
    for field in fields:
        value = payload
        for name in field.split("."):
            if not isinstance(value, dict) or name not in value:
                return None
            value = value[name]
        if isinstance(value, dict | list):
            return None
        found.append(canonical_value(value))
    return found


def _is_equal(value: Any, wanted: FieldValue) -> bool:
    """Compare as JSON does: true isn't 1."""
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)
