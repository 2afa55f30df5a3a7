"""The OpenAPI document, made from the table of operations and the types that they name: it can't tell otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from holdfast.web.api.operation import PREFIX, Operation
from holdfast.web.responses import Problem

_NAMED = re.compile(r"\{(\w+)(?::\w+)?\}")
_IN_PATH = {"id": {"type": "string", "format": "uuid"}}
_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def document(operations: Sequence[Operation], root: str = "") -> dict[str, Any]:
    """The whole document; `root` is where the site is mounted."""
    kinds = [each.answer for each in operations] + [each.body for each in operations if each.body is not None]
    _, components = msgspec.json.schema_components([*kinds, Problem], ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for each in operations:
        paths.setdefault(_NAMED.sub(r"{\1}", each.path), {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version("holdfast"),
            "description": "Runs, and all that makes, holds and ends them. Times are RFC 3339, durations are seconds.",
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
                    "description": "`holdfast token create --read|--operate [--tenant T]` makes one.",
                }
            },
        },
    }


def _operation(each: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": each.name,
        "summary": each.summary,
        "description": _who_may(each),
        "parameters": [*_path_parameters(each), *_query_parameters(each)],
        "responses": {
            str(each.status): {"description": "So it is.", "content": _content(each)},
            "default": {"description": "It was refused, or failed.", "content": _PROBLEM},
        },
    }
    if each.body is not None:
        needed = any(field.required for field in msgspec.structs.fields(each.body))
        told["requestBody"] = {"required": needed, "content": {"application/json": {"schema": _schema(each.body)}}}
    return told


def _content(each: Operation) -> dict[str, Any]:
    return {"application/json": {"schema": _schema(each.answer)}}


def _who_may(each: Operation) -> str:
    scope = "; it must not be for one tenant only" if each.all_tenants else ""
    return f"Needs a token for {each.may}{scope}."


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return schema


def _path_parameters(each: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _IN_PATH.get(name, {"type": "string"})}
        for name in _NAMED.findall(each.path)
    ]


def _query_parameters(each: Operation) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([each.query], ref_template="#/components/schemas/{name}")
    properties = components[each.query.__name__].get("properties", {})
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]
