"""Durable functions from outside: `fork`, `send`, `emit`."""

from __future__ import annotations

import click

from holdfast.cli.completion import complete_runs, complete_steps, complete_topics
from holdfast.cli.output import note, show_json, show_line
from holdfast.cli.root import Given, holdfast, pass_given
from holdfast.cli.values import arguments, by_option, payload
from holdfast.model.names import actor_or_user


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--from", "from_step", metavar="STEP", shell_complete=complete_steps,
    help="Keep what was recorded before this step.  [default: nothing]",
)  # fmt: skip
@click.option("--args", "given_args", metavar="JSON", help="All arguments anew: a JSON object (by name) or array.")
@by_option
@pass_given
def fork(given: Given, run: str, from_step: str | None, given_args: str | None, by: str | None) -> None:
    """Make a new run that begins with what another one recorded, and print its id.

    With --from it has the results of everything before that step, so that those are not run again; without, it begins
    at the beginning. STEP is named as in the code and by `holdfast show RUN`; where a name was recorded several times,
    its first one is meant. A step whose failure ended the run isn't on record: `holdfast retry` goes on with that. The
    other run stays as it is; RUN is its id or the beginning of it. With --app arguments are checked against the code.

    \b
    Examples:
      holdfast fork 0199a3f2-6c1e --from charge
      holdfast fork 0199a3f2-6c1e --args '{"order_id": 43}'
    """
    from holdfast.cli.connect import opened_or_empty

    args = None
    if given_args is not None:
        positional, named = arguments(given_args)
        args = named or positional
    with opened_or_empty(given) as control:
        id = control.runs.find(run)
        info = control.runs.info(id)
        made = control.runs.fork(id, from_step, args, actor_or_user(by))
    if given.json:
        show_json({"id": made, "task": info.task, "forked": id, "from_step": from_step})
        return
    show_line(str(made))
    if not info.final:
        note(f"run {id} is {info.state} and goes on by itself; `holdfast cancel {id}` ends it")


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("given_payload", metavar="[PAYLOAD]", required=False)
@by_option
@pass_given
def send(given: Given, run: str, topic: str, given_payload: str | None, by: str | None) -> None:
    """Send a message to an unfinished run.

    `ctx.receive(TOPIC)` in the run gets it: in order, once, now or when the run comes to it. PAYLOAD is JSON, null if
    it is left out. RUN is an id or its beginning. Put -- in front of a PAYLOAD that begins with a minus.

    \b
    Examples:
      holdfast send 0199a3f2-6c1e approvals '{"by": "ada", "ok": true}'
      holdfast send 0199a3f2-6c1e note '"call me"'
    """
    from holdfast.cli.connect import opened_or_empty

    value = payload(given_payload)
    with opened_or_empty(given) as control:
        id = control.runs.find(run)
        waits = control.runs.waits(id)
        control.runs.send(id, topic, value, actor_or_user(by))
    if given.json:
        show_json({"run": id, "topic": topic})
        return
    show_line(f"{id}  sent to {topic}")
    topics = [wait.name for wait in waits if wait.kind == "message" and wait.name is not None]
    if topics and topic not in topics:
        note(f"the run waits for a message on {', '.join(topics)}, not on {topic}: this one is kept until it asks")


@holdfast.command()
@click.argument("event")
@click.argument("given_payload", metavar="[PAYLOAD]", required=False)
@click.option("--tenant", metavar="NAME", help="An event of this tenant; only its runs can wait for it.")
@pass_given
def emit(given: Given, event: str, given_payload: str | None, tenant: str | None) -> None:
    """Tell all runs that wait for an event that it has happened.

    `ctx.wait_for(EVENT)` gets PAYLOAD, which is JSON, null if it is left out; also when it is called only later. The
    first emit of a name counts, later ones change nothing. Put -- in front of a PAYLOAD that begins with a minus.

    \b
    Examples:
      holdfast emit order-42-paid '{"cents": 4200}'
      holdfast emit stock-arrived --tenant acme
    """
    from holdfast.cli.connect import opened

    value = payload(given_payload)
    with opened(given) as control:
        first = control.events.emit(event, value, tenant)
    if given.json:
        show_json({"event": event, "tenant": tenant, "first": first})
    else:
        show_line(f"{event}  {'emitted' if first else 'had been emitted before: nothing was changed'}")
