"""Commands that change runs: `cancel`, `retry`, `update`, `fork`, `send`, `resend`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from holdfast.cli.bulk import bulk_options, refuse_filters, run_bulk
from holdfast.cli.completion import complete_runs, complete_steps, complete_topics
from holdfast.cli.options import FUTURE_TIME, arguments, by_option, filter_options, payload
from holdfast.cli.output import note, show_json, show_line
from holdfast.cli.root import FAILED, SharedOptions, holdfast, pass_shared
from holdfast.errors import HoldfastError
from holdfast.model.names import actor_or_user
from holdfast.model.run import GRAPH_QUEUE

if TYPE_CHECKING:
    from holdfast.control import Control
    from holdfast.control.retry_preview import RetryPreview

MAX_PREVIEW_LINES = 20


@holdfast.command()
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@filter_options
@click.option("--reason", metavar="TEXT", help="Reason, stored with the run.")
@bulk_options
@pass_shared
def cancel(shared: SharedOptions, run: tuple[str, ...], reason: str | None, **flags: Any) -> int:
    """Cancel runs, whether they have started or not.

    A running task is cancelled within about a second. Children and nodes are cancelled too, and a durable function runs
    its compensations first. Finished runs don't change. RUN is a run id or a unique prefix. The exit code is 1 if a run
    isn't found.

    With filters instead of RUN, all matching unfinished runs are cancelled in batches; an interrupt keeps what is done.
    Use --dry-run to preview.

    \b
    Examples:
      holdfast cancel 0199a3f2-6c1e
      holdfast cancel --task shop.tasks.charge --since 2h --dry-run
      holdfast cancel 0199a3f2-6c1e 0199a3f4-11d0 --reason "ordered twice"
    """

    by = actor_or_user(flags.pop("by"))
    if not run:
        return run_bulk(
            shared, "cancel", flags, lambda control, filters: control.bulk.cancel(filters, reason=reason, by=by)
        )
    refuse_filters(flags)

    def end(control: Control, id: UUID) -> tuple[bool, str]:
        ended = control.runs.cancel(id, reason, by)
        state = control.runs.info(id).state
        if state == "undoing":
            return ended, "undoing; cancelled when its compensations have run" if ended else "already undoing"
        return ended, "cancelled" if ended else f"already finished: {state}"

    return _each(shared, run, end)


@holdfast.command()
@click.argument("run", nargs=-1, shell_complete=complete_runs)
@filter_options
@click.option("--args", "given_args", metavar="JSON", help="Replace all arguments: a JSON object (by name) or array.")
@bulk_options
@pass_shared
def retry(shared: SharedOptions, run: tuple[str, ...], given_args: str | None, **flags: Any) -> int:
    """Retry failed or cancelled runs.

    Attempts, crashes and the deadline are reset. A durable function continues after its recorded results; if its
    compensations ran, it continues before the first step that was undone. A graph runs again what failed and what
    depends on it. Unfinished runs don't change, and done runs can't be retried. RUN is a run id or a unique prefix. The
    exit code is 1 if a run can't be retried. Use --dry-run to see what a retry would keep, run again and perhaps
    repeat.

    With --args, one run is retried with other arguments. It starts over: nothing that it recorded is used. With --app,
    the arguments are validated.

    With filters instead of RUN, all matching failed and cancelled runs are retried in batches, each once; runs that
    can't be retried by themselves are skipped. Here --dry-run counts and lists them.

    \b
    Examples:
      holdfast retry 0199a3f2-6c1e --dry-run
      holdfast retry 0199a3f2-6c1e
      holdfast retry 0199a3f2-6c1e --args '{"order_id": 43}'
      holdfast retry --task shop.tasks.charge --error "no funds" --dry-run
    """

    by = actor_or_user(flags.pop("by"))
    args = new_arguments(given_args)
    if args is not None and len(run) != 1:
        raise click.UsageError("--args needs exactly one RUN.")
    if not run:
        return run_bulk(shared, "retry", flags, lambda control, filters: control.bulk.retry(filters, by=by))
    dry_run = flags.pop("dry_run")
    refuse_filters(flags)
    if dry_run:
        return _preview_retries(shared, run, changed=args is not None)

    def again(control: Control, id: UUID) -> tuple[bool, str]:
        retried = control.runs.retry(id, by, args)
        info = control.runs.info(id)
        if not retried:
            return False, f"unfinished: {info.state}"
        if info.queue == GRAPH_QUEUE:
            return True, "retried with all nodes that depend on what failed"
        return True, "retried" if args is None else "starts over with the new arguments"

    return _each(shared, run, again)


def new_arguments(text: str | None) -> tuple[Any, ...] | dict[str, Any] | None:
    """Parse --args, which replaces all arguments of a run; None without it."""
    if text is None:
        return None
    positional, named = arguments(text)
    return named or positional


@holdfast.command()
@click.argument("run", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--priority", type=int, help="Runs with a higher priority are claimed first.")
@click.option(
    "--run-at", type=FUTURE_TIME, metavar="TIME", help="When to start or continue: 2h (from now) or 2026-11-16T09:30."
)
@click.option("--args", "given_args", metavar="JSON", help="Replace all arguments: a JSON object (by name) or array.")
@click.option("--tag", "tags", metavar="NAME", multiple=True, help="Replace all tags; repeatable.")
@by_option
@pass_shared
def update(
    shared: SharedOptions,
    run: tuple[str, ...],
    given_args: str | None,
    tags: tuple[str, ...],
    by: str | None,
    **given: Any,
) -> int:
    """Change runs that haven't started.

    Options that aren't given stay as they are. Of a run that has started, only the time can be changed: that of a
    scheduled retry, or the end of a sleep if the function waits for nothing else. RUN is a run id or a unique prefix.
    The exit code is 1 if a run can't be changed. With --app, arguments are validated.

    \b
    Examples:
      holdfast update 0199a3f2-6c1e --priority 5
      holdfast update 0199a3f2-6c1e --run-at 2026-11-20T06:00
      holdfast update 0199a3f2-6c1e --run-at 2h --tag night
    """
    changes = {**given, "args": new_arguments(given_args), "tags": tags or None}
    if all(value is None for value in changes.values()):
        raise click.UsageError("Pass what to change: --priority, --run-at, --args or --tag.")

    def change(control: Control, id: UUID) -> tuple[bool, str]:
        control.runs.update(id, **changes, by=actor_or_user(by))
        return True, "changed"

    return _each(shared, run, change)


def _preview_retries(shared: SharedOptions, runs: tuple[str, ...], *, changed: bool) -> int:
    """Show what retries of runs would do; an error doesn't stop the others."""
    from holdfast.cli.connect import connect_or_empty

    found: list[dict[str, Any]] = []
    with connect_or_empty(shared) as control:
        for run in runs:
            try:
                preview = control.runs.preview_retry(control.runs.find(run), changed=changed)
                found.append({"run": str(preview.id), "preview": preview, "error": None})
                if not shared.json:
                    _show_preview(preview)
            except HoldfastError as error:
                found.append({"run": run, "preview": None, "error": str(error)})
                if not shared.json:
                    note(f"{run}  {error}")
    if shared.json:
        show_json(found)
    return FAILED if any(each["error"] for each in found) else 0


