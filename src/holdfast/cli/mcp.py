"""Serve the Model Context Protocol to AI agents: `mcp`."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from holdfast.cli.dashboard import app_to_serve, check_locked, in_address, listen
from holdfast.cli.output import note
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.errors import ConfigError
from holdfast.model.access import ROLES, AccessScope, Role, check_roles
from holdfast.model.names import actor_or_user

if TYPE_CHECKING:
    from holdfast.app import Holdfast


@holdfast.command("mcp")
@click.option("--http", is_flag=True, help="Serve HTTP at /mcp instead of standard input and output.")
@click.option(
    "--role", "roles", multiple=True, default=("viewer",), show_default=True, type=click.Choice(ROLES),
    help="What the client may do; repeatable. Over HTTP, tokens have roles of their own.",
)  # fmt: skip
@click.option("--tenant", metavar="NAME", help="Limit the client to the runs of a tenant. Over HTTP, tokens do that.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", default=8788, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME",
    help="Allowed host name besides localhost and IP addresses; repeatable.",
)  # fmt: skip
@click.option(
    "--proxy", "proxies", multiple=True, metavar="ADDRESS",
    help="Address or network of a reverse proxy whose X-Forwarded-For names the client; repeatable.",
)  # fmt: skip
@pass_shared
def mcp(
    shared: SharedOptions,
    http: bool,
    roles: tuple[str, ...],
    tenant: str | None,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    proxies: tuple[str, ...],
) -> None:
    """Serve an MCP server: tasks, runs and gates as tools for AI agents.

    Without --http, it serves the program that starts it over standard input and output. The client may only read,
    unless it gets another --role: an operator enqueues, retries and cancels, an approver decides gates.

    \b
    Examples:
      holdfast mcp --app shop.tasks:app
      holdfast mcp --app shop.tasks:app --role operator --role approver
      holdfast mcp --app shop.tasks:app --http --port 8788
    """
    for needed in ("mcp", "starlette", "uvicorn"):
        if find_spec(needed) is None:
            raise ConfigError(f"{needed} isn't installed: pip install 'holdfast[mcp]'")
    granted = check_roles(roles)
    if http:
        _serve_http(app_to_serve(shared), host, port, granted, tenant, hosts, proxies)
    else:
        with contextlib.redirect_stdout(sys.stderr):  # the protocol has standard output
            app = app_to_serve(shared)
        _serve_stdio(app, granted, AccessScope(tenant=tenant))


def _serve_stdio(app: Holdfast, roles: tuple[Role, ...], scope: AccessScope) -> None:
    import asyncio

    from mcp.server.stdio import stdio_server

    from holdfast.control import Control
    from holdfast.telemetry.log_format import configure_console_log
    from holdfast.web.mcp.server import local_context, local_principal, mcp_server

    configure_console_log(verbose=False)
    context = local_context(app, Control(app.store, app.registry))
    principal = local_principal(f"{actor_or_user(None)} (mcp)", roles, scope)
    server = mcp_server(context, lambda _ctx: principal)

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve())
    finally:
        context.threads.close()
        app.close()


def _serve_http(
    app: Holdfast,
    host: str,
    port: int,
    roles: tuple[Role, ...],
    tenant: str | None,
    hosts: tuple[str, ...],
    proxies: tuple[str, ...],
) -> None:
    from holdfast.control import Control
    from holdfast.telemetry.log_format import configure_console_log
    from holdfast.web.clients import ClientAddresses, is_loopback
    from holdfast.web.mcp.http import PATH, mcp_site
    from holdfast.web.server import server

    if tenant is not None:
        raise ConfigError(
            "--tenant is for standard input and output: create a token with `holdfast token create --tenant`"
        )
    token = os.environ.get("HOLDFAST_TOKEN") or None
    local = is_loopback(host)
    if token is None:
        check_locked(app, host, hosts or proxies, local=local)
    unlocked = local and not hosts and not proxies
    control = Control(app.store, app.registry)
    site = mcp_site(app, control, token=token, unlocked=unlocked, roles=roles, hosts=hosts, proxies=proxies)
    configure_console_log(verbose=False)
    with listen(host, port) as listening:
        at = f"{in_address(host)}:{listening.getsockname()[1]}"
        note(f"MCP server of {app.store.database.display_url}: http://{at}{PATH} (Ctrl-C stops it)")
        server(site, ClientAddresses(proxies)).run(sockets=[listening])
