"""The OpenAPI document, generated from the table of operations and their types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from holdfast.model.access import PERMISSIONS, ROLES, Permission
from holdfast.web.api.event_streams import StreamOperation
from holdfast.web.api.operation import PREFIX, Operation
from holdfast.web.responses import Problem

_PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_PATH_SCHEMAS = {"id": {"type": "string", "format": "uuid"}}
_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def document(operations: Sequence[Operation], streams: Sequence[StreamOperation], root: str = "") -> dict[str, Any]:
    """Build the document; `root` is where the site is mounted."""
    types = [kind for each in operations for kind in _types(each)]
    types += [kind for each in streams for kind in each.events.values()]
    _, components = msgspec.json.schema_components([*types, Problem], ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for each in operations:
        paths.setdefault(_PATH_PARAMETER.sub(r"{\1}", each.path), {})[each.method.lower()] = _operation(each)
    for stream in streams:
        paths.setdefault(stream.path, {})["get"] = _stream(stream)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version("holdfast"),
            "description": "Inspect and operate Holdfast runs. Times are RFC 3339, durations are seconds.",
        },
        "servers": [{"url": f"{root}{PREFIX}"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Create one with `holdfast token create --role ROLE [--tenant T]`.",
                }
            },
        },
    }


def _operation(each: Operation) -> dict[str, Any]:
    limits = "a tenant, tasks or queues" if each.all_tenants else "tasks or queues" if each.all_tasks else ""
    scope = f" Not available to tokens that are limited to {limits}." if limits else ""
    result: dict[str, Any] = {
        "operationId": each.name,
        "summary": each.summary,
        "description": f"Requires the role {_roles(each.permission)}.{scope}",
        "parameters": [*_path_parameters(each.path), *_query_parameters(each)],
        "responses": {
            str(each.status): {"description": "Success.", "content": _json_content(_answer_schema(each))},
            "default": {"description": "Error.", "content": _PROBLEM},
        },
    }
    if each.status_of is not None:
        result["responses"]["202"] = {"description": "Pending.", "content": _json_content(_answer_schema(each))}
    if each.may_exist:
        result["responses"]["200"] = {"description": "It exists.", "content": _json_content(_answer_schema(each))}
    if each.body is not None:
        required = any(field.required for field in msgspec.structs.fields(each.body))
        result["requestBody"] = {"required": required, "content": _json_content(_schema(each.body))}
    return result


def _stream(each: StreamOperation) -> dict[str, Any]:
    """Describe a stream. OpenAPI 3.1 has no words for its events: `x-events` has the schemas of their data by name."""
    events = {name: _schema(kind) for name, kind in each.events.items()}
    content = {"schema": {"type": "string"}, "x-events": events}
    parameters = [
        {
            "name": name, "in": it.place, "required": False, "description": it.description, "schema": {"type": it.type}
        }
        for name, it in each.parameters.items()
    ]  # fmt: skip
    return {
        "operationId": each.name,
        "summary": each.summary,
        "description": f"Requires the role {_roles('read')}. {each.description}",
        "parameters": [*_path_parameters(each.path), *parameters],
        "responses": {
            "200": {"description": "A stream of events.", "content": dict.fromkeys(each.media_types, content)},
            **{str(status): {"description": what} for status, what in each.more_responses.items()},
            "default": {"description": "Error.", "content": _PROBLEM},
        },
    }


def _roles(permission: Permission) -> str:
    return " or ".join(f"`{role}`" for role in ROLES if permission in PERMISSIONS[role])


def _types(each: Operation) -> Iterator[Any]:
    yield from each.answer.values() if isinstance(each.answer, dict) else (each.answer,)
    if each.body is not None:
        yield each.body


def _answer_schema(each: Operation) -> dict[str, Any]:
    if not isinstance(each.answer, dict):
        return _schema(each.answer)
    properties = {name: _schema(kind) for name, kind in each.answer.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return schema


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS.get(name, {"type": "string"})}
        for name in _PATH_PARAMETER.findall(path)
    ]


def _query_parameters(each: Operation) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([each.query], ref_template="#/components/schemas/{name}")
    properties = components[each.query.__name__].get("properties", {})
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]
