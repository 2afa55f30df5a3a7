"""The MCP server: list and call tools, wait for runs with progress, and read runs as resources."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, TypeAlias
from uuid import UUID

import mcp_types as types
import msgspec
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from holdfast.app import Holdfast
from holdfast.client.handle import Run
from holdfast.control import Control
from holdfast.errors import ResultTimeout, RunCancelled, RunFailed
from holdfast.model.access import AccessScope, Role
from holdfast.model.run import FINAL_STATES, RunInfo
from holdfast.web.api import runs
from holdfast.web.auth import Authenticator, Principal, SiteContext
from holdfast.web.mcp import tools
from holdfast.web.refusals import RefusalRecorder, record_refusal
from holdfast.web.request_threads import RequestThreads
from holdfast.web.responses import RequestError, problem_from

RequestContext: TypeAlias = ServerRequestContext[Any, Any]
PrincipalOf: TypeAlias = Callable[[RequestContext], Principal]

MAX_TEXT_CHARS = 100_000
"""Longer answers are cut: they would fill the memory of an agent."""
POLL_INTERVAL_S = 1.0
"""How often a call that waits for a run reads its progress."""
LISTED_RUNS = 50
INSTRUCTIONS = (
    "Holdfast runs background tasks and durable functions. A run is one call of a task. Tools that begin with task_ "
    "enqueue a run; if it takes longer than _wait seconds, they return its id: continue with wait_for_run. why_run "
    "explains why a run isn't running. Before retry_run, look at preview_retry: it says what would run twice."
)
_RUN_URI = re.compile(r"holdfast://runs/([0-9a-f-]{36})")
_encode = msgspec.json.Encoder(enc_hook=str).encode


def local_context(app: Holdfast, control: Control) -> SiteContext:
    """Return what the tools need, for a server without HTTP."""
    authenticator = Authenticator(control, None, unlocked=False)
    return SiteContext(app, control, authenticator, RequestThreads(), RefusalRecorder(control.audit))


def local_principal(by: str, roles: tuple[Role, ...], scope: AccessScope) -> Principal:
    """Return the client of a server on standard input and output."""
    return Principal(by, roles, scope, "bearer", "", ("", ""))


def mcp_server(context: SiteContext, principal_of: PrincipalOf) -> Server[Any]:
    """Create the server. `principal_of` returns the client of a request."""
    handlers = Handlers(context, principal_of)
    return Server(
        "holdfast",
        version=version("holdfast"),
        title="Holdfast",
        instructions=INSTRUCTIONS,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
    )


class Handlers:
    """Answers the requests of clients. Everything that reads the database runs in threads."""

    def __init__(self, context: SiteContext, principal_of: PrincipalOf) -> None:
        self._context = context
        self._principal_of = principal_of

    # Tools

    async def list_tools(
        self,
        ctx: RequestContext,
        params: types.PaginatedRequestParams | None,  # noqa: ARG002 - all fit on one page
    ) -> types.ListToolsResult:
        principal = self._principal_of(ctx)
        found = [_operation_tool(each) for each in tools.operations_of(principal)]
        found.append(
            types.Tool(
                name=tools.WAIT_FOR_RUN,
                description="Wait until a run ends, with progress notifications, and return its result or error.",
                input_schema=tools.WAIT_SCHEMA,
                annotations=types.ToolAnnotations(read_only_hint=True),
            )
        )
        offered = await self._context.threads.run(tools.tasks_of, self._context.app, principal)
        found += [
            types.Tool(name=each.name, description=each.description, input_schema=each.schema)
            for each in offered.values()
        ]
        return types.ListToolsResult(tools=found)

    async def call_tool(self, ctx: RequestContext, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Call a tool. An error is an answer, from which an agent can learn."""
        try:
            return _answer(await self._call(ctx, params.name, params.arguments or {}))
        except Exception as error:
            await record_refusal(self._context, self._principal_of(ctx), "mcp", params.name, None, error)
            problem = problem_from(error, f"mcp {params.name}")
            text = f"{problem.code}: {problem.detail}"
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)

    async def _call(self, ctx: RequestContext, name: str, given: Mapping[str, Any]) -> Any:
        principal, threads = self._principal_of(ctx), self._context.threads
        if name == tools.WAIT_FOR_RUN:
            id = await threads.run(self._find, principal, str(given.get("id", "")))
            return await self._wait(ctx, principal, id, tools.wait_seconds(given))
        if name in tools.OPERATIONS:
            return await threads.run(tools.perform, self._context, principal, tools.OPERATIONS[name], given)
        offered = await threads.run(tools.tasks_of, self._context.app, principal)
        if name not in offered:
            raise RequestError(404, f"there is no tool {name[:100]!r}, or your role doesn't allow it", "no_tool")
        wait_s = tools.wait_seconds(given)
        id = await threads.run(tools.enqueue, self._context, principal, offered[name], given)
        return await self._wait(ctx, principal, id, wait_s)

    def _find(self, principal: Principal, given: str) -> UUID:
        control = self._context.control
        return principal.run(control, control.runs.parse_id(given)).id

    async def _wait(self, ctx: RequestContext, principal: Principal, id: UUID, wait_s: float) -> Any:
        """Wait for a run, reporting its progress, and show it."""
        run: Run[Any] = await self._context.app.aget_run(id)
        until, last = time.monotonic() + wait_s, -1.0
        while (left := until - time.monotonic()) > 0:
            try:
                await run.aresult(timeout=min(left, POLL_INTERVAL_S))
                break
            except ResultTimeout:
                last = await self._report(ctx, id, wait_s - left, last)
            except (RunFailed, RunCancelled):
                break
        shown = await self._context.threads.run(self._show, principal, id)
        return _outcome(shown.info)

    async def _report(self, ctx: RequestContext, id: UUID, elapsed_s: float, last: float) -> float:
        """Report the progress of a run, or the time that has passed; values must increase. Return the last one."""
        info = await self._context.threads.run(self._context.control.runs.summary, id)
        done, total, note = round(elapsed_s, 1), None, None
        if info.progress is not None:
            done, total, note = info.progress.done, info.progress.total, info.progress.note
        if done <= last:
            return last
        await ctx.session.report_progress(done, total, note or info.state)
        return done

    def _show(self, principal: Principal, id: UUID) -> Any:
        return tools.perform(self._context, principal, tools.OPERATIONS["show_run"], {"id": str(id)})

    # Resources

    async def list_resources(
        self,
        ctx: RequestContext,
        params: types.PaginatedRequestParams | None,  # noqa: ARG002 - only the latest
    ) -> types.ListResourcesResult:
        given = {"limit": LISTED_RUNS}
        page: runs.RunsPage = await self._context.threads.run(
            tools.perform, self._context, self._principal_of(ctx), tools.OPERATIONS["list_runs"], given
        )
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=f"holdfast://runs/{run.id}", name=f"{run.task} {run.id}", mime_type="application/json",
                    description=f"{run.state}, created {run.created_at:%Y-%m-%d %H:%M:%S}",
                )
                for run in page.runs
            ]
        )  # fmt: skip

    async def list_templates(
        self,
        ctx: RequestContext,  # noqa: ARG002 - everybody sees it
        params: types.PaginatedRequestParams | None,  # noqa: ARG002 - there is one
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template="holdfast://runs/{id}", name="run", description="All details of a run.",
            mime_type="application/json",
        )  # fmt: skip
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, ctx: RequestContext, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        found = _RUN_URI.fullmatch(str(params.uri))
        if found is None:
            raise MCPError(types.INVALID_PARAMS, f"{str(params.uri)[:100]!r} isn't holdfast://runs/ID")
        try:
            shown = await self._context.threads.run(self._show, self._principal_of(ctx), UUID(found[1]))
        except Exception as error:
            raise MCPError(types.INVALID_PARAMS, problem_from(error, "mcp resource").detail) from None
        text = _text(_encode(shown))
        contents = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[contents])


