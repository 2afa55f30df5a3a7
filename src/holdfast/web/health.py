"""The probes of the dashboard's process, without authentication: they say which check failed, but not why."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from holdfast.control.maintenance import SchemaStatus
from holdfast.errors import HoldfastError
from holdfast.telemetry.probe_server import probe_answer
from holdfast.web.auth import SiteContext

DATABASE_TIMEOUT_S = 2.0
"""A database that takes longer to answer fails the probe."""


class HealthEndpoints:
    """`/livez` answers while the event loop turns, `/readyz` asks the database, with one question at a time."""

    def __init__(self, context: SiteContext) -> None:
        self._context = context
        self._asking: asyncio.Task[SchemaStatus] | None = None

    def routes(self) -> list[Route]:
        return [Route("/livez", self._live, name="livez"), Route("/readyz", self._ready, name="readyz")]

    async def _live(self, _request: Request) -> Response:
        return _response({"event_loop": None})

    async def _ready(self, _request: Request) -> Response:
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._context.threads.run(self._context.control.upkeep.tables))
        asking = self._asking
        try:
            status = await asyncio.wait_for(asyncio.shield(asking), DATABASE_TIMEOUT_S)
        except (HoldfastError, TimeoutError):
            return _response({"database": "not available"})
        finally:
            if asking.done() and self._asking is asking:
                self._asking = None
        migrated = status.version >= status.newest
        return _response({"database": None, "schema": None if migrated else "older than the code"})


def _response(checks: dict[str, str | None]) -> Response:
    answer = probe_answer(checks)
    return PlainTextResponse(answer.body, answer.status)
