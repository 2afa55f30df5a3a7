"""JSON responses and errors as problem+json (RFC 9457). A traceback never leaves the process."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast import errors
from holdfast.control import DataFault
from holdfast.model.codec import MAX_PAYLOAD_BYTES
from holdfast.telemetry import log

MAX_BODY_BYTES = 2 * MAX_PAYLOAD_BYTES
MAX_ANONYMOUS_BODY_BYTES = 16 * 1024
"""For clients that haven't authenticated: a login form."""
BODY_TIMEOUT_S = 30.0
"""How long a client may take to send a body."""
MAX_DECODED_BYTES = 32 * 1024 * 1024
"""How much memory the objects in a JSON body may take."""
JSON = "application/json"
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
TITLES = {
    400: "Bad request",
    401: "Authentication required",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Request timeout",
    409: "Conflict",
    413: "Content too large",
    421: "Misdirected request",
    422: "Unprocessable request",
    429: "Too many requests",
    500: "Internal server error",
    503: "Service unavailable",
}

_STATUS: tuple[tuple[type[errors.HoldfastError], int], ...] = (
    (errors.RunNotFound, 404),
    (errors.MessageNotFound, 404),
    (errors.UnknownTask, 422),
    (errors.RunFinished, 409),
    (errors.RunStarted, 409),
    (errors.KeyConflict, 409),
    (errors.GraphError, 409),
    (errors.TooLarge, 413),
)
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_encode = msgspec.json.Encoder(enc_hook=str).encode


@dataclass
class RequestError(Exception):
    """A request that is answered with this status and detail."""

    status: int
    detail: str
    code: str = "refused"
    headers: Mapping[str, str] = field(default_factory=dict)


class Problem(msgspec.Struct, kw_only=True):
    """An error response, for programs and people."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    """A stable identifier of the error, such as `run_not_found`."""


def json_response(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type=JSON)


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(problem), problem.status, headers, "application/problem+json")


def error_response(error: Exception, request: Request) -> Response:
    problem = problem_from(error, f"{request.method} {request.url.path}")
    return problem_response(problem, error.headers if isinstance(error, RequestError) else None)


def new_problem(status: int, detail: str, code: str) -> Problem:
    return Problem(title=TITLES.get(status, "Request failed"), status=status, detail=detail, code=code)


def problem_from(error: Exception, where: str) -> Problem:
    """Describe an error to the client. Unexpected errors are logged and described without their message."""
    if isinstance(error, RequestError):
        return new_problem(error.status, error.detail, error.code)
    if isinstance(error, DataFault):
        return new_problem(422, "the database rejected the type or size of a value", "data_fault")
    if isinstance(error, errors.TenantMoved):
        return new_problem(409, "the data of this tenant was moved to another database", _code(error))
    if isinstance(error, errors.StoreError):
        if isinstance(error, errors.StoreUnavailable):
            log.request_unavailable(where, str(error))
        else:
            log.request_failed(where, error)
        return new_problem(503, _store_detail(error), _code(error))
    if isinstance(error, errors.HoldfastError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 422)
        return new_problem(status, str(error), _code(error))
    if isinstance(error, msgspec.ValidationError):
        return new_problem(422, str(error), "invalid")
    if isinstance(error, msgspec.DecodeError):
        return new_problem(400, f"the body is not valid JSON: {error}", "no_json")
    log.request_failed(where, error)
    return new_problem(500, "unexpected error; see the server log", "unexpected")


def _store_detail(error: errors.StoreError) -> str:
    """Leave out the database's own message: it may contain connection details."""
    if isinstance(error, errors.SchemaBehind | errors.SchemaAhead):
        return "the schema version does not match this release: run `holdfast migrate`, or upgrade holdfast here"
    return "the database is unavailable or too slow; see the server log"


def _code(error: Exception) -> str:
    return _CAPITAL.sub("_", type(error).__name__).lower()


def check_decoded_size(data: bytes) -> bytes:
    """Return a JSON body, unless its objects would take too much memory: nested ones take forty times their text."""
    size = _decoded_size(data)
    if size > MAX_DECODED_BYTES:
        for string in _STRING.finditer(data):  # Brackets and commas in strings don't count.
            size -= _decoded_size(string[0][1:-1])
            if size <= MAX_DECODED_BYTES:
                return data
        detail = f"the JSON has so many objects that it needs more than {MAX_DECODED_BYTES:,} bytes of memory"
        raise RequestError(413, detail, "too_large")
    return data


def _decoded_size(data: bytes) -> int:
    """Return how much memory the objects, arrays, strings and numbers of a JSON text take at most, beside its own."""
    return 190 * data.count(b"{") + 80 * data.count(b"[") + 25 * data.count(b'"') + 40 * data.count(b",")


async def read_body(request: Request, media_type: str, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Read the body, if it has the expected media type, isn't too large and arrives in time."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media_type:
        detail = f"the content type must be {media_type}, not {given or 'missing'}"
        raise RequestError(422, detail, "wrong_content_type")
    too_large = RequestError(413, f"the body exceeds {max_bytes:,} bytes", "too_large", {"connection": "close"})
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and (len(announced) > 15 or int(announced) > max_bytes):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        detail = f"the body didn't arrive within {BODY_TIMEOUT_S:g} s"
        raise RequestError(408, detail, "too_slow", {"connection": "close"}) from None
    return bytes(body)
