"""Errors as answers: status, title and detail, as problem+json (RFC 9457). No traceback ever leaves the process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast import errors
from holdfast.database.faults import DataFault
from holdfast.model.codec import MAX_PAYLOAD_BYTES
from holdfast.telemetry import log

TITLES = {
    400: "Bad request",
    401: "Who are you?",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    421: "Misdirected request",
    422: "Can't be done like this",
    429: "Too many",
    500: "Something went wrong here",
    503: "Not available just now",
}

_STATUS: tuple[tuple[type[errors.HoldfastError], int], ...] = (
    (errors.RunNotFound, 404),
    (errors.UnknownTask, 422),
    (errors.RunFinished, 409),
    (errors.KeyConflict, 409),
    (errors.GraphError, 409),
    (errors.TooLarge, 413),
)
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass
class RequestError(Exception):
    """A request that is answered with no more than this."""

    status: int
    detail: str
    code: str = "refused"
    headers: Mapping[str, str] = field(default_factory=dict)


class Problem(msgspec.Struct, kw_only=True):
    """What went wrong, for programs and people."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    """The error's kind, like `run_not_found`."""


def problem_from(error: Exception, where: str) -> Problem:
    """What may be told of an error. Those that nobody foresaw are logged, and told without their words."""
    if isinstance(error, RequestError):
        return _problem(error.status, error.detail, error.code)
    if isinstance(error, DataFault):
        return _problem(422, "a value is of a kind or a size that can't be kept", "data_fault")
    if isinstance(error, errors.StoreError):
        if isinstance(error, errors.StoreUnavailable):
            log.request_unavailable(where, str(error))
        else:
            log.request_failed(where, error)
        return _problem(503, _of_store(error), _code(error))
    if isinstance(error, errors.HoldfastError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 422)
        return _problem(status, str(error), _code(error))
    if isinstance(error, msgspec.ValidationError):
        return _problem(422, str(error), "invalid")
    if isinstance(error, msgspec.DecodeError):
        return _problem(400, f"the body is no JSON: {error}", "no_json")
    log.request_failed(where, error)
    return _problem(500, "the log of the server says more", "unexpected")


def _problem(status: int, detail: str, code: str) -> Problem:
    return Problem(title=TITLES.get(status, "Refused"), status=status, detail=detail, code=code)


def _of_store(error: errors.StoreError) -> str:
    """Without the words of the database, which may say how it is reached."""
    if isinstance(error, errors.SchemaBehind | errors.SchemaAhead):
        return "the tables don't fit this code: `holdfast migrate`, or upgrade holdfast here"
    return "the database can't answer this just now, or not quickly enough; the log of the server says more"


def _code(error: Exception) -> str:
    return _CAPITAL.sub("_", type(error).__name__).lower()


LARGEST_BODY = 2 * MAX_PAYLOAD_BYTES
JSON = "application/json"

_encode = msgspec.json.Encoder(enc_hook=str).encode


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(value), status, headers, JSON)


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(problem), problem.status, headers, "application/problem+json")


async def read_body(request: Request, kind: str) -> bytes:
    """The body, if it is of that kind and not too large."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != kind:
        raise RequestError(
            422, f"the body must be {kind}, not {given or 'without a content-type'}", "wrong_content_type"
        )
    body = bytearray()
    async for some in request.stream():
        body += some
        if len(body) > LARGEST_BODY:
            raise RequestError(413, f"the body may have {LARGEST_BODY:,} bytes", "too_large")
    return bytes(body)
