"""`holdfast mcp`: the tools of agents, and what roles and tokens allow, over standard input and output and HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError

from holdfast import Context, Holdfast, Retry, Secret
from holdfast.control import Control
from holdfast.model.access import AccessScope, Role, check_roles
from holdfast.web.clients import ClientAddresses
from holdfast.web.mcp.http import PATH, mcp_site
from holdfast.web.mcp.server import local_context, local_principal, mcp_server
from holdfast.web.server import server
from tests.support.web import Visitor

READING = {
    "list_runs", "search", "show_run", "why_run", "run_history", "run_steps", "run_logs", "preview_retry", "list_gates",
    "show_gate", "list_tasks", "count_runs", "wait_for_run",
}  # fmt: skip
MAX_CALLS = 30
"""How often a test waits for a run that a busy machine starts late."""


@dataclass
class Parcel:
    item: str
    count: int = 1


@pytest.fixture
def app(database_url: str) -> Iterator[Holdfast]:
    app = Holdfast(database_url)

    @app.task(name="shop.pack")
    def pack(parcel: Parcel, note: str = "", *, urgent: bool = False) -> str:
        """Pack a parcel."""
        return f"{parcel.count} {parcel.item} {note} {urgent}"

    @app.task(name="shop.refund")
    async def refund(ctx: Context, amount: int) -> bool:
        await ctx.progress(1, 2, note="asking")
        return await ctx.gate("approve", type=bool, payload=amount)

    @app.task(name="shop.fail", retry=Retry(max_attempts=1))
    def fail(key: Secret[str]) -> None:
        raise ValueError("no luck")

    yield app
    app.close()


def agent(app: Holdfast, *roles: Role, **scope: Any) -> Client:
    """Return a client with roles and a scope, connected in this process."""
    context = local_context(app, Control(app.store, app.registry))
    principal = local_principal("agent", check_roles(roles or ("viewer",)), AccessScope(**scope))
    return Client(mcp_server(context, lambda _ctx: principal))


def talk(client: Client, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with client:
            return await work(client)

    return asyncio.run(run())


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def call(client: Client, name: str, **given: Any) -> Any:
    """Call a tool and return its answer, or its error as text."""
    answer = await client.call_tool(name, given)
    return answer.content[0].text if answer.is_error else answer.structured_content  # type: ignore[union-attr]


def test_a_viewer_reads_and_changes_nothing(app):
    run = app.registry.get("shop.pack").enqueue(Parcel("rope"))

    async def work(client: Client) -> None:
        assert await names(client) == READING
        assert (await call(client, "list_runs"))["runs"][0]["id"] == str(run.id)
        assert (await call(client, "why_run", id=str(run.id)))["reasons"]
        for name in ("cancel_run", "complete_gate"):
            assert "role" in await call(client, name, id=str(run.id), gate="g")
        assert "no_tool" in await call(client, "task_shop_pack", parcel={"item": "rope"})
        assert "run_not_found" in await call(client, "show_run", id=str(uuid4()))
        assert "invalid" in await call(client, "list_runs", limit=10_000)
        assert "invalid" in await call(client, "list_runs", unknown=1)

    talk(agent(app), work)
    assert run.info().state == "ready"


def test_tasks_are_tools_with_the_schema_of_their_parameters(app):
    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {name for name in tools if name.startswith("task_")} == {
            "task_shop_pack", "task_shop_refund", "task_shop_fail"
        }  # fmt: skip
        schema = tools["task_shop_pack"].input_schema
        assert schema["required"] == ["parcel"]
        assert schema["properties"]["note"] == {"type": "string", "default": ""}
        assert schema["$defs"]["Parcel"]["properties"]["count"] == {"type": "integer", "default": 1}
        assert tools["task_shop_pack"].description.startswith("Pack a parcel.")
        ended = await call(client, "task_shop_pack", parcel={"item": "rope"}, urgent=True, _key="k", _wait=30)
        assert (ended["state"], ended["result"]) == ("done", "1 rope  True")
        again = await call(client, "task_shop_pack", parcel={"item": "rope"}, urgent=True, _key="k")
        assert again["id"] == ended["id"]
        assert "bad_arguments" in await call(client, "task_shop_pack", parcel={"item": 1})
        assert "invalid" in await call(client, "task_shop_pack", parcel={"item": "rope"}, _wait=-1)

    with app.worker():
        talk(agent(app, "operator"), work)


def test_a_long_run_is_followed_with_progress_and_decided_by_an_approver(app):
    reported: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, total, message))

    async def work(client: Client) -> None:
        answer = await client.call_tool("task_shop_refund", {"amount": 50, "_wait": 0})
        started: Any = answer.structured_content
        assert "wait_for_run" in started["next"]
        for _ in range(MAX_CALLS):
            await client.call_tool("wait_for_run", {"id": started["id"], "_wait": 1.2}, progress_callback=note)
            if (1.0, 2.0, "asking") in reported and (await call(client, "list_gates"))["gates"]:
                break
        assert (1.0, 2.0, "asking") in reported
        [gate] = (await call(client, "list_gates"))["gates"]
        assert (await call(client, "show_gate", id=started["id"], gate="approve"))["payload"] == 50
        assert gate["name"] == "approve"
        assert await call(client, "complete_gate", id=started["id"], gate="approve", output=True) == {"changed": True}
        ended = await call(client, "wait_for_run", id=started["id"], _wait=30)
        assert (ended["state"], ended["result"]) == ("done", True)

    with app.worker():
        talk(agent(app, "operator", "approver"), work)


def test_a_failure_is_an_answer_and_secrets_are_masked(app):
    async def work(client: Client) -> None:
        failed = await call(client, "task_shop_fail", key="open sesame", _wait=30)
        assert (failed["state"], failed["error"]["message"]) == ("failed", "no luck")
        shown = await client.call_tool("show_run", {"id": failed["id"]})
        read = await client.read_resource(f"holdfast://runs/{failed['id']}")
        for text in (shown.content[0].text, read.contents[0].text):  # type: ignore[union-attr]
            assert "ValueError" in text
            assert "sesame" not in text
        assert (await call(client, "preview_retry", id=failed["id"]))["again"] is not None
        assert await call(client, "retry_run", id=failed["id"]) == {"changed": True}
        listed = await client.list_resources()
        assert listed.resources[0].uri == f"holdfast://runs/{failed['id']}"
        with pytest.raises(MCPError):
            await client.read_resource("holdfast://runs/1")

    with app.worker():
        talk(agent(app, "operator"), work)


def test_a_tenant_sees_only_its_runs(app):
    pack = app.registry.get("shop.pack")
    runs = {tenant: pack.options(tenant=tenant).enqueue(Parcel("rope")) for tenant in ("acme", "other")}

    async def work(client: Client) -> None:
        assert [run["tenant"] for run in (await call(client, "list_runs"))["runs"]] == ["acme"]
        assert "run_not_found" in await call(client, "wait_for_run", id=str(runs["other"].id))
        assert "run_not_found" in await call(client, "cancel_run", id=str(runs["other"].id))
        with pytest.raises(MCPError):
            await client.read_resource(f"holdfast://runs/{runs['other'].id}")
        started = await call(client, "task_shop_pack", parcel={"item": "anchor"}, _wait=0)
        assert Control(app.store).runs.info(started["id"]).tenant == "acme"
        assert "count_runs" not in await names(client), "it is about all tenants"

    talk(agent(app, "operator", tenant="acme"), work)


@asynccontextmanager
async def over_http(app: Holdfast, token: str | None, **settings: Any) -> AsyncIterator[Client]:
    """Serve the app over HTTP in a thread, and connect a client with a token."""
    site = mcp_site(app, Control(app.store, app.registry), **settings)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        web = server(site, ClientAddresses([]))
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not web.started:
                await asyncio.sleep(0.01)
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            url = f"http://127.0.0.1:{listening.getsockname()[1]}{PATH}"
            async with create_mcp_http_client(headers=headers) as http:
                async with Client(streamable_http_client(url, http_client=http)) as client:
                    yield client
        finally:
            web.should_exit = True
            await asyncio.to_thread(thread.join)


def test_over_http_a_token_has_its_roles_and_its_tenant(app):
    token = Control(app.store).tokens.create(["operator"], tenant="acme").token
    app.registry.get("shop.pack").options(tenant="other").enqueue(Parcel("rope"))
    reported: list[float] = []

    async def note(progress: float, _total: float | None, _message: str | None) -> None:
        reported.append(progress)

    async def work() -> None:
        async with over_http(app, token) as client:
            assert (await call(client, "list_runs"))["runs"] == []
            done = await call(client, "task_shop_pack", parcel={"item": "rope"}, _wait=30)
            assert done["result"] == "1 rope  False"
            started: Any = (await client.call_tool("task_shop_refund", {"amount": 1, "_wait": 0})).structured_content
            for _ in range(MAX_CALLS):
                await client.call_tool("wait_for_run", {"id": started["id"], "_wait": 1.2}, progress_callback=note)
                if reported:
                    break
            assert reported
            assert "complete_gate" not in await names(client)

    with app.worker():
        asyncio.run(work())


@pytest.mark.parametrize("token", [None, "hf_000000000000_" + "x" * 43])
def test_over_http_nobody_gets_in_without_a_valid_token(app, token):
    Control(app.store).tokens.create(["viewer"])
    site = mcp_site(app, Control(app.store, app.registry), unlocked=True)
    for client in (Visitor(site, token), Visitor(site, token, headers={"host": "evil.example"})):
        answer = client.post(PATH, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert answer.status == (421 if client.headers else 401)
        assert "token" in answer.text or "evil" in answer.text


def test_over_http_local_users_only_read_by_default(app):
    async def work() -> None:
        async with over_http(app, None, unlocked=True) as client:
            assert await names(client) == READING

    asyncio.run(work())


SHOP = """
from holdfast import Holdfast

app = Holdfast("sqlite:///shop.db")
print("this must not reach the protocol")


@app.task
def pack(item: str) -> str:
    print("nor this")
    return item.upper()
"""


def test_over_standard_input_and_output(tmp_path: Path):
    (tmp_path / "shop.py").write_text(SHOP)
    arguments = ["-m", "holdfast.cli", "mcp", "--app", "shop:app", "--role", "operator"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    async def work(client: Client) -> None:
        started = await call(client, "task_shop_pack", item="rope", _wait=0)
        assert (started["task"], started["state"]) == ("shop.pack", "ready")
        assert (await call(client, "count_runs"))["states"]["ready"]["value"] == 1

    talk(Client(StdioServerParameters(command=sys.executable, args=arguments, env=environment, cwd=tmp_path)), work)