def _show_preview(preview: RetryPreview) -> None:
    show_line(f"{preview.id}  {preview.summary}")
    _show_list("kept", preview.kept)
    _show_list("runs again", [f"{step.label}: {step.text}" for step in preview.again])
    _show_list("retried too", [f"child {child}" for child in preview.children])
    _show_list("may happen twice", preview.may_repeat)


def _show_list(title: str, lines: Sequence[str]) -> None:
    if lines:
        show_line(f"  {title}")
    for line in lines[:MAX_PREVIEW_LINES]:
        show_line(f"    {line}")
    if len(lines) > MAX_PREVIEW_LINES:
        show_line(f"    … and {len(lines) - MAX_PREVIEW_LINES:,} more (--json lists all)")


def _each(shared: SharedOptions, runs: tuple[str, ...], act: Callable[[Control, UUID], tuple[bool, str]]) -> int:
    """Apply an action to each run and report each on its own line; an error doesn't stop the others."""
    from holdfast.cli.connect import connect_or_empty

    results: list[dict[str, Any]] = []
    with connect_or_empty(shared) as control:
        for run in runs:
            try:
                id = control.runs.find(run)
                changed, outcome = act(control, id)
                results.append({"run": str(id), "changed": changed, "outcome": outcome, "error": None})
            except HoldfastError as error:
                results.append({"run": run, "changed": False, "outcome": None, "error": str(error)})
            if not shared.json:
                _show_result(results[-1])
    if shared.json:
        show_json(results)
    return FAILED if any(line["error"] for line in results) else 0


