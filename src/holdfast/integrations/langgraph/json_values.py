"""JSON of LangGraph's values: exact for outputs, readable for gates and streams."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol

MAX_DEPTH = 100


def pack_output(value: Any, serde: SerializerProtocol) -> dict[str, Any]:
    """Return JSON from which `load_output` restores the value: itself if it is JSON, else the serializer's bytes."""
    if _is_json(value, MAX_DEPTH):
        return {"json": value}
    type, data = serde.dumps_typed(value)
    return {"type": type, "data": base64.b64encode(data).decode()}


def load_output(packed: Any, serde: SerializerProtocol) -> Any:
    """Return the value that `pack_output` has packed."""
    if "json" in packed:
        return packed["json"]
    return serde.loads_typed((packed["type"], base64.b64decode(packed["data"])))


def _is_json(value: Any, depth: int) -> bool:
    if value is None or type(value) in (str, bool, int):
        return True
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return depth > 0 and all(_is_json(each, depth - 1) for each in value)
    if type(value) is dict:
        return depth > 0 and all(type(key) is str and _is_json(each, depth - 1) for key, each in value.items())
    return False


def to_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a value as readable JSON, for people and programs that don't have its class."""
    if value is None or isinstance(value, str | bool | int):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if depth <= 0:
        return repr(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(each, depth - 1) for each in value]
    if isinstance(value, Enum):
        return to_json(value.value, depth - 1)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return to_json(dump(mode="json"), depth - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name), depth - 1) for field in dataclasses.fields(value)}
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError):
        return repr(value)
