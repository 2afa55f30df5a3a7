"""Answers as bytes: JSON, problems, and what a body must be to be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.model.codec import MAX_PAYLOAD_BYTES
from holdfast.web.problems import Problem, Refusal

LARGEST_BODY = 2 * MAX_PAYLOAD_BYTES
JSON = "application/json"

_encode = msgspec.json.Encoder(enc_hook=str).encode


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(value), status, headers, JSON)


def problem_answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(problem), problem.status, headers, "application/problem+json")


async def body_of(request: Request, kind: str) -> bytes:
    """The body, if it is of that kind and not too large."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != kind:
        raise Refusal(422, f"the body must be {kind}, not {given or 'without a content-type'}", "wrong_content_type")
    body = bytearray()
    async for some in request.stream():
        body += some
        if len(body) > LARGEST_BODY:
            raise Refusal(413, f"the body may have {LARGEST_BODY:,} bytes", "too_large")
    return bytes(body)
