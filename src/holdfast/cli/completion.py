"""Shell completion: the `completion` command, and completers for tasks, queues, schedules, runs, steps and nodes.

The shell runs completers whenever the user presses Tab, in whichever folder they are. Importing an app executes code of
that folder. So completers read the database only, except in folders that the user trusts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from holdfast.cli.root import SharedOptions, holdfast
from holdfast.model.run import FINAL_STATES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from holdfast.control import Control

INSTALL = {
    "bash": '# To install: add to ~/.bashrc:  eval "$(holdfast completion bash)"',
    "zsh": '# To install: add to ~/.zshrc, after compinit:  eval "$(holdfast completion zsh)"',
    "fish": "# To install: holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
}
MAX_ITEMS = 50
TRUSTED_FOLDERS = "HOLDFAST_TRUSTED_FOLDERS"
"""The variable with the folders in which completion may import the app, separated by colons."""

Completer: TypeAlias = "Callable[[click.Context, click.Parameter, str], list[CompletionItem]]"


@holdfast.command(takes=("debug",))
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    """Print the shell completion script for `holdfast`.

    Names of tasks, queues, schedules, events, runs, steps, topics, nodes and gates come from the database: --url,
    $HOLDFAST_URL, or holdfast.db in this folder. Completion imports your app, for its tasks and its database, only in
    the folders that $HOLDFAST_TRUSTED_FOLDERS lists, because that executes code.

    \b
    Examples:
      eval "$(holdfast completion bash)"
      eval "$(holdfast completion zsh)"
      holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    # Bash's own source() runs bash to check its version.
    script = ShellComplete.source(kind(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE"))
    click.echo(f"{INSTALL[shell]}\n{script}")


def is_trusted_folder() -> bool:
    """Return whether the user trusts the current folder, or one above it."""
    here = Path.cwd().resolve()
    folders = [Path(name).expanduser() for name in os.environ.get(TRUSTED_FOLDERS, "").split(os.pathsep) if name]
    return any(folder.is_absolute() and here.is_relative_to(folder.resolve()) for folder in folders)


@contextmanager
def _connect(ctx: click.Context) -> Iterator[Control]:
    """Open the database, without the app unless the folder is trusted."""
    from holdfast.cli.connect import connect, find_database

    shared = _shared(ctx)
    if not is_trusted_folder():
        shared = replace(shared, app=None, url=shared.url or find_database())
    with connect(shared) as control:
        yield control


def complete_tasks(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    from holdfast.cli.connect import load_app
    from holdfast.control.tasks import TaskControl

    names: list[str] = []
    with suppress(Exception):
        if is_trusted_folder():
            names = [task.name for task in TaskControl(load_app(_shared(ctx).app).registry).list()]
        else:
            with _connect(ctx) as control:
                names = sorted(control.queues.task_names())
    return _items(names, typed)


def _completer(names: Callable[[Control, click.Context], Iterable[str]]) -> Completer:
    """Make a completer of names from the database; it offers nothing if the database can't be read."""

    def complete(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
        found: list[str] = []
        with suppress(Exception), _connect(ctx) as control:
            found = list(dict.fromkeys(names(control, ctx)))
        return _items(found, typed)

    return complete


def _topics(control: Control, ctx: click.Context) -> Iterable[str]:
    waits = control.runs.waits(control.runs.find(_run(ctx)))
    return (wait.name for wait in waits if wait.kind == "message" and wait.name is not None)


def _steps(control: Control, ctx: click.Context) -> Iterable[str]:
    steps = control.runs.steps(control.runs.find(_run(ctx)))
    return (step.label for step in steps if not step.superseded)


def _gates(control: Control, ctx: click.Context) -> Iterable[str]:
    id = control.runs.find(_run(ctx))
    return (gate.name for gate in control.graphs.gates(id) if gate.graph == id and gate.state not in FINAL_STATES)


def _events(control: Control, _ctx: click.Context) -> Iterable[str]:
    found = control.events.list(limit=1000)
    return sorted({each.name for each in found.awaited} | {each.name for each in found.emitted})


def _published_topics(control: Control, _ctx: click.Context) -> Iterable[str]:
    found = control.topics.list()
    return sorted({each.topic for each in found.topics} | {each.topic for each in found.functions})


complete_published_topics = _completer(_published_topics)
complete_queues = _completer(lambda control, _: sorted(control.queues.names()))
complete_schedules = _completer(lambda control, _: control.schedules.names())
complete_runs = _completer(lambda control, _: (str(run.id) for run in control.runs.page(limit=1000)))
complete_steps = _completer(_steps)
complete_topics = _completer(_topics)
complete_gates = _completer(_gates)
complete_events = _completer(_events)
complete_nodes = _completer(
    lambda control, ctx: (node.name for node in control.graphs.read(control.runs.find(_run(ctx))).nodes)
)


def _run(ctx: click.Context) -> str:
    """Return the run argument; click leaves it unparsed while an option has no value yet."""
    return str(ctx.params.get("run") or ctx.args[0])


def _shared(ctx: click.Context) -> SharedOptions:
    return ctx.find_object(SharedOptions) or SharedOptions()


def _items(names: list[str], typed: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith((typed, typed.lower()))][:MAX_ITEMS]
