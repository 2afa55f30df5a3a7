"""Manage access tokens for the dashboard and the API: `token`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from holdfast.cli.options import DurationType
from holdfast.cli.output import TableColumn, format_ago, note, show_json, show_line, show_table
from holdfast.cli.root import HoldfastCommand, SharedOptions, holdfast, pass_shared
from holdfast.model.access import ROLES, describe_scope

if TYPE_CHECKING:
    from holdfast.control.tokens import TokenInfo

COLUMNS = (
    TableColumn("TOKEN", whole=True),
    TableColumn("NAME"),
    TableColumn("ROLES", whole=True),
    TableColumn("LIMITED TO", drop=1),
    TableColumn("LAST USED", drop=2),
    TableColumn("EXPIRES"),
)
NEVER = -1.0
"""The lifetime of a token that does not expire."""


class LifetimeType(DurationType):
    """A duration, or `never`."""

    name = "lifetime"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return NEVER if value == "never" else super().convert(value, param, ctx)


LIFETIME = LifetimeType()


@holdfast.group()
def token() -> None:
    """Manage access tokens for the dashboard and the API.

    \b
    Examples:
      holdfast token create --role viewer --name grafana
      holdfast token list
      holdfast token revoke 3f9c0b12a7de
    """


@token.command(cls=HoldfastCommand)
@click.option(
    "--role", "roles", type=click.Choice(ROLES), multiple=True,
    help="What it may do; repeatable. viewer: read; approver: decide gates; operator: act on runs, queues and "
    "schedules; admin: everything, including tokens.",
)  # fmt: skip
@click.option("--read", is_flag=True, help="Short for --role viewer.")
@click.option("--operate", is_flag=True, help="Short for --role operator --role approver.")
@click.option("--tenant", metavar="NAME", help="Limit it to runs of this tenant.  [default: all]")
@click.option(
    "--task", "tasks", metavar="NAME", multiple=True, help="Limit it to this task; may end with *; repeatable."
)
@click.option(
    "--queue", "queues", metavar="NAME", multiple=True, help="Limit it to this queue; may end with *; repeatable."
)
@click.option(
    "--max-priority", type=int, metavar="N",
    help="Highest priority of runs that it enqueues.  [default: the priority of the task]",
)  # fmt: skip
@click.option(
    "--expires", type=LIFETIME, default="90d", show_default=True, metavar="DURATION",
    help="Lifetime, such as 12h or 90d, or never.",
)  # fmt: skip
@click.option("--name", metavar="TEXT", help="Name of the holder, shown in the history of runs.")
@pass_shared
def create(
    shared: SharedOptions,
    roles: tuple[str, ...],
    read: bool,
    operate: bool,
    tenant: str | None,
    tasks: tuple[str, ...],
    queues: tuple[str, ...],
    max_priority: int | None,
    expires: float,
    name: str | None,
) -> None:
    """Create a token and print it. It can't be shown again.

    A token that is limited to tasks or queues may enqueue these even if the server's code doesn't declare them. Others
    may enqueue only what it declares; an admin may enqueue anything.

    \b
    Examples:
      holdfast token create --role viewer --name grafana
      holdfast token create --role operator --tenant acme --name ada
      holdfast token create --role approver --task "refunds.*" --expires 8h
    """
    from holdfast.cli.connect import connect

    if bool(roles) + read + operate != 1:
        raise click.UsageError("Choose what it may do: --role, --read or --operate.")
    with connect(shared) as control:
        made = control.tokens.create(
            roles or ("read" if read else "operate"),
            tenant,
            name,
            tasks=tasks or None,
            queues=queues or None,
            max_priority=max_priority,
            expires=None if expires == NEVER else expires,
        )
    if shared.json:
        show_json({"token": made.token, **to_builtins(made.info)})
        return
    show_line(made.token)
    scope = describe_scope(made.info.scope)
    limits = f", limited to {scope}" if scope else ""
    until = "does not expire" if made.info.expires_at is None else f"expires {made.info.expires_at:%Y-%m-%d %H:%M} UTC"
    note(f"token {made.info.id}: {' and '.join(made.info.roles)}{limits}; {until}; it can't be shown again")


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
        show_json(found)
    else:
        show_table(
            COLUMNS, [_row(info) for info in found], "no tokens: create one with `holdfast token create --role viewer`"
        )


@token.command(cls=HoldfastCommand)
@click.argument("id")
@pass_shared
def revoke(shared: SharedOptions, id: str) -> None:
    """Revoke a token and end its logins. ID is as shown by `holdfast token list`.

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


def _row(info: TokenInfo) -> list[str]:
    if info.revoked_at is not None:
        state = f"revoked {format_ago(info.revoked_at)}"
    elif info.expires_at is None:
        state = "never"
    else:
        state = format_ago(info.expires_at)
    used = "never" if info.used_at is None else format_ago(info.used_at)
    return [info.id, info.name, " ".join(info.roles), describe_scope(info.scope) or "-", used, state]