def _outcome(run: RunInfo[Any]) -> dict[str, Any]:
    """Return what a caller of a task wants to know: how the run ended, or what to do next."""
    found: dict[str, Any] = {"id": run.id, "task": run.task, "state": run.state}
    if run.state == "done":
        return {**found, "result": run.result}
    if run.error is not None:
        found["error"] = {"code": run.error.code, "type": run.error.type, "message": run.error.message}
    if run.state in FINAL_STATES:
        return {**found, "next": "show_run has the traceback; preview_retry says what retry_run would do"}
    advice = f"the run hasn't ended: call {tools.WAIT_FOR_RUN} with its id, or why_run to see what it waits for"
    return {**found, "progress": run.progress, "next": advice}


def _operation_tool(operation: Any) -> types.Tool:
    is_reading = operation.method == "GET"
    return types.Tool(
        name=operation.name,
        description=operation.summary,
        input_schema=tools.schema_of(operation),
        annotations=types.ToolAnnotations(
            read_only_hint=is_reading,
            destructive_hint=None if is_reading else operation.name in tools.DESTRUCTIVE,
        ),
    )


def _answer(result: Any) -> types.CallToolResult:
    data = _encode(result)
    is_cut = len(data) > MAX_TEXT_CHARS
    content: list[types.ContentBlock] = [types.TextContent(text=_text(data))]
    return types.CallToolResult(content=content, structured_content=None if is_cut else msgspec.json.decode(data))


def _text(data: bytes) -> str:
    if len(data) <= MAX_TEXT_CHARS:
        return data.decode()
    start = data[:MAX_TEXT_CHARS].decode(errors="ignore")
    return f"{start}… cut after {MAX_TEXT_CHARS:,} of {len(data):,} bytes"
