"""Commands for tasks: `tasks`, `enqueue`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.completion import complete_queues, complete_tasks
from holdfast.cli.options import DURATION, argument, arguments
from holdfast.cli.output import TableColumn, format_duration, note, show_json, show_line, show_table
from holdfast.cli.root import FAILED, SharedOptions, describe, holdfast, pass_shared
from holdfast.errors import BadArguments, ConfigError, ResultTimeout, RunCancelled, RunFailed, UnknownTask
from holdfast.model.metadata import parse_metadata

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.client.handle import Run
    from holdfast.control.tasks import TaskInfo
    from holdfast.task.task import Request, Task

COLUMNS = (
    TableColumn("TASK", whole=True),
    TableColumn("QUEUE"),
    TableColumn("RUNS IN", drop=3),
    TableColumn("ATTEMPTS", right=True, drop=1),
    TableColumn("TIMEOUT", drop=2),
    TableColumn("DEFINED"),
)
FOREVER_S = 100 * 365 * 86_400


@holdfast.command(takes=("app", "json", "debug"))
@pass_shared
def tasks(shared: SharedOptions) -> None:
    """List the tasks that the app declares. Doesn't use the database.

    \b
    Examples:
      holdfast tasks --app shop.tasks:app
      holdfast tasks --json | jq -r '.[].name'
    """
    from holdfast.cli.connect import load_app
    from holdfast.control.tasks import TaskControl

    found = TaskControl(load_app(shared.app).registry).list()
    if shared.json:
        show_json(found)
    else:
        show_table(COLUMNS, [_row(task) for task in found], "no tasks: decorate a function with @app.task")


def _row(task: TaskInfo) -> list[str]:
    return [
        task.name,
        task.queue,
        task.run_in or "-",
        str(task.max_attempts),
        "-" if task.timeout is None else format_duration(task.timeout),
        task.defined or "-",
    ]


@holdfast.command()
@click.argument("task", shell_complete=complete_tasks)
@click.argument("values", nargs=-1, metavar="[ARGUMENT]...")
@click.option("--args", "given_args", metavar="JSON", help="All arguments: a JSON object (by name) or array.")
@click.option("--queue", metavar="NAME", help="Queue of the run.", shell_complete=complete_queues)
@click.option("--priority", type=int, help="Higher runs first.")
@click.option("--delay", type=DURATION, help="Delay before the start, such as 90, 15m, 2h or 7d.")
@click.option("--key", metavar="TEXT", help="Idempotency key: a used key creates no second run.")
@click.option("--unique", metavar="TEXT", help="Allow one unfinished run with this name.")
@click.option(
    "--if-taken", type=click.Choice(["return", "queue", "replace", "cancel"]), help="If a run has the --unique name."
)
@click.option("--debounce", metavar="TEXT", help="Collect calls with this name until none came for --delay.")
@click.option("--max-delay", type=DURATION, help="Start a debounced run no later than this after its first call.")
@click.option("--start-by", type=DURATION, help="Cancel the run unless it starts within this time.")
@click.option("--key-ttl", type=DURATION, help="How long the --key is used.")
@click.option("--tenant", metavar="NAME", help="Tenant of the run.")
@click.option("--tag", "tags", metavar="NAME", multiple=True, help="A tag; repeatable.")
@click.option("--metadata", metavar="NAME=VALUE", multiple=True, help="Metadata; repeatable. VALUE is JSON or text.")
@click.option(
    "--wait", type=DURATION, is_flag=False, flag_value=str(FOREVER_S), metavar="[SECONDS]",
    help="Wait for the result, at most this long, and print it.",
)  # fmt: skip
@click.option("--remote", is_flag=True, help="Accept any task name and arguments, for code that isn't here.")
@pass_shared
def enqueue(
    shared: SharedOptions,
    task: str,
    values: tuple[str, ...],
    given_args: str | None,
    wait: float | None,
    remote: bool,
    tags: tuple[str, ...],
    metadata: tuple[str, ...],
    **options: Any,
) -> int:
    """Enqueue a run of a task, and print its id.

    If a run with the same --key, --unique or --debounce name exists, its id is printed, and a note says that no run was
    created. An unstarted run with the same --debounce name gets the new arguments.

    Each ARGUMENT is parsed as JSON, or else taken as text: 42 is a number, '"42"' and forty-two are strings. Put --
    before arguments that start with a minus sign. With --wait, the result is printed as JSON, and the exit code is 1
    unless the run is done.

    \b
    Examples:
      holdfast enqueue shop.tasks.send_email ada@example.org hello
      holdfast enqueue shop.tasks.charge --args '{"order_id": 42}' --wait 30
      holdfast enqueue billing.charge 42 --key order-42 --delay 2h --remote
    """
    if given_args is not None and values:
        raise click.UsageError("Pass arguments one by one or with --args, not both.")
    positional, named = (tuple(map(argument, values)), {}) if given_args is None else arguments(given_args)
    known = {name: value for name, value in options.items() if value is not None}
    if tags:
        known["tags"] = tags
    if metadata:
        known["metadata"] = parse_metadata(metadata)
    from holdfast.cli.connect import recorded

    target, callee = find_task(shared, task, remote)
    with target:
        request = build_request(callee.options(**known), positional, named)
        with recorded(target, "enqueue run", callee.name):
            run = target.enqueue_many([request])[0]
        if not run.created and not shared.json:
            taken = " or ".join(f"--{name} {known[name]}" for name in ("key", "unique", "debounce") if name in known)
            note(f"no run was created: {run.id} exists already for {taken}")
        if wait is not None:
            return _wait(shared, run, None if wait == FOREVER_S else wait)
        if shared.json:
            show_json({"id": run.id, "task": run.task, "created": run.created})
        else:
            show_line(str(run.id))
    return 0


def find_task(shared: SharedOptions, name: str, remote: bool) -> tuple[Holdfast, Task[..., Any]]:
    """Return the app to enqueue with, and the task."""
    from holdfast.cli.connect import find_app_name, load_app, resolve_target

    if remote:
        target = resolve_target(shared).open_app()
        return target, target.remote(name)
    if find_app_name(shared.app) is None:
        raise ConfigError("no app given: pass --app module:app, or --remote if the task's code isn't here")
    app = load_app(shared.app)
    try:
        task = app.registry.get(name)
    except UnknownTask as error:
        raise UnknownTask(f"{error} (`holdfast tasks` lists all tasks; --remote accepts any name)") from None
    return resolve_target(shared, app).open_app(), task


def build_request(task: Task[..., Any], positional: tuple[Any, ...], named: dict[str, Any]) -> Request[Any]:
    """Build a request from arguments of the command line."""
    try:
        return task.request(*positional, **named)
    except BadArguments as error:
        if len(positional) == 1 and isinstance(positional[0], list):
            hint = "; an array is one argument: pass all of them with --args '[…]', or one by one"
        elif re.search("expected `str`, got `(int|float)`", str(error).lower()):
            hint = """; write a number as a string like this: '"42"'"""
        else:
            hint = ""
        raise BadArguments(f"{error}{hint}") from None


def _wait(shared: SharedOptions, run: Run[Any], longest: float | None) -> int:
    """Wait for the result and print it."""
    from holdfast.model.codec import display_value, encode

    about = {"id": run.id, "task": run.task, "created": run.created}
    if not shared.json:
        note(f"run {run.id}")
    try:
        result = display_value(encode(run.result(longest)))
    except (RunFailed, RunCancelled, ResultTimeout) as error:
        if shared.json:
            info = run.info()
            show_json({**about, "state": info.state, "result": None, "error": info.error})
        click.echo(describe(error)[0], err=True)
        return FAILED
    if shared.json:
        show_json({**about, "state": "done", "result": result, "error": None})
    else:
        show_json(result)
    return 0
