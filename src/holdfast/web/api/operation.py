"""API operations as data, and the route that serves one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.control import Control
from holdfast.control.audit import acting
from holdfast.model.access import Permission
from holdfast.model.run import RunInfo
from holdfast.telemetry import log
from holdfast.web.auth import Principal, SiteContext, authorize, client_of
from holdfast.web.refusals import record_refusal
from holdfast.web.responses import JSON, RequestError, check_decoded_size, error_response, json_response, read_body

PREFIX = "/api/v1"
LAG_HEADER = "Holdfast-Replica-Lag"

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """An operation without query parameters."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """An authorized request with its decoded parameters."""

    context: SiteContext
    principal: Principal
    path: dict[str, str]
    query: Any
    body: Any
    replica: Control | None = None
    """What an operation that may lag reads from, if not from the primary."""

    @property
    def control(self) -> Control:
        return self.replica or self.context.control

    def run(self) -> RunInfo[Any]:
        """Read the run that the path names, if the principal may see it."""
        return self.principal.run(self.control, self.control.runs.parse_id(self.path["id"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the API.

    Not available to tokens that are limited to a tenant, tasks or queues (`all_tenants`), or to tasks or queues
    (`all_tasks`).

    A GET requires the permission to read, a POST to operate, unless `requires` says otherwise.
    """

    method: Literal["GET", "POST"]
    path: str
    name: str
    summary: str
    do: Callable[[ApiRequest], Any]
    answer: Any
    """The type of the response, or the types of its members by name."""
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None
    follow: Callable[[ApiRequest, Any], Awaitable[Any]] | None = None
    """Continues with the result of `do` without occupying a thread, and returns the response's content."""
    status: int = 200
    status_of: Callable[[Any], int] | None = None
    """Chooses the status of a response by its content: `status` or 202, not finished yet."""
    may_exist: bool = False
    """Whether the response has the status 200 if its member `created` is false."""
    all_tenants: bool = False
    all_tasks: bool = False
    requires: Permission | None = None
    may_lag: bool = False
    """Whether it may read from a replica, which is a little behind: what lists, counts or summarizes."""

    @property
    def permission(self) -> Permission:
        return self.requires or ("read" if self.method == "GET" else "operate")


def route(context: SiteContext, operation: Operation) -> Route:
    async def handle(request: Request) -> Response:
        principal = None
        try:
            principal = await context.threads.run(context.authenticator.authenticate, request)
            authorize(principal, operation.permission, all_tenants=operation.all_tenants, all_tasks=operation.all_tasks)
            query, body = _query(request, operation), None
            if operation.method == "POST":
                if principal.is_ambient:  # the dashboard's own forms post to its pages, not to the API
                    raise RequestError(403, "the API requires a bearer token for changes, not a login", "no_bearer")
                body = await _body(request, operation)
            call = ApiRequest(context, principal, dict(request.path_params), query, body)
            if operation.may_lag:
                return await _read(operation, call)
            with acting(principal.by, "api", client_of(request), principal.tenant):
                result = await context.threads.run(operation.do, call)
            if operation.method == "POST":
                context.reads.changed()
            if operation.follow is not None:
                result = await operation.follow(call, result)
            if operation.method == "POST":
                log.operator_action(f"{operation.name} {request.url.path}", principal.by)
            if operation.status_of is not None:
                return json_response(result, operation.status_of(result))
            existed = operation.may_exist and not result.created
            return json_response(result, 200 if existed else operation.status)
        except Exception as error:
            line = f"{request.method} {request.url.path}"
            await record_refusal(context, principal, "api", line, client_of(request), error)
            return error_response(error, request)

    return Route(PREFIX + operation.path, handle, methods=[operation.method], name=operation.name)


async def _read(operation: Operation, call: ApiRequest) -> Response:
    """Answer with what may be a little behind. A header says how many seconds, if a replica was read."""
    reads = call.context.reads
    read = await call.context.threads.run(reads.run, lambda control: operation.do(replace(call, replica=control)))
    answer = json_response(read.value, operation.status)
    if read.lag_s is not None:
        answer.headers[LAG_HEADER] = f"{read.lag_s:.1f}"
    return answer


def _query(request: Request, operation: Operation) -> Any:
    given: dict[str, Any] = {}
    types = {field.encode_name: field.type for field in msgspec.structs.fields(operation.query)}
    for name, value in request.query_params.multi_items():
        if getattr(types.get(name), "__origin__", None) is list:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise RequestError(422, f"{name} was given more than once", "invalid")
        else:
            given[name] = value
    return msgspec.convert(given, operation.query, strict=False)


async def _body(request: Request, operation: Operation) -> Any:
    if operation.body is None:
        return None
    empty = request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
    if empty and not any(field.required for field in msgspec.structs.fields(operation.body)):
        return operation.body()
    return msgspec.json.decode(check_decoded_size(await read_body(request, JSON)), type=operation.body)
