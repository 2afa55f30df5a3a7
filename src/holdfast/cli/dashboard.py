"""Commands for the dashboard and the API: `dashboard`, `token`."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import TableColumn, format_ago, note, show_json, show_line, show_table
from holdfast.cli.root import HoldfastCommand, SharedOptions, holdfast, pass_shared
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.control.tokens import Permission, TokenInfo

SHUTDOWN_TIMEOUT_S = 2
"""Open live-update streams aren't awaited any longer."""
COLUMNS = (
    TableColumn("TOKEN", whole=True),
    TableColumn("NAME"),
    TableColumn("PERMISSION", whole=True),
    TableColumn("TENANT", drop=1),
    TableColumn("CREATED", drop=2),
    TableColumn("REVOKED"),
)


@holdfast.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", default=8787, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME",
    help="Allowed host name besides localhost and IP addresses; repeatable.",
)  # fmt: skip
@pass_shared
def dashboard(shared: SharedOptions, host: str, port: int, hosts: tuple[str, ...]) -> None:
    """Serve the dashboard, and the API under /api/v1.

    On a loopback address, every local user may operate until a token is created. Any other address, an --allow-host and
    a proxy require a token: $HOLDFAST_TOKEN, which has all permissions, or one from `holdfast token create`. The server
    speaks plain HTTP: put a TLS proxy in front of it on untrusted networks.

    \b
    Examples:
      holdfast dashboard --app shop.tasks:app
      holdfast dashboard --host 0.0.0.0 --allow-host ops.example.org
    """
    try:
        import uvicorn

        from holdfast.telemetry.log_format import configure_console_log
        from holdfast.web import dashboard as site
        from holdfast.web.middleware import is_loopback
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} isn't installed: pip install 'holdfast[dashboard]'") from None
    app = _app_of(shared)
    token = os.environ.get("HOLDFAST_TOKEN") or None
    local = is_loopback(host)
    if token is None:
        _check_locked(app, host, hosts, local=local)
    served = site(app, token=token, unlocked=local and not hosts, hosts=hosts)
    settings = uvicorn.Config(
        served,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
    )
    configure_console_log(verbose=False)
    with _listen(host, port) as listening:
        at = f"{_in_address(host)}:{listening.getsockname()[1]}"
        note(f"dashboard of {app.store.database.display_url}: http://{at}/ (Ctrl-C stops it)")
        uvicorn.Server(settings).run(sockets=[listening])


def _app_of(shared: SharedOptions) -> Holdfast:
    """Return the app, or an app without tasks on the given database."""
    from holdfast.cli.connect import connect, resolve_target

    target = resolve_target(shared)
    if target.app is not None and shared.url is None and shared.schema is None:
        return target.app
    with connect(shared) as control:
        if control.upkeep.tables().version == 0:
            raise ConfigError(f"{control.database} has no Holdfast tables: create them with `holdfast migrate`")
    return target.open_app(migrate=False)


def _check_locked(app: Holdfast, host: str, hosts: tuple[str, ...], *, local: bool) -> None:
    """Refuse to serve others than local users without a valid token, with which they could log in."""
    from holdfast.control import Control

    tokens = Control(app.store).tokens
    if tokens.exist():
        return
    if not local or hosts:
        reason = f"--allow-host {hosts[0]} makes it reachable for others" if local else f"{host} is not loopback"
        raise ConfigError(
            f"{reason}, so a token is required: set $HOLDFAST_TOKEN, create one with "
            f"`holdfast token create --operate`, or omit {'--allow-host' if local else '--host'}"
        )
    if tokens.ever_existed():
        note("all tokens are revoked, so nobody can log in: create one with `holdfast token create --operate`")


def _listen(host: str, port: int) -> socket.socket:
    """Bind the port before announcing the address."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(
            f"can't listen on {_in_address(host)}:{port}: {error.strerror}; use another --port or --host"
        ) from None


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@holdfast.group()
def token() -> None:
    """Manage access tokens for the dashboard and the API.

    \b
    Examples:
      holdfast token create --read --name grafana
      holdfast token list
      holdfast token revoke 3f9c0b12a7de
    """


@token.command(cls=HoldfastCommand)
@click.option("--read", is_flag=True, help="Permission to read.")
@click.option("--operate", is_flag=True, help="Permission to read and change.")
@click.option("--tenant", metavar="NAME", help="Limit it to runs of this tenant.  [default: all]")
@click.option("--name", metavar="TEXT", help="Name of the holder, shown in the history of runs.")
@pass_shared
def create(shared: SharedOptions, read: bool, operate: bool, tenant: str | None, name: str | None) -> None:
    """Create a token and print it. It can't be shown again.

    \b
    Examples:
      holdfast token create --read --name grafana
      holdfast token create --operate --tenant acme --name ada
    """
    from holdfast.cli.connect import connect

    if read == operate:
        raise click.UsageError("Choose a permission: either --read or --operate.")
    may: Permission = "operate" if operate else "read"
    with connect(shared) as control:
        made = control.tokens.create(may, tenant, name)
    if shared.json:
        show_json({"token": made.token, **_shown(made.info)})
        return
    show_line(made.token)
    note(
        f"token {made.info.id} has permission {may}{f' for tenant {tenant}' if tenant else ''}; it can't be shown again"
    )


@token.command("list", cls=HoldfastCommand)
@pass_shared
def list_(shared: SharedOptions) -> None:
    """List tokens, without their secrets.

    \b
    Examples:
      holdfast token list
    """
    from holdfast.cli.connect import connect_or_empty

    with connect_or_empty(shared) as control:
        found = control.tokens.list()
    if shared.json:
        show_json([_shown(info) for info in found])
    else:
        show_table(COLUMNS, [_row(info) for info in found], "no tokens: create one with `holdfast token create --read`")


@token.command(cls=HoldfastCommand)
@click.argument("id")
@pass_shared
def revoke(shared: SharedOptions, id: str) -> None:
    """Revoke a token. ID is as shown by `holdfast token list`.

    \b
    Examples:
      holdfast token revoke 3f9c0b12a7de
    """
    from holdfast.cli.connect import connect

    with connect(shared) as control:
        changed = control.tokens.revoke(id)
        last = changed and not control.tokens.exist()
    if shared.json:
        show_json({"id": id, "changed": changed})
    else:
        show_line(f"{id}  {'revoked' if changed else 'already revoked'}")
    if last:
        note("no tokens are left: nobody can log in until you create one")


def _shown(info: TokenInfo) -> dict[str, object]:
    return {name: getattr(info, name) for name in ("id", "name", "may", "tenant", "created_at", "revoked_at")}


def _row(info: TokenInfo) -> list[str]:
    revoked = "-" if info.revoked_at is None else format_ago(info.revoked_at)
    return [info.id, info.name, info.may, info.tenant or "-", format_ago(info.created_at), revoked]
