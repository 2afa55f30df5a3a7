"""Commands for events: `emit` and `events`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_events
from holdfast.cli.options import payload
from holdfast.cli.output import TableColumn, format_ago, note, show_fields, show_json, show_line, show_table
from holdfast.cli.render_history import plain
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.names import counted

if TYPE_CHECKING:
    from holdfast.control.events import AwaitedEvent, EmittedEvent, EventControl, EventInfo, WaitingRun

AWAITED_COLUMNS = (
    TableColumn("AWAITED", whole=True),
    TableColumn("TENANT", whole=True),
    TableColumn("RUNS", right=True),
    TableColumn("SINCE", whole=True),
    TableColumn("FIRST RUN", whole=True),
    TableColumn("TASK", drop=1),
)
EMITTED_COLUMNS = (
    TableColumn("EMITTED", whole=True),
    TableColumn("TENANT", whole=True),
    TableColumn("AT", whole=True),
    TableColumn("PAYLOAD"),
)
ACTIONS = ("show", "clear")
MAX_SHOWN_WAITERS = 20


@holdfast.command()
@click.argument("event", shell_complete=complete_events)
@click.argument("given_payload", metavar="[PAYLOAD]", required=False)
@click.option("--tenant", metavar="NAME", help="Emit it for the runs of this tenant.  [default: runs without a tenant]")
@pass_shared
def emit(shared: SharedOptions, event: str, given_payload: str | None, tenant: str | None) -> None:
    """Emit an event.

    `ctx.wait_for(EVENT)` returns PAYLOAD, also if it is called later. PAYLOAD is JSON and defaults to null. Only the
    first emit of an event takes effect. An event reaches the runs of one tenant, or those without one; the command
    says so if others wait for an event of the same name. Put -- before a PAYLOAD that starts with a minus sign.

    \b
    Examples:
      holdfast emit order-42-paid '{"cents": 4200}'
      holdfast emit stock-arrived --tenant acme
    """
    from holdfast.cli.connect import connect

    value = payload(given_payload)
    with connect(shared) as control:
        waiters = control.events.waiters(event, tenant)
        first = control.events.emit(event, value, tenant)
        others = control.events.awaited_elsewhere(event, tenant)
    if shared.json:
        elsewhere = [each.tenant for each in others]
        show_json({"event": event, "tenant": tenant, "first": first, "awaited_elsewhere": elsewhere})
        return
    show_line(f"{event}  {_emitted(waiters) if first else 'already emitted; nothing changed'}")
    for each in others:
        _warn(each)


def _emitted(waiters: Sequence[WaitingRun]) -> str:
    if not waiters:
        return "emitted; no run was waiting for it"
    return f"emitted; {counted(len(waiters), 'run')} {'was' if len(waiters) == 1 else 'were'} waiting for it"


def _warn(event: EventInfo) -> None:
    from holdfast.control.events import emit_command

    whose = "without a tenant" if event.tenant is None else f"of tenant {event.tenant}"
    waiting = f"{counted(len(event.waiters), 'run')} {whose} still {'waits' if len(event.waiters) == 1 else 'wait'}"
    note(f"warning: {waiting} for {event.name}; emit it there with: {emit_command(event.name, event.tenant)}")


@holdfast.command()
@click.argument("action", required=False, type=click.Choice(ACTIONS))
@click.argument("name", nargs=-1, shell_complete=complete_events)
@click.option("--tenant", metavar="NAME", help="Only events of this tenant; for clear: its event, not the one of none.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many of each.")
@pass_shared
def events(shared: SharedOptions, action: str | None, name: tuple[str, ...], tenant: str | None, limit: int) -> None:
    """List events that runs wait for and events that were emitted, or act on them.

    Every event belongs to a tenant or to none (-), and reaches only the runs of that tenant. Runs that have waited
    longest come first, and events that were emitted last.

    \b
      show   show whether events of this name were emitted, and who waits
      clear  forget that an event was emitted, so that it can be emitted
             again; runs that received it keep it

    \b
    Examples:
      holdfast events
      holdfast events show order-42-paid
      holdfast events clear order-42-paid --tenant acme
    """
    from holdfast.cli.connect import connect, connect_or_empty

    if action is None:
        with connect_or_empty(shared) as control:
            _list(shared, control.events, tenant, limit)
        return
    if not name:
        raise click.UsageError(f"Name the events, for example `holdfast events {action} order-42-paid`.")
    with connect(shared) as control:
        (_show if action == "show" else _clear)(shared, control.events, name, tenant)


def _list(shared: SharedOptions, events: EventControl, tenant: str | None, limit: int) -> None:
    found = events.list(tenant, limit)
    if shared.json:
        show_json(found)
        return
    show_table(AWAITED_COLUMNS, [_awaited_row(each) for each in found.awaited], "no run waits for an event")
    if found.awaited and found.emitted:
        show_line("")
    show_table(EMITTED_COLUMNS, [_emitted_row(each) for each in found.emitted], "no event was emitted")
    if found.partial:
        note("there are too many waits or events to read all of them; `holdfast events show NAME` looks for one")


def _awaited_row(event: AwaitedEvent) -> list[str]:
    since = format_ago(event.since)
    return [event.name, event.tenant or "-", f"{event.waiters:,}", since, str(event.run), event.task]


def _emitted_row(event: EmittedEvent) -> list[str]:
    return [event.name, event.tenant or "-", format_ago(event.at), plain(event.payload) or "null"]


def _show(shared: SharedOptions, events: EventControl, names: Sequence[str], tenant: str | None) -> None:
    found = [(name, events.show(name, tenant)) for name in names]
    if shared.json:
        show_json([each for _, some in found for each in some])
        return
    shown = 0
    for name, some in found:
        if not some:
            note(f"{name}  neither emitted nor awaited")
        for each in some:
            if shown:
                show_line("")
            shown += 1
            _details(each)


def _details(event: EventInfo) -> None:
    lines = [f"{waiter.run} ({waiter.task}), since {format_ago(waiter.since)}" for waiter in event.waiters]
    if len(lines) > MAX_SHOWN_WAITERS:
        lines = [*lines[:MAX_SHOWN_WAITERS], f"… and {len(lines) - MAX_SHOWN_WAITERS} more"]
    emitted = "no" if event.emitted_at is None else format_ago(event.emitted_at)
    show_fields(
        [
            ("event", event.name),
            ("tenant", event.tenant or "-"),
            ("emitted", emitted),
            ("payload", None if event.emitted_at is None else plain(event.payload) or "null"),
            ("awaited by", "\n".join(lines) or "-"),
        ]
    )


def _clear(shared: SharedOptions, events: EventControl, names: Sequence[str], tenant: str | None) -> None:
    changed = [(name, events.clear(name, tenant)) for name in names]
    if shared.json:
        show_json([{"event": name, "tenant": tenant, "changed": did} for name, did in changed])
        return
    for name, did in changed:
        show_line(f"{name}  {'cleared; it can be emitted again' if did else 'was not emitted; nothing changed'}")
