"""`completion`: scripts that let shells complete commands, options, tasks and queues."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from holdfast.cli.root import SharedOptions, holdfast
from holdfast.model.run import FINAL_STATES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

INSTALL = {
    "bash": '# To install: add to ~/.bashrc:  eval "$(holdfast completion bash)"',
    "zsh": '# To install: add to ~/.zshrc, after compinit:  eval "$(holdfast completion zsh)"',
    "fish": "# To install: holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
}
MOST = 50


@holdfast.command(takes=("debug",))
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    """Print a script that teaches a shell to complete `holdfast`.

    Tasks are completed from the app's code, queues, schedules, runs, steps, topics, nodes and gates from its database,
    where those can be found without options.

    \b
    Examples:
      eval "$(holdfast completion bash)"
      eval "$(holdfast completion zsh)"
      holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = ShellComplete.source(kind(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE"))  # bash's own asks which bash
    click.echo(f"{INSTALL[shell]}\n{script}")


def complete_tasks(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The app's tasks that begin like this; none when there is no app or it can't be imported."""
    from holdfast.cli.connect import load_app
    from holdfast.control.tasks import TaskControl

    names: list[str] = []
    with suppress(Exception):
        names = [task.name for task in TaskControl(load_app(_given(ctx).app).registry).list()]
    return _items(names, typed)


def complete_queues(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The database's queues that begin like this; none when it can't be asked."""
    from holdfast.cli.connect import connect

    names: list[str] = []
    with suppress(Exception), connect(_given(ctx)) as control:
        names = sorted(control.queues.names())
    return _items(names, typed)


def complete_schedules(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The database's schedules and triggers that begin like this."""
    from holdfast.cli.connect import connect

    names: list[str] = []
    with suppress(Exception), connect(_given(ctx)) as control:
        names = list(control.schedules.names())
    return _items(names, typed)


def complete_runs(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The newest runs whose ids begin like this."""
    from holdfast.cli.connect import connect

    ids: list[str] = []
    with suppress(Exception), connect(_given(ctx)) as control:
        ids = [str(run.id) for run in control.runs.page(limit=1000)]
    return _items(ids, typed.lower())


def complete_steps(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The names of what the run that was given has on record."""
    from holdfast.cli.connect import connect

    names: list[str] = []
    with suppress(Exception), connect(_given(ctx)) as control:
        steps = control.runs.steps(control.runs.find(_run(ctx)))
        names = list(dict.fromkeys(step.label for step in steps))
    return _items(names, typed)


def complete_topics(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The topics that the run that was given waits for."""
    from holdfast.cli.connect import connect

    names: list[str] = []
    with suppress(Exception), connect(_given(ctx)) as control:
        waits = control.runs.waits(control.runs.find(_run(ctx)))
        names = [wait.name for wait in waits if wait.kind == "message" and wait.name is not None]
    return _items(names, typed)


def complete_gates(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The unfinished gates of the graph that was given."""
    from holdfast.cli.connect import connect

    names: list[str] = []
    with suppress(Exception), connect(_given(ctx)) as control:
        id = control.runs.find(_run(ctx))
        names = [gate.name for gate in control.graphs.gates(id) if gate.graph == id and gate.state not in FINAL_STATES]
    return _items(names, typed)


def complete_nodes(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The nodes of the graph that was given."""
    from holdfast.cli.connect import connect

    names: list[str] = []
    with suppress(Exception), connect(_given(ctx)) as control:
        names = [node.name for node in control.graphs.read(control.runs.find(_run(ctx))).nodes]
    return _items(names, typed)


def _run(ctx: click.Context) -> str:
    """The run that was given; click leaves it unread where an option has no value yet."""
    return str(ctx.params.get("run") or ctx.args[0])


def _given(ctx: click.Context) -> SharedOptions:
    return ctx.find_object(SharedOptions) or SharedOptions()


def _items(names: list[str], typed: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(typed)][:MOST]
