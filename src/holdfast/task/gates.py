"""The type of a gate's output, as JSON Schema: what completes a gate may not have the code that made it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import GraphError, TaskError
from holdfast.model.codec import is_pydantic_model
from holdfast.policy.json_schema import find_mismatch
from holdfast.task.annotations import Unresolved, check


def schema_of(kind: Any, where: str, *, nullable: bool) -> dict[str, Any] | None:
    """The JSON Schema of a type; None for anything. `nullable`: None must fit it too."""
    if kind is None or kind is Any:
        return None
    if isinstance(kind, str):
        raise GraphError(f"{where}: type must be a type, not a str: leave out the quotes")
    try:
        check(f"{where}: type= is", kind, kind)
        schema = msgspec.json.schema(kind, schema_hook=_schema_of_model)
    except (TaskError, Unresolved, TypeError, NotImplementedError) as error:
        raise GraphError(f"{where}: outputs of type {kind!r} can't be checked: {error}") from error
    if nullable and find_mismatch(None, schema) is not None:
        raise GraphError(
            f"{where}: at its timeout it is to be complete with None, which is no {kind!r}: let the type have None"
        )
    return schema


def _schema_of_model(kind: type[Any]) -> dict[str, Any]:
    if not is_pydantic_model(kind):
        raise NotImplementedError(f"{kind!r} has no schema")
    schema: dict[str, Any] = kind.model_json_schema()
    return schema
