"""Changing runs, one by one or all that fit a filter: `cancel`, `retry`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from holdfast.cli.bulk import bulk_options, refuse_filters, run_bulk
from holdfast.cli.completion import complete_runs, complete_steps, complete_topics
from holdfast.cli.options import arguments, by_option, filter_options, payload
from holdfast.cli.output import note, show_json, show_line
from holdfast.cli.root import FAILED, SharedOptions, holdfast, pass_shared
from holdfast.errors import HoldfastError
from holdfast.model.names import actor_or_user
from holdfast.model.run import GRAPH_QUEUE

if TYPE_CHECKING:
    from holdfast.control import Control


@holdfast.command()
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@filter_options
@click.option("--reason", metavar="TEXT", help="Why; kept with the run.")
@bulk_options
@pass_shared
def cancel(shared: SharedOptions, run: tuple[str, ...], reason: str | None, **flags: Any) -> int:
    """End runs now, whether they have started or not.

    A worker that is at one is stopped at its next heartbeat. Its children end too, or its nodes, and a durable function
    with compensations runs those first. Runs that had ended before are left as they are. RUN is an id or its beginning.
    The exit code is 1 if one of them couldn't be found.

    Instead of runs, filters may be given: then all unfinished runs that fit are ended, in batches; what is done when it
    is interrupted stays done. Look first with --dry-run.

    \b
    Examples:
      holdfast cancel 0199a3f2-6c1e
      holdfast cancel --task shop.tasks.charge --since 2h --dry-run
      holdfast cancel 0199a3f2-6c1e 0199a3f4-11d0 --reason "ordered twice"
    """

    by = actor_or_user(flags.pop("by"))
    if not run:
        return run_bulk(
            shared, "cancel", flags, lambda control, asked: control.bulk.cancel(asked, reason=reason, by=by)
        )
    refuse_filters(flags)

    def end(control: Control, id: UUID) -> tuple[bool, str]:
        ended = control.runs.cancel(id, reason, by)
        state = control.runs.info(id).state
        if state == "undoing":
            return ended, "undoes what it did, then it is cancelled" if ended else "is undoing already"
        return ended, "cancelled" if ended else f"had ended before: {state}"

    return _each(shared, run, end)


@holdfast.command()
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@filter_options
@bulk_options
@pass_shared
def retry(shared: SharedOptions, run: tuple[str, ...], **flags: Any) -> int:
    """Send failed or cancelled runs back to be tried anew.

    Attempts, crashes and the deadline start anew; what durable functions have on record stays, and what is done in a
    graph. Unfinished runs are left as they are; one that is done can't be retried. RUN is an id or its beginning. The
    exit code is 1 if one of them can't be retried.

    Instead of runs, filters may be given: then all failed and cancelled runs that fit are retried, in batches, each
    once; what can't be retried by itself is passed over. Look first with --dry-run.

    \b
    Examples:
      holdfast retry 0199a3f2-6c1e
      holdfast retry --task shop.tasks.charge --error "no funds" --dry-run
    """

    by = actor_or_user(flags.pop("by"))
    if not run:
        return run_bulk(shared, "retry", flags, lambda control, asked: control.bulk.retry(asked, by=by))
    refuse_filters(flags)

    def again(control: Control, id: UUID) -> tuple[bool, str]:
        retried = control.runs.retry(id, by)
        info = control.runs.info(id)
        if not retried:
            return False, f"is unfinished anyway: {info.state}"
        return True, "ready again" if info.queue != GRAPH_QUEUE else "goes on; what was done in it stays done"

    return _each(shared, run, again)


def _each(shared: SharedOptions, runs: tuple[str, ...], act: Callable[[Control, UUID], tuple[bool, str]]) -> int:
    """Do something to each run and tell of each on a line of its own; one that fails doesn't keep the others."""
    from holdfast.cli.connect import connect_or_empty

    told: list[dict[str, Any]] = []
    with connect_or_empty(shared) as control:
        for run in runs:
            try:
                id = control.runs.find(run)
                changed, what = act(control, id)
                told.append({"run": str(id), "changed": changed, "outcome": what, "error": None})
            except HoldfastError as error:
                told.append({"run": run, "changed": False, "outcome": None, "error": str(error)})
            if not shared.json:
                _tell(told[-1])
    if shared.json:
        show_json(told)
    return FAILED if any(line["error"] for line in told) else 0


def _tell(line: dict[str, Any]) -> None:
    if line["error"]:
        note(f"{line['run']}  {line['error']}")
    else:
        show_line(f"{line['run']}  {line['outcome']}")


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--from", "from_step", metavar="STEP", shell_complete=complete_steps,
    help="Keep what was recorded before this step.  [default: nothing]",
)  # fmt: skip
@click.option("--args", "given_args", metavar="JSON", help="All arguments anew: a JSON object (by name) or array.")
@by_option
@pass_shared
def fork(shared: SharedOptions, run: str, from_step: str | None, given_args: str | None, by: str | None) -> None:
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
    from holdfast.cli.connect import connect_or_empty

    args = None
    if given_args is not None:
        positional, named = arguments(given_args)
        args = named or positional
    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        info = control.runs.info(id)
        made = control.runs.fork(id, from_step, args, actor_or_user(by))
    if shared.json:
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
@pass_shared
def send(shared: SharedOptions, run: str, topic: str, given_payload: str | None, by: str | None) -> None:
    """Send a message to an unfinished run.

    `ctx.receive(TOPIC)` in the run gets it: in order, once, now or when the run comes to it. PAYLOAD is JSON, null if
    it is left out. RUN is an id or its beginning. Put -- in front of a PAYLOAD that begins with a minus.

    \b
    Examples:
      holdfast send 0199a3f2-6c1e approvals '{"by": "ada", "ok": true}'
      holdfast send 0199a3f2-6c1e note '"call me"'
    """
    from holdfast.cli.connect import connect_or_empty

    value = payload(given_payload)
    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        waits = control.runs.waits(id)
        control.runs.send(id, topic, value, actor_or_user(by))
    if shared.json:
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
@pass_shared
def emit(shared: SharedOptions, event: str, given_payload: str | None, tenant: str | None) -> None:
    """Tell all runs that wait for an event that it has happened.

    `ctx.wait_for(EVENT)` gets PAYLOAD, which is JSON, null if it is left out; also when it is called only later. The
    first emit of a name counts, later ones change nothing. Put -- in front of a PAYLOAD that begins with a minus.

    \b
    Examples:
      holdfast emit order-42-paid '{"cents": 4200}'
      holdfast emit stock-arrived --tenant acme
    """
    from holdfast.cli.connect import connect

    value = payload(given_payload)
    with connect(shared) as control:
        first = control.events.emit(event, value, tenant)
    if shared.json:
        show_json({"event": event, "tenant": tenant, "first": first})
    else:
        show_line(f"{event}  {'emitted' if first else 'had been emitted before: nothing was changed'}")