def _show_result(line: dict[str, Any]) -> None:
    if line["error"]:
        note(f"{line['run']}  {line['error']}")
    else:
        show_line(f"{line['run']}  {line['outcome']}")


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--from", "from_step", metavar="STEP", shell_complete=complete_steps,
    help="Keep the checkpoints before this step, or what doesn't depend on this node.  [default: none]",
)  # fmt: skip
@click.option("--from-failed", is_flag=True, help="Of a graph, run only what failed and what depends on it.")
@click.option("--args", "given_args", metavar="JSON", help="Replace all arguments: a JSON object (by name) or array.")
@by_option
@pass_shared
def fork(
    shared: SharedOptions,
    run: str,
    from_step: str | None,
    from_failed: bool,
    given_args: str | None,
    by: str | None,
) -> None:
    """Create a new run from the checkpoints of another run, and print its id.

    With --from, the new run has the results of all steps before STEP and doesn't run them again; without it, the new
    run starts from the beginning. STEP is a name as in the code and in `holdfast show RUN`; if it was recorded several
    times, the first one counts. A step whose failure ended the run has no checkpoint: use `holdfast retry` to continue
    there. The original run doesn't change. RUN is a run id or a unique prefix. With --app, arguments are validated.

    A finished graph is replayed as a new run: all nodes run again, and gates open again. With --from NODE or
    --from-failed, nodes that are done and don't depend on a node that runs again keep their results.

    \b
    Examples:
      holdfast fork 0199a3f2-6c1e --from charge
      holdfast fork 0199a3f2-6c1e --args '{"order_id": 43}'
      holdfast fork 0199a3f4-11d0 --from-failed
    """
    from holdfast.cli.connect import connect_or_empty

    args = new_arguments(given_args)
    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        info = control.runs.info(id)
        made = control.runs.fork(id, from_step, args, actor_or_user(by), from_failed=from_failed)
    if shared.json:
        show_json({"id": made, "task": info.task, "forked": id, "from_step": from_step, "from_failed": from_failed})
        return
    show_line(str(made))
    if not info.final:
        note(f"run {id} is {info.state} and continues; cancel it with `holdfast cancel {id}`")


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("given_payload", metavar="[PAYLOAD]", required=False)
@by_option
@pass_shared
def send(shared: SharedOptions, run: str, topic: str, given_payload: str | None, by: str | None) -> None:
    """Send a message to an unfinished run.

    `ctx.receive(TOPIC)` in the run returns messages in order, each once. PAYLOAD is JSON and defaults to null. RUN is a
    run id or a unique prefix. Put -- before a PAYLOAD that starts with a minus sign.

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
    show_line(f"{id}  message sent on topic {topic}")
    topics = [wait.name for wait in waits if wait.kind == "message" and wait.name is not None]
    if topics and topic not in topics:
        note(f"the run waits for a message on {', '.join(topics)}, not on {topic}; the message is kept")


@holdfast.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("message", type=click.IntRange(min=1), required=False)
@click.argument("given_payload", metavar="[PAYLOAD]", required=False)
@by_option
@pass_shared
def resend(shared: SharedOptions, run: str, message: int | None, given_payload: str | None, by: str | None) -> None:
    """Send messages again that were set aside.

    A message that doesn't have the type that the function expects is set aside, and the function keeps waiting.
    `holdfast show RUN` lists these messages with their numbers. Without MESSAGE, all of them are sent again, in order,
    for example after a deploy with the fitting type. PAYLOAD is JSON and replaces the message. RUN is a run id or a
    unique prefix. With --app, a PAYLOAD is checked against the type that the task declares.

    \b
    Examples:
      holdfast resend 0199a3f2-6c1e
      holdfast resend 0199a3f2-6c1e 3 '{"by": "ada", "ok": true}'
    """
    from holdfast.cli.connect import connect_or_empty

    replaced = {} if given_payload is None else {"payload": payload(given_payload)}
    with connect_or_empty(shared) as control:
        id = control.runs.find(run)
        numbers = [each.n for each in control.runs.set_aside(id)] if message is None else [message]
        sent = [
            {"message": number, "topic": control.runs.resend(id, number, **replaced, by=actor_or_user(by))}
            for number in numbers
        ]
    if shared.json:
        show_json({"run": id, "sent": sent})
        return
    for each in sent:
        show_line(f"{id}  message {each['message']} sent again on topic {each['topic']}")
    if not sent:
        show_line(f"{id}  no messages were set aside")
