"""One operation of the API as data, and the way from a request to it and back. The operations stand beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.control import Control
from holdfast.control.tokens import Permission
from holdfast.model.run import RunInfo
from holdfast.store.run_reader import run_id
from holdfast.telemetry import log
from holdfast.web.auth import Principal, SiteContext
from holdfast.web.responses import JSON, RequestError, json_response, problem_from, problem_response, read_body

PREFIX = "/api/v1"

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing may stand behind the question mark."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request that has passed every check: who asks, and for what."""

    context: SiteContext
    principal: Principal
    names: dict[str, str]
    """What stands in the path."""
    query: Any
    body: Any

    @property
    def control(self) -> Control:
        return self.context.control

    @property
    def id(self) -> UUID:
        return run_id(self.names["id"])

    def run(self) -> RunInfo[Any]:
        """The run in the path, if the visitor may see it."""
        return self.principal.run(self.control, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What can be asked. `whole`: it is about more than one tenant's runs, so tokens of one tenant can't."""

    method: Literal["GET", "POST"]
    path: str
    name: str
    summary: str
    do: Callable[[ApiRequest], Any]
    answer: Any
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None
    status: int = 200
    all_tenants: bool = False

    @property
    def may(self) -> Permission:
        return "read" if self.method == "GET" else "operate"


def route(context: SiteContext, operation: Operation) -> Route:
    """The route of an operation."""

    async def handle(request: Request) -> Response:
        try:
            principal = await asyncio.to_thread(context.authenticator.of, request)
            authorize(principal, operation.may, all_tenants=operation.all_tenants)
            call = ApiRequest(context, principal, dict(request.path_params), _query(request, operation), None)
            if operation.method == "POST":
                _refuse_cookie(principal)
                call = ApiRequest(context, principal, call.names, call.query, await _body(request, operation))
            result = await asyncio.to_thread(operation.do, call)
            if operation.method == "POST":
                log.operator_action(f"{operation.name} {request.url.path}", principal.by)
            return result if isinstance(result, Response) else json_response(result, operation.status)
        except Exception as error:
            return error_response(error, request)

    return Route(PREFIX + operation.path, handle, methods=[operation.method], name=operation.name)


def authorize(principal: Principal, may: Permission, *, all_tenants: bool) -> None:
    """Refuse what the visitor's token isn't for."""
    if may == "operate" and not principal.can_operate:
        raise RequestError(403, "this token is for reading only", "read_only")
    if all_tenants and principal.tenant is not None:
        raise RequestError(403, f"this token is for the runs of tenant {principal.tenant} only", "one_tenant")


def error_response(error: Exception, request: Request) -> Response:
    """The answer to a request that failed."""
    problem = problem_from(error, f"{request.method} {request.url.path}")
    return problem_response(problem, error.headers if isinstance(error, RequestError) else None)


def _refuse_cookie(principal: Principal) -> None:
    """The dashboard's own forms go elsewhere: a browser that is logged in has no business here."""
    if principal.came == "cookie":
        raise RequestError(403, "the API takes changes with a bearer token only, not with a login", "no_bearer")


def _query(request: Request, operation: Operation) -> Any:
    given: dict[str, Any] = {}
    kinds = {field.encode_name: field.type for field in msgspec.structs.fields(operation.query)}
    for name, value in request.query_params.multi_items():
        if _takes_many(kinds.get(name)):
            given.setdefault(name, []).append(value)
        elif name in given:
            raise RequestError(422, f"{name} is given twice", "invalid")
        else:
            given[name] = value
    return msgspec.convert(given, operation.query, strict=False)


def _takes_many(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is list


async def _body(request: Request, operation: Operation) -> Any:
    if operation.body is None:
        return None
    empty = request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
    if empty and not any(field.required for field in msgspec.structs.fields(operation.body)):
        return operation.body()
    return msgspec.json.decode(await read_body(request, JSON), type=operation.body)
