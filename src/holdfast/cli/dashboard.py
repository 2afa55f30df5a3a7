"""Serve the dashboard and the API: `dashboard`."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import note
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.web.sign_in import SignIn


@holdfast.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", default=8787, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME",
    help="Allowed host name besides localhost and IP addresses; repeatable.",
)  # fmt: skip
@click.option(
    "--proxy", "proxies", multiple=True, metavar="ADDRESS",
    help="Address or network of a reverse proxy whose X-Forwarded-For names the client; repeatable.",
)  # fmt: skip
@click.option(
    "--read-url", metavar="URL",
    help="A replica of the PostgreSQL server, for lists, statistics and metrics.  [default: $HOLDFAST_READ_URL]",
)  # fmt: skip
@click.option(
    "--identity-header", metavar="NAME", help="Header in which a --proxy names the user, such as X-Forwarded-User."
)
@click.option("--groups-header", metavar="NAME", help="Header in which it names the groups, separated by commas.")
@click.option("--oidc-issuer", metavar="URL", help="Sign in with this OpenID Connect provider.")
@click.option("--oidc-client-id", metavar="ID", help="The client id of this dashboard there.")
@click.option(
    "--oidc-user-claim", default="email", show_default=True, metavar="NAME", help="The claim that names the user."
)
@click.option(
    "--grant", "grants", multiple=True, metavar="WHO=ROLE",
    help="Roles of a user, a group or *: ada@example.org=admin, group:support=viewer+approver:TENANT; repeatable.",
)  # fmt: skip
@pass_shared
def dashboard(
    shared: SharedOptions,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    proxies: tuple[str, ...],
    read_url: str | None,
    grants: tuple[str, ...],
    **sign_in: str | None,
) -> None:
    """Serve the dashboard, and the API under /api/v1.

    On a loopback address, every local user may operate until a token is created. Any other address, an --allow-host and
    a proxy require a token: $HOLDFAST_TOKEN, which has all permissions, or one from `holdfast token create`. The server
    speaks plain HTTP: put a TLS proxy in front of it on untrusted networks.

    Without tokens, people sign in with the identity that a proxy names (--identity-header), or with an OpenID Connect
    provider (--oidc-issuer, $HOLDFAST_OIDC_CLIENT_SECRET, $HOLDFAST_PUBLIC_URL). --grant says who has which role.

    \b
    Examples:
      holdfast dashboard --app shop.tasks:app
      holdfast dashboard --host 0.0.0.0 --allow-host ops.example.org
      holdfast dashboard --allow-host ops.example.org --proxy 127.0.0.1
      holdfast dashboard --proxy ::1 --identity-header X-User --grant ada=admin
    """
    try:
        from holdfast.telemetry.log_format import configure_console_log
        from holdfast.web import dashboard as site
        from holdfast.web.clients import ClientAddresses, is_loopback
        from holdfast.web.server import allow_many_connections, server
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} isn't installed: pip install 'holdfast[dashboard]'") from None
    app = app_to_serve(shared)
    token = os.environ.get("HOLDFAST_TOKEN") or None
    local = is_loopback(host)
    how = sign_in_settings(grants, **sign_in)
    if token is None and how is None:
        check_locked(app, host, hosts or proxies, local=local)
    unlocked = local and not hosts and not proxies and how is None
    read_url = read_url or os.environ.get("HOLDFAST_READ_URL") or None
    served = site(app, token=token, unlocked=unlocked, hosts=hosts, proxies=proxies, sign_in=how, read_url=read_url)
    configure_console_log(verbose=False)
    allow_many_connections()
    with listen(host, port) as listening:
        at = f"{in_address(host)}:{listening.getsockname()[1]}"
        note(f"dashboard of {app.store.database.display_url}: http://{at}/ (Ctrl-C stops it)")
        server(served, ClientAddresses(proxies)).run(sockets=[listening])


def sign_in_settings(
    grants: tuple[str, ...],
    *,
    identity_header: str | None,
    groups_header: str | None,
    oidc_issuer: str | None,
    oidc_client_id: str | None,
    oidc_user_claim: str | None,
) -> SignIn | None:
    """Return how people sign in without a token; None if they don't."""
    from holdfast.web.oidc import OidcSettings
    from holdfast.web.sign_in import Grant, SignIn

    if identity_header is None and oidc_issuer is None:
        if grants or groups_header or oidc_client_id:
            raise ConfigError("--grant, --groups-header and --oidc-client-id need --identity-header or --oidc-issuer")
        return None
    oidc = None
    if oidc_issuer is not None:
        if oidc_client_id is None:
            raise ConfigError("--oidc-issuer needs --oidc-client-id")
        secret = os.environ.get("HOLDFAST_OIDC_CLIENT_SECRET") or None
        oidc = OidcSettings(oidc_issuer, oidc_client_id, secret, user_claim=oidc_user_claim or "email")
    return SignIn([Grant.parse(each) for each in grants], identity_header, groups_header, oidc)


def app_to_serve(shared: SharedOptions) -> Holdfast:
    """Return the app, or an app without tasks on the given database."""
    from holdfast.cli.connect import connect, resolve_target

    target = resolve_target(shared)
    if target.app is not None and shared.url is None and shared.schema is None:
        return target.app
    with connect(shared) as control:
        if control.upkeep.tables().version == 0:
            raise ConfigError(f"{control.database} has no Holdfast tables: create them with `holdfast migrate`")
    return target.open_app(migrate=False)


def check_locked(app: Holdfast, host: str, others: tuple[str, ...], *, local: bool) -> None:
    """Refuse to serve others than local users without a valid token, with which they could log in."""
    from holdfast.control import Control

    tokens = Control(app.store).tokens
    if tokens.exist():
        return
    if not local or others:
        reason = "--allow-host and --proxy are for others than local users" if local else f"{host} is not loopback"
        raise ConfigError(
            f"{reason}, so a token is required: set $HOLDFAST_TOKEN, create one with "
            f"`holdfast token create --role admin`, or omit {'these options' if local else '--host'}"
        )
    if tokens.ever_existed():
        note("all tokens are revoked, so nobody can log in: create one with `holdfast token create --role admin`")


def listen(host: str, port: int) -> socket.socket:
    """Bind the port before announcing the address."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(
            f"can't listen on {in_address(host)}:{port}: {error.strerror}; use another --port or --host"
        ) from None


def in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
